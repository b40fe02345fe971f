"""Errors utterance by utterance: how many words more are wrong live than offline, and where words are lost."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from streamer.commands.figures import edits, interval
from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.text import Normaliser, align

# Speech after a silence this long is a new utterance.
PAUSE_S = 1.0

# The end of an utterance, whose words live text may lose.
TAIL_S = 2.0


@dataclass(frozen=True, slots=True)
class Utterance:
    """What is wrong with one utterance in the texts of a recording; None: there is no such text."""

    # Words of the reference; wrong words of the finals, of the finals with later corrections, and of the offline text.
    n_words: int
    streamed: int
    corrected: int
    offline: int | None = None

    # Words of the reference in the last TAIL_S, and how many of them are deleted; 0 if the times are unknown.
    n_tail: int = 0
    tail_lost: int = 0
    tail_lost_offline: int = 0

    # Whether its first word is deleted.
    first_lost: bool = False
    first_lost_offline: bool = False


def beginnings(words: Sequence[SpokenWord]) -> list[int]:
    """Return the indices of the words with which utterances begin."""
    return [i for i in range(len(words)) if i == 0 or words[i].start - words[i - 1].end >= PAUSE_S]


def split(
    reference: Sequence[str],
    words: Sequence[SpokenWord],
    texts: tuple[Sequence[str], Sequence[str], Sequence[str] | None],
    normalise: Normaliser,
) -> list[Utterance]:
    """Return the utterances of a recording; without the times of words the recording is one.

    An error belongs to the utterance of the word that is substituted, deleted, or behind an insertion.

    reference : what is said, in normalised words, at least one
    words : the same as it is written, if the times are known
    texts : normalised words of the finals, of the finals with later corrections, and of the offline text
    """
    placed = _place(reference, words, normalise)
    wrong = [edits([reference], [text]) if text is not None else [] for text in texts]
    n_wrong = [Counter(placed[i][0] for _, i in found) for found in wrong]
    lost = [{i for kind, i in found if kind == "delete"} for found in wrong]
    found = []
    for number in dict.fromkeys(number for number, _ in placed):
        own = [i for i, at in enumerate(placed) if at[0] == number]
        tail = {i for i in own if words and placed[i][1] > placed[own[-1]][1] - TAIL_S}
        found.append(
            Utterance(
                n_words=len(own),
                streamed=n_wrong[0][number],
                corrected=n_wrong[1][number],
                offline=None if texts[2] is None else n_wrong[2][number],
                n_tail=len(tail),
                tail_lost=len(tail & lost[0]),
                tail_lost_offline=len(tail & lost[2]),
                first_lost=own[0] in lost[0],
                first_lost_offline=own[0] in lost[2],
            )
        )
    return found


def _place(reference: Sequence[str], words: Sequence[SpokenWord], normalise: Normaliser) -> list[tuple[int, float]]:
    """Return for each word of the reference the number of its utterance and its end in seconds."""
    begins = beginnings(words)
    parts = [(part, k) for k, word in enumerate(words) for part in normalise(word.word).split()]
    # Several words may be one number in the reference: what has no counterpart stands with the word before it.
    same = dict(align(reference, [part for part, _ in parts]).pairs)
    placed: list[tuple[int, float]] = []
    at = (0, words[0].end if words else 0.0)
    for i in range(len(reference)):
        if i in same:
            k = parts[same[i]][1]
            at = (bisect_right(begins, k) - 1, words[k].end)
        placed.append(at)
    return placed


def summary(utterances: Sequence[Utterance]) -> dict[str, float | None]:
    """Return the figures of utterances by name: `delta_...` is the WER less that of the offline text, in its unit."""
    beside = [(u, u.offline) for u in utterances if u.offline is not None]
    n_words = [u.n_words for u, _ in beside]
    figures: dict[str, float | None] = {"utterances": len(utterances)}
    for name in ("streamed", "corrected"):
        more = [getattr(u, name) - offline for u, offline in beside]
        figures[f"delta_{name}"] = sum(more) / sum(n_words) if beside else None
        figures[f"delta_{name}_low"], figures[f"delta_{name}_high"] = interval(more, n_words)
    timed = [u for u in utterances if u.n_tail]
    both = timed if len(beside) == len(utterances) else []
    for suffix, known in (("", timed), ("_offline", both)):
        n_tail = sum(u.n_tail for u in known)
        n_lost, n_first = (sum(getattr(u, f"{name}{suffix}") for u in known) for name in ("tail_lost", "first_lost"))
        figures[f"tail_loss{suffix}"] = n_lost / n_tail if known else None
        figures[f"first_word_loss{suffix}"] = n_first / len(known) if known else None
    return figures
