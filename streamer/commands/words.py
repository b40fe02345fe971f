"""Words of transcripts: how they compare, and how long after each word live captions show it and promise it."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamer.events import Event, Final, Partial
from streamer.languages import WITHOUT_SPACES

# Each character of a script without spaces counts as a word, so that the error rate is that of characters.
_LETTERS = rf"[^\W{WITHOUT_SPACES}]+"
_SIGN = rf"[^\w\s{WITHOUT_SPACES}]"
# Signs in front are looked at from the first of them only, or a million of them would be looked at from each.
_WORD = re.compile(rf"(?:(?<!{_SIGN}){_SIGN}+)?([{WITHOUT_SPACES}]|{_LETTERS}(?:['’]{_LETTERS})*){_SIGN}*")

# Speech ends at a silence of this length, in seconds.
PAUSE_S = 1.0


class ComparedWord(NamedTuple):
    """A word as it stands in a text, with the signs at it; and as it is compared."""

    shown: str
    compared: str
    start_s: float | None = None  # start of its segment in seconds, if it is the first word of one


def words(segments: Sequence[tuple[float, str]]) -> list[ComparedWord]:
    """Split texts into words that compare: without case and punctuation, of `twenty-one` two.

    segments : start in seconds, and text, of each
    """
    found: list[ComparedWord] = []
    for start_s, text in segments:
        for k, match in enumerate(_WORD.finditer(text)):
            found.append(ComparedWord(match[0], match[1].casefold().replace("’", "'"), start_s if k == 0 else None))
    return found


def compared(text: Iterable[ComparedWord]) -> list[str]:
    """Return words as they are compared."""
    return [word.compared for word in text]


def word_delays(events: Sequence[tuple[float, Event]]) -> dict[str, list[float]]:
    """Return the delays of a recording's words in seconds, from the end of each as its final places it.

    `first_seen` is the delay of the first text that has the word at its place among the others, `stable` that of the
    first stable prefix with it, and `finalisation` is `stable` of the words that a pause of `PAUSE_S` follows.

    events : of one session, in order; each with the seconds from the first audio to its publication
    """
    said: list[str] = []
    times: list[tuple[float, float]] = []
    # When each text was published, the index of its first word, its words, and how many of them are stable.
    shown: list[tuple[float, int, list[str], int]] = []
    for at_s, event in events:
        first = len(said)
        if isinstance(event, Partial):
            shown.append((at_s, first, _words(event.text), len(_words(event.text[: event.stable]))))
        elif isinstance(event, Final):
            for word in event.words:
                parts = _words(word.word)
                said += parts
                times += [(word.start, word.end)] * len(parts)
            shown.append((at_s, first, said[first:], len(said) - first))
    seen_s: dict[int, float] = {}
    stable_s: dict[int, float] = {}
    for at_s, first, texts, n_stable in shown:
        for k, (text, final) in enumerate(zip(texts, said[first : first + len(texts)], strict=False)):
            if text == final:
                seen_s.setdefault(first + k, at_s)
                if k < n_stable:
                    stable_s.setdefault(first + k, at_s)
    ends = [k for k in range(len(said)) if k + 1 == len(said) or times[k + 1][0] - times[k][1] >= PAUSE_S]
    return {
        "first_seen": [seen_s[k] - times[k][1] for k in range(len(said))],
        "stable": [stable_s[k] - times[k][1] for k in range(len(said))],
        "finalisation": [stable_s[k] - times[k][1] for k in ends],
    }


def _words(text: str) -> list[str]:
    return compared(words([(0.0, text)]))
