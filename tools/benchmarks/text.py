"""How one text differs from another: words that were substituted, deleted, inserted, or said twice."""

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import count, groupby
from operator import add
from typing import NamedTuple, Self

from rapidfuzz.distance import Levenshtein

# Turns a text into the form in which words are compared, such as Whisper's English normaliser.
Normaliser = Callable[[str], str]

# Languages written without spaces, of which characters are compared, as in the Whisper paper.
_BY_CHARACTERS = ("zh", "ja", "th", "lo", "my", "yue")

# The most words that are searched for again right behind themselves.
MAX_REPEATED_WORDS = 12

# Fewer deleted words in a row may have been misheard; that many were dropped.
MIN_DROPPED_WORDS = 4


@cache
def normaliser(language: str) -> Normaliser:
    """Return Whisper's normaliser of a language, behind one that splits words at dashes."""
    from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer  # here, as it loads torch

    by_characters = language in _BY_CHARACTERS
    whisper = EnglishTextNormalizer() if language == "en" else BasicTextNormalizer(split_letters=by_characters)
    return lambda text: whisper(re.sub("[-–—]", " ", text))


@dataclass(frozen=True, slots=True)
class Errors:
    """What is wrong with a text, in words; errors of several texts can be added."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    n_reference: int = 0  # words of the reference
    doubled: int = 0  # insertions that repeat what stands right before or behind them
    dropped: int = 0  # deletions of at least MIN_DROPPED_WORDS in a row

    def __add__(self, other: Self) -> "Errors":
        return Errors(*map(add, astuple(self), astuple(other)))

    @property
    def rate(self) -> float | None:
        """The word error rate; None if the reference has no words."""
        n_wrong = self.substitutions + self.deletions + self.insertions
        return n_wrong / self.n_reference if self.n_reference else None


class Alignment(NamedTuple):
    """Which words of a text stand for which of the reference, by the fewest edits."""

    # (index in the reference, index in the text) of words that stand for each other, equal or not, in order.
    pairs: list[tuple[int, int]]

    # Words of the reference that the text lacks, and words of the text that the reference lacks.
    deleted: list[int]
    inserted: list[int]


def align(reference: Sequence[str], text: Sequence[str]) -> Alignment:
    """Align two sequences of words with the fewest edits (Levenshtein)."""
    alignment = Alignment([], [], [])
    for edit in Levenshtein.opcodes(reference, text):
        of_reference, of_text = range(edit.src_start, edit.src_end), range(edit.dest_start, edit.dest_end)
        if edit.tag == "delete":
            alignment.deleted.extend(of_reference)
        elif edit.tag == "insert":
            alignment.inserted.extend(of_text)
        else:
            alignment.pairs.extend(zip(of_reference, of_text, strict=True))
    return alignment


def errors(reference: Sequence[str], text: Sequence[str]) -> Errors:
    """Count the errors of a text; both are words that were normalised the same way."""
    alignment = align(reference, text)
    # Indices in a row are as far apart as their positions in the list.
    position = count()
    runs = [len(list(run)) for _, run in groupby(alignment.deleted, key=lambda index: index - next(position))]
    return Errors(
        substitutions=sum(reference[i] != text[j] for i, j in alignment.pairs),
        deletions=len(alignment.deleted),
        insertions=len(alignment.inserted),
        n_reference=len(reference),
        doubled=len(_repeated(text).intersection(alignment.inserted)),
        dropped=sum(n for n in runs if n >= MIN_DROPPED_WORDS),
    )


def _repeated(text: Sequence[str]) -> set[int]:
    """Return the indices of words in a passage that stands there twice in a row, as "in the end in the end"."""
    found: set[int] = set()
    for n in range(1, min(MAX_REPEATED_WORDS, len(text) // 2) + 1):
        for i in range(n, len(text) - n + 1):
            if text[i : i + n] == text[i - n : i]:
                found.update(range(i - n, i + n))
    return found
