"""From the name of a model to its path: a path, a model that came with the program, or one on the Hub."""

import contextlib
import difflib
import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from streamer.errors import ModelError, PeerError
from streamer.outside import one_line
from streamer.whisper.hub import cache, fetch
from streamer.whisper.hub.progress import OnProgress
from streamer.whisper.hub.published import SHORT_NAMES
from streamer.whisper.shipped import shipped
from streamer.whisper.source import is_model
from streamer.whisper.weights.checkpoint import SUFFIXES

logger = logging.getLogger(__name__)

# Entries of a directory that a mistyped path is compared with.
_MOST_BESIDE = 1000


def find_model(name: str) -> Path | None:
    """Find a model, a directory or file, by its path, or among those shipped or downloaded; else None."""
    if not name:
        return None  # as a path it would be the working directory
    try:
        path = Path(name).expanduser()
        is_path = (path.is_dir() or path.is_file()) and not is_published(name)
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, the home of no user
        return None
    return path if is_path else shipped().get(name) or cache.cached(name)


def is_published(name: str) -> bool:
    """Return whether a name is a shipped or published model's, and no file or folder of that name holds a model."""
    return name in (*shipped(), *SHORT_NAMES) and not is_model(Path(name))


def find_or_pull(name: str, on_progress: OnProgress) -> Path:
    """Find a model here, else fetch it. Raises ModelError if there is no such model, else as `fetch.pull`."""
    if is_published(name) and Path(name).exists():
        logger.warning("./%s holds no model: using the published %s", name, name)
    if found := find_model(name):
        return found
    if os.path.lexists(name) and not is_published(name):
        raise ModelError(
            f"{name} is neither a file nor a folder: expected a model; if it is a link, its target is missing"
        )
    beside = _nearest(name, _beside(name))
    if cache.parse(name) is not None:
        try:
            return fetch.pull(name, on_progress=on_progress)
        except (ModelError, PeerError) as error:
            # A folder may be called like an owner on the Hub, and a mistyped path looks like a repository.
            if "/" not in name or not Path(name).parent.is_dir():
                raise
            raise type(error)(f"{error}; the folder {Path(name).parent} has no {Path(name).name}{beside}") from None
    if meant := beside or _nearest(name, [*shipped(), *SHORT_NAMES]):
        raise ModelError(f"there is no model {name!r:.200}{meant}")
    raise ModelError(
        f"there is no model {name!r:.200}: expected a directory, a checkpoint's file, OWNER/REPOSITORY on the Hub, or"
        f" one of {', '.join([*shipped(), *SHORT_NAMES])}"
    )


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of a message that asks whether the nearest of some names was meant; empty if none is near."""
    near = difflib.get_close_matches(name, names, 1)
    return f": did you mean {one_line(near[0]):.200}?" if near else ""


def _beside(name: str) -> list[str]:
    """Return the paths of models in the directory that `name`, as a path, would be in."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # as in `find_model`
        found = itertools.islice(Path(name).expanduser().parent.iterdir(), _MOST_BESIDE)
        return [str(path) for path in found if path.is_dir() or (path.suffix in SUFFIXES and path.is_file())]
    return []


def name_of(path: Path, name: str) -> str:
    """Return what a model is called that was found under a name: a path's last part, else the name itself."""
    return path.resolve().name if Path(name).expanduser() == path else name
