"""What is said of a model while it is fetched."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the fetching of a model is."""

    # What is being fetched: the name of a file, or of a model.
    doing: str

    # Bytes of the model that are here, and in all; 0 of 0 while that is not known.
    n_here: int = 0
    n_all: int = 0


OnProgress = Callable[[Progress], None]
