"""How one text differs from another: words that were exchanged, left out, put in, or said twice."""

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from operator import add
from typing import Self

from rapidfuzz.distance import Levenshtein

# Turns a text into the form in which words are compared, such as Whisper's English normaliser.
Normaliser = Callable[[str], str]

# The longest stretch of words that is looked for again right behind itself.
MAX_REPEATED_WORDS = 12

# Left-out words that follow each other: so many are no mishearing any more.
MIN_DROPPED_WORDS = 4


def plain(text: str) -> str:
    """Return a text in small letters without punctuation; apostrophes within words stay."""
    return " ".join(re.findall(r"\w+(?:['’]\w+)*", text.casefold())).replace("’", "'")


@dataclass(frozen=True, slots=True)
class Errors:
    """What is wrong with a text, in words; errors of several texts can be added."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    n_reference: int = 0  # words of the reference
    doubled: int = 0  # words put in that repeat what stands right before or behind them
    dropped: int = 0  # words left out at least MIN_DROPPED_WORDS in a row

    def __add__(self, other: Self) -> "Errors":
        return Errors(*map(add, astuple(self), astuple(other)))

    @property
    def n_wrong(self) -> int:
        """Words that were exchanged, left out or put in."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """The word error rate; None where the reference has no words."""
        return self.n_wrong / self.n_reference if self.n_reference else None


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which words of a text stand for which of the reference, by the fewest edits."""

    # (index in the reference, index in the text) of words that stand for each other, equal or not, in order.
    pairs: list[tuple[int, int]]

    # Words of the reference that were left out, and of the text that were put in.
    deleted: list[int]
    inserted: list[int]


def align(reference: Sequence[str], text: Sequence[str]) -> Alignment:
    """Align two sequences of words with the fewest edits (Levenshtein)."""
    alignment = Alignment([], [], [])
    for edit in Levenshtein.opcodes(reference, text):
        match edit.tag:
            case "delete":
                alignment.deleted.extend(range(edit.src_start, edit.src_end))
            case "insert":
                alignment.inserted.extend(range(edit.dest_start, edit.dest_end))
            case _:
                alignment.pairs.extend(
                    zip(range(edit.src_start, edit.src_end), range(edit.dest_start, edit.dest_end), strict=True)
                )
    return alignment


def edits(reference: Sequence[str], text: Sequence[str]) -> list[tuple[str, int]]:
    """Return the errors of a text: `replace`, `delete` or `insert`, and the index of the word of the reference.

    A word that is put in stands at the word before it, in front of all at the first.
    """
    found = Levenshtein.editops(reference, text)
    return [(edit.tag, max(0, edit.src_pos - (edit.tag == "insert"))) for edit in found]


def errors(reference: Sequence[str], text: Sequence[str]) -> Errors:
    """Count the errors of a text; both are words that were normalised the same way."""
    alignment = align(reference, text)
    return Errors(
        substitutions=sum(reference[i] != text[j] for i, j in alignment.pairs),
        deletions=len(alignment.deleted),
        insertions=len(alignment.inserted),
        n_reference=len(reference),
        doubled=len(doubled(text, alignment.inserted)),
        dropped=sum(len(run) for run in runs(alignment.deleted) if len(run) >= MIN_DROPPED_WORDS),
    )


def doubled(text: Sequence[str], inserted: Sequence[int]) -> list[int]:
    """Return the indices of words that were put in and belong to a stretch that stands there twice.

    Of "in the end in the end of", where the reference says it once, three words were doubled. What the reference itself
    repeats was not put in, and does not count.
    """
    found: set[int] = set()
    for n in range(1, min(MAX_REPEATED_WORDS, len(text) // 2) + 1):
        for i in range(n, len(text) - n + 1):
            if text[i : i + n] == text[i - n : i]:
                found.update(range(i - n, i + n))
    return sorted(found.intersection(inserted))


def runs(indices: Sequence[int]) -> list[list[int]]:
    """Split ascending indices where one is left out."""
    result: list[list[int]] = []
    for index in indices:
        if result and index == result[-1][-1] + 1:
            result[-1].append(index)
        else:
            result.append([index])
    return result
