"""The directory of compiled graphs, and of the CPU's measured speed.

Each entry is a directory whose name is a digest of all that it is for. Its time is that of its last use.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import platformdirs

from streamer.errors import ConfigError
from streamer.version import __version__

logger = logging.getLogger(__name__)

# Names the directory if the settings do not.
CACHE_VARIABLE = "STREAMER_CACHE_DIR"

# An entry that was not used for that long is of another model, driver, device or OpenVINO than the present ones.
UNUSED_AFTER_S = 90 * 24 * 3600.0

# All entries together take this much at most; the oldest go first, except those that were used within a day: a model
# that takes more would be compiled at each start.
MOST_BYTES = 4 << 30
USED_NOW_S = 24 * 3600.0

# The kind of an entry that holds no compiled graph, but what `model.name: auto` measured of the CPU.
SPEED = "SPEED"


# Our entries: a device or a kind, and a digest.
_NAME = re.compile(r"(NPU|GPU|CPU|SPEED|VERDICT)[.\w]*-[0-9a-f]{16}")


def cache_base(setting: str) -> Path:
    """Return the cache's directory: the setting, else the environment's, else one among the user's caches."""
    wanted = setting or os.environ.get(CACHE_VARIABLE, "")
    return Path(wanted).expanduser() if wanted else platformdirs.user_cache_path("streamer") / "compiled"


def open_cache(setting: str) -> Path | None:
    """Make the cache and delete old entries. If the default one cannot be made, warn and return None.

    Raises ConfigError if one that the setting or the environment names cannot be made.
    """
    path = cache_base(setting)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"the cache directory {str(path)!r:.200} cannot be made ({getattr(error, 'strerror', error)})"
        if setting or CACHE_VARIABLE in os.environ:
            raise ConfigError(f"{problem}: choose a directory that you may write to") from None
        logger.warning("%s: compiled graphs are not kept", problem)
        return None
    prune(path)
    return path


def entry(base: Path, kind: str, facts: Sequence[object]) -> Path:
    """Return the directory of what holds under these facts; it may not exist."""
    digest = hashlib.sha256(json.dumps([str(fact) for fact in facts]).encode("utf-8")).hexdigest()[:16]
    return base / f"{kind}-{digest}"


def facts_of(files: Iterable[Path], *others: object) -> str:
    """Return what changes if one of these files or folders, this program or something else does."""
    code = [Path(__file__).parent / room for room in ("device", "graphs", "weights")]
    return json.dumps([__version__, *(stamp for path in (*files, *code) for stamp in _stamps(path)), *map(str, others)])


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    """Return what changes if a file, or one in a folder, does: its name, bytes and time."""
    files = [path] if path.is_file() else sorted(file for file in path.glob("*") if file.is_file())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def use(directory: Path) -> None:
    """Make an entry if it does not exist, and mark it as used."""
    with contextlib.suppress(OSError):  # if it cannot be made, nothing is kept
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)


@contextlib.contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Let OpenVINO keep a compiled graph in an entry, in place of older ones of the same model and graph.

    Yields the directory for OpenVINO. For an empty entry it is another, whose files are moved when they are whole:
    a process that starts meanwhile would map a graph that is half written, and end with SIGBUS.
    """
    use(directory)
    before = set(directory.glob("*.blob"))
    with contextlib.ExitStack() as stack:
        place = directory
        if not before and directory.is_dir() and os.access(directory, os.W_OK):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True)))
        yield place
        with contextlib.suppress(OSError):  # another process was faster, or is reading
            if place != directory:
                for file in place.iterdir():
                    file.replace(directory / file.name)
            elif set(directory.glob("*.blob")) - before:
                for blob in before:
                    blob.unlink()


def prune(base: Path, now_s: float | None = None) -> None:
    """Delete entries not used for `UNUSED_AFTER_S`, and the oldest beyond `MOST_BYTES`; never fail.

    now_s : seconds since the epoch; None: the present
    """
    now_s = time.time() if now_s is None else now_s
    entries: list[tuple[float, int, Path]] = []
    # Only what is ours by its name: the directory is the user's choice, and may hold other things.
    with contextlib.suppress(OSError, ValueError):
        for path in base.iterdir():
            if _NAME.fullmatch(path.name) and not path.is_symlink() and path.is_dir():
                n_bytes = sum(file.stat().st_size for file in path.glob("*.blob"))
                entries.append((path.stat().st_mtime, n_bytes, path))
    total = 0
    for used_s, n_bytes, path in sorted(entries, reverse=True):
        total += n_bytes
        # An entry without graphs takes no space worth freeing.
        too_much = n_bytes > 0 and total > MOST_BYTES
        if used_s < now_s - (USED_NOW_S if too_much else UNUSED_AFTER_S):
            logger.debug("deleting %s, which was not used for long", path)
            shutil.rmtree(path, ignore_errors=True)
