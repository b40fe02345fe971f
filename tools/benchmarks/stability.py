"""How much of what was shown was taken back."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from operator import add
from typing import Self

from tools.benchmarks.emission import Placed, Shown


@dataclass(frozen=True, slots=True)
class Stability:
    """Words taken back; those of several recordings can be added."""

    # Words taken back over all revisions, and words of the final transcript: as shown, and in their normalised form.
    erased: int = 0
    n_final: int = 0
    erased_normalised: int = 0
    n_final_normalised: int = 0

    # Words taken back that the system had promised to keep.
    broken_promises: int = 0

    # Words shown behind the stable prefix over all revisions, and those that are not in the final at their place.
    n_unstable: int = 0
    unstable_wrong: int = 0

    def __add__(self, other: Self) -> "Stability":
        return Stability(*map(add, astuple(self), astuple(other)))

    @property
    def normalised_erasure(self) -> float | None:
        """Words taken back for each final word. Source: Arivazhagan et al. 2020, https://arxiv.org/abs/2004.03643"""
        return self.erased / self.n_final if self.n_final else None

    @property
    def normalised_erasure_of_normalised(self) -> float | None:
        """The same where a change of punctuation or case does not count."""
        return self.erased_normalised / self.n_final_normalised if self.n_final_normalised else None

    @property
    def upwr(self) -> float | None:
        """The share of unstable words that are not in the final at their place.

        Source: unstable partial word ratio, after Shangguan et al. 2020, https://arxiv.org/abs/2006.01416
        """
        return self.unstable_wrong / self.n_unstable if self.n_unstable else None


def erased(texts: Sequence[tuple[str, ...]]) -> int:
    """Return how many words have to be deleted over all texts, so that each can go on as the next one does."""
    return sum(len(a) - common_prefix(a, b) for a, b in pairwise(texts))


def broken_promises(texts: Sequence[tuple[tuple[str, ...], int]]) -> int:
    """Return how many words of stable prefixes the texts behind them do not have, of (words, n_stable) each.

    What is promised are characters: the last promised word may be written on, as "President" to "President's".
    """
    n_broken = 0
    for (words, n_stable), (following, _) in pairwise(texts):
        n_kept = common_prefix(words[:n_stable], following)
        written_on = n_kept == n_stable - 1 < len(following) and following[n_kept].startswith(words[n_kept])
        n_broken += 0 if written_on else n_stable - n_kept
    return n_broken


def unstable_words(shown: Sequence[Shown], placed: Sequence[Placed]) -> tuple[int, int]:
    """Return the number of words behind the stable prefixes, and of those that the final has not at their place."""
    places = [place for text, at in zip(shown, placed, strict=True) for place in at.places[text.n_stable :]]
    return len(places), sum(place is None for place in places)


def common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many of their first words are the same."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
