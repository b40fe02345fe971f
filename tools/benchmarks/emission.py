"""When each word of the final transcript was first seen, was promised, and had settled.

Words are compared in their normalised form and by their place. The place of a shown text's words in the final
transcript is found by aligning the text with that beginning of the transcript which it is most like (the fewest edits;
of several such beginnings the longest): a word is shown where it stands opposite an equal word. So a text whose earlier
words still change does not hide that its later words are there already, and a word that happens to occur again later
is not taken for that later one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rapidfuzz.distance import Levenshtein

from tools.benchmarks.timeline import Revision

# What is replaced sooner than this is not seen: a screen draws sixty pictures a second.
FRAME_S = 1 / 60


@dataclass(frozen=True, slots=True)
class Shown:
    """A revision in words that compare."""

    wall_s: float
    words: tuple[str, ...]
    n_stable: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a revision's words stand in the final transcript."""

    # For each word its index in the transcript, None where that says another word there, or none.
    places: list[int | None]

    # How many words of the transcript the revision stands for.
    reach: int


@dataclass(frozen=True, slots=True)
class Emission:
    """One word of the final transcript: the numbers of the revisions that first show it, that from which on it is
    always promised, and that from which on it is always shown. None: never."""

    first: int | None
    stable: int | None
    settled: int | None


def visible(revisions: Sequence[Revision]) -> list[Revision]:
    """Return the revisions that a person can see, without those that are replaced within a frame."""
    kept = [a for a, b in pairwise(revisions) if b.wall_s - a.wall_s >= FRAME_S]
    return [*kept, *revisions[-1:]]


def in_words(revision: Revision, normalise: Callable[[str], str]) -> Shown:
    """Return a revision with its words normalised one by one, without those of which nothing is left."""
    words = [normalise(word) for word in revision.words]
    return Shown(
        wall_s=revision.wall_s,
        words=tuple(word for word in words if word),
        n_stable=sum(bool(word) for word in words[: revision.n_stable]),
    )


def place(words: Sequence[str], transcript: Sequence[str]) -> Placed:
    """Find where words that are shown stand in the final transcript."""
    same = 0
    for word, final in zip(words, transcript, strict=False):
        if word != final:
            break
        same += 1
    tail = words[same:]
    places: list[int | None] = [*range(same), *[None] * len(tail)]
    if not tail:
        return Placed(places, same)
    # A text can be as like to no more words than it has edits to reach them.
    most = min(len(transcript) - same, 2 * len(tail))
    rest = transcript[same : same + most]
    n = min(range(most + 1), key=lambda n: (Levenshtein.distance(tail, rest[:n]), -n))
    for edit in Levenshtein.opcodes(tail, rest[:n]):
        if edit.tag == "equal":
            for i, j in zip(range(edit.src_start, edit.src_end), range(edit.dest_start, edit.dest_end), strict=True):
                places[same + i] = same + j
    return Placed(places, same + n)


def emissions(
    shown: Sequence[Shown], placed: Sequence[Placed], n_words: int, begins_s: Sequence[float | None]
) -> list[Emission]:
    """Return when each of the `n_words` of the final transcript was shown.

    `begins_s` says when each begins to be spoken, where it is known: what is shown before that was not heard, and
    counts from then on only.
    """
    first: list[int | None] = [None] * n_words
    stable: list[int | None] = [None] * n_words
    settled: list[int | None] = [None] * n_words
    for number, (revision, at) in enumerate(zip(shown, placed, strict=True)):
        is_shown, is_stable = set[int](), set[int]()
        for i, where in enumerate(at.places):
            if where is None:
                continue
            begin_s = begins_s[where]
            if begin_s is not None and revision.wall_s < begin_s:
                continue
            is_shown.add(where)
            if i < revision.n_stable:
                is_stable.add(where)
        for word in range(n_words):
            if word not in is_shown:
                settled[word] = stable[word] = None
                continue
            first[word] = number if first[word] is None else first[word]
            settled[word] = number if settled[word] is None else settled[word]
            if word not in is_stable:
                stable[word] = None
            elif stable[word] is None:
                stable[word] = number
    return [Emission(*times) for times in zip(first, stable, settled, strict=True)]
