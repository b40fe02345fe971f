"""The directory of compiled graphs, and of what was measured of the CPU.

Each entry is a directory whose name is a digest of all that it is for. Its time says when it was used last.
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
from collections.abc import Iterator, Sequence
from pathlib import Path

import platformdirs

from streamer.errors import ConfigError

logger = logging.getLogger(__name__)

# Names the directory, where the settings do not.
CACHE_VARIABLE = "STREAMER_CACHE_DIR"

# What nobody used for so long is of another model, driver, device or OpenVINO than the present ones.
UNUSED_AFTER_S = 90 * 24 * 3600.0

# What all entries may take together; the oldest go first, but none that was used within a day: a model that takes more
# would be compiled at each start.
MOST_BYTES = 4 << 30
USED_NOW_S = 24 * 3600.0

# The kind of an entry that holds no compiled graph, but what `model.name: auto` measured of the CPU.
SPEED = "SPEED"

# Entries that are ours: a device or a kind, and a digest. READ is of earlier versions.
_NAME = re.compile(r"(NPU|GPU|CPU|READ|SPEED)[.\w]*-[0-9a-f]{16}")


def cache_base(setting: str) -> Path:
    """Return where the cache is: as set, else where the environment says, else among the user's caches."""
    wanted = setting or os.environ.get(CACHE_VARIABLE, "")
    return Path(wanted).expanduser() if wanted else platformdirs.user_cache_path("streamer") / "compiled"


def open_cache(setting: str) -> Path | None:
    """Make the cache and delete what was not used for long; None where nothing can be kept, which is told.

    Raises ConfigError where that is because of the setting or the environment.
    """
    path = cache_base(setting)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if setting or CACHE_VARIABLE in os.environ:
            raise ConfigError(
                f"the cache directory {str(path)!r:.200} cannot be made ({reason}): choose one that can be written to"
            ) from None
        logger.warning("%s cannot be made (%s); compiled graphs are not kept", path, reason)
        return None
    prune(path)
    return path


def entry(base: Path, kind: str, facts: Sequence[object]) -> Path:
    """Return the directory for what holds under these facts; it may not be there."""
    digest = hashlib.sha256(json.dumps([str(fact) for fact in facts]).encode("utf-8")).hexdigest()[:16]
    return base / f"{kind}-{digest}"


def use(directory: Path) -> None:
    """Make an entry where it is not there, and mark it as used."""
    with contextlib.suppress(OSError):  # where it cannot be made, nothing is kept
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)


@contextlib.contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Let OpenVINO keep a compiled graph in an entry; where it writes a new one, those before go.

    Yields the directory for OpenVINO: where the entry is empty, one whose files move into it when they are whole.
    Another process that starts meanwhile would map a graph that is half written, and end with SIGBUS.
    An entry is for one graph of one model: others in it are of the model's files or of the program as they were.
    """
    use(directory)
    before = set(directory.glob("*.blob"))
    if not before and directory.is_dir() and os.access(directory, os.W_OK):
        with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as fresh:
            yield Path(fresh)
            for file in Path(fresh).iterdir():
                with contextlib.suppress(OSError):  # another process was faster, and reads its own
                    file.replace(directory / file.name)
        return
    yield directory
    if set(directory.glob("*.blob")) - before:
        for blob in before:
            with contextlib.suppress(OSError):  # another process may be reading it
                blob.unlink()


def prune(base: Path, now_s: float | None = None) -> None:
    """Delete what was not used for `UNUSED_AFTER_S`, and the oldest where all take more than `MOST_BYTES`; never fail.

    now_s : seconds since the epoch; None: the present
    """
    now_s = time.time() if now_s is None else now_s
    entries: list[tuple[float, int, Path]] = []
    # Nothing but what is ours by its name: the directory is the user's choice, and may hold other things.
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
            logger.debug("%s has not been used for long: deleted", path)
            shutil.rmtree(path, ignore_errors=True)
