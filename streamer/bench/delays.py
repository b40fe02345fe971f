"""How long after each word live captions show it and promise it."""

from collections.abc import Sequence

from streamer.bench.compare import words
from streamer.events import Event, Final, Partial

# Speech ends at a silence of this length, in seconds.
PAUSE_S = 1.0


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
    return [word.compared for word in words([(0.0, text)])]
