"""What is said of a model while it is fetched, and the lock that lets one program at a time fetch it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the fetching of a model is."""

    # What is being done, in a few words; mostly the name of a file.
    doing: str

    # Bytes of the model that are here, and in all; 0 of 0 while that is not known.
    n_here: int = 0
    n_all: int = 0


OnProgress = Callable[[Progress], None]


@contextmanager
def locked(path: Path, on_progress: OnProgress) -> Iterator[None]:
    """Hold a lock file, so that two programs do not fetch one model. Raises OSError if it cannot be made."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(path, timeout=1))
        except TimeoutError:
            on_progress(Progress("waiting for another program that fetches it"))
            stack.enter_context(WeakFileLock(path))
        yield
