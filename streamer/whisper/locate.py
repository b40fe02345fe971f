"""From the name of a model to where it lies: a path, a model that came with the program, or one on the Hub."""

from pathlib import Path

from streamer.errors import ModelError, PeerError
from streamer.whisper.hub import cache, fetch
from streamer.whisper.hub.published import SHORT_NAMES
from streamer.whisper.shipped import shipped


def find_model(name: str) -> Path | None:
    """Find a model, a directory or file, by its path, or among those shipped or downloaded; None: there is none."""
    if not name:
        return None  # as a path it would be the working directory
    try:
        path = Path(name).expanduser()
        candidates = [path, *(directory for known, directory in shipped().items() if known == name)]
        found = next((candidate for candidate in candidates if candidate.is_dir() or candidate.is_file()), None)
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, the home of nobody
        return None
    return found or cache.cached(name)


def find_or_pull(name: str, on_progress: fetch.OnProgress) -> Path:
    """Find a model here, else on the Hub. Raises ModelError if there is no such model, else as `fetch.pull`."""
    if found := find_model(name):
        return found
    if cache.repository(name) is not None:
        try:
            return fetch.pull(name, on_progress=on_progress)
        except (ModelError, PeerError) as error:
            # A folder may be called like an owner on the Hub, and a mistyped path looks like a repository.
            if "/" not in name or not Path(name).parent.is_dir():
                raise
            raise type(error)(f"{error}; the folder {Path(name).parent} has no {Path(name).name}") from None
    raise ModelError(
        f"there is no model {name!r:.200}: expected a directory, a checkpoint's file, OWNER/REPOSITORY on the Hub, or"
        f" one of {', '.join([*shipped(), *SHORT_NAMES])}"
    )


def name_of(path: Path, name: str) -> str:
    """Return what a model is called that was found under a name: a path's last part, else the name itself."""
    return path.resolve().name if Path(name).expanduser() == path else name
