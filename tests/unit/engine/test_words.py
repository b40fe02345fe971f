"""What the decoder repeats, told by where it attended; where sentences end."""

from collections.abc import Sequence

import pytest

from streamer.audio.constants import SAMPLE_RATE
from streamer.engine.words import ends_sentence, find_repeated
from streamer.whisper.result import TimedWord


@pytest.mark.parametrize(
    ("attended_s", "reach_s", "repeated"),
    [
        ((0.5, 0.9, 1.4), 0.0, range(3, 3)),
        # It looks back by little, or for a single word, and goes on.
        ((0.5, 0.9, 0.85, 0.9, 1.4), 0.0, range(5, 5)),
        ((0.5, 0.9, 0.4, 1.4), 0.0, range(4, 4)),
        # The same words at the same places; and it goes on behind them.
        ((0.5, 0.9, 1.4, 0.5, 0.9, 1.4), 0.0, range(3, 6)),
        ((0.5, 0.9, 1.4, 0.5, 0.9, 1.4, 1.8), 0.0, range(3, 6)),
        # It begins with what it read for words that have settled.
        ((0.5, 0.9, 1.4), 0.9, range(2)),
        # Of the last word it is not known yet.
        ((0.5, 0.9, 0.5), 0.0, range(2, 3)),
        ((), 1.0, range(0)),
    ],
)
def test_what_is_repeated_is_found(attended_s: Sequence[float], reach_s: float, repeated: range) -> None:
    words = [TimedWord(" so", (1,), 0, 0, 0.9, round(time_s * SAMPLE_RATE), -0.1) for time_s in attended_s]
    assert find_repeated(words, round(reach_s * SAMPLE_RATE)) == repeated


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((" so", " it", "."), True),
        ((" so", " it."), True),
        ((" so", "?"), True),
        ((" so", " it", ","), False),
        ((" said", " Mr", "."), False),
        ((" the", " street", "."), True),
        ((".",), True),
    ],
)
def test_a_full_stop_ends_a_sentence_unless_it_abbreviates(texts: Sequence[str], expected: bool) -> None:
    words = [TimedWord(text, (1,), 0, 0, 1.0) for text in texts]
    assert ends_sentence(words, len(words) - 1) == expected
