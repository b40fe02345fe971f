"""What the decoder repeats, told by where it attended; where sentences end."""

from collections.abc import Sequence

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.session.task import Span
from streamer.session.words import ends_sentence, find_repeated, placed
from streamer.whisper.result import TimedWord


@pytest.mark.parametrize(
    ("attended_s", "known_s", "repeated"),
    [
        ((0.5, 0.9, 1.4), (), range(3, 3)),
        # It looks back by little, or for a single word, and goes on.
        ((0.5, 0.9, 0.85, 0.9, 1.4), (), range(5, 5)),
        ((0.5, 0.9, 0.4, 1.4), (), range(4, 4)),
        # The same words at the same places; and it goes on behind them.
        ((0.5, 0.9, 1.4, 0.5, 0.9, 1.4), (), range(3, 6)),
        ((0.5, 0.9, 1.4, 0.5, 0.9, 1.4, 1.8), (), range(3, 6)),
        # It begins with what it read for words that are stable.
        ((0.5, 0.9, 1.4), (0.5, 0.9), range(2)),
        # Of the last word it is not known yet.
        ((0.5, 0.9, 0.5), (), range(2, 3)),
        # It leaps ahead for one word, which may be stable, and comes back to what is new.
        ((3.5, 0.9, 1.4, 1.8, 4.0), (), range(5, 5)),
        ((0.9, 1.4, 1.8), (3.5,), range(3, 3)),
        ((0.5, 3.5, 0.9, 1.4, 1.8), (), range(5, 5)),
        ((0.9, 1.4, 1.8), (0.5, 3.5), range(3, 3)),
        # It repeats words from before a pause, and words behind a leap.
        ((0.5, 0.9, 3.5, 0.5, 0.9, 3.5), (), range(3, 6)),
        ((0.5, 0.9), (0.5, 0.9, 3.5), range(2)),
        ((0.5, 3.5, 0.9, 1.4, 0.9, 1.4, 1.8), (), range(4, 6)),
        ((), (1.0,), range(0)),
    ],
)
def test_what_is_repeated_is_found(attended_s: Sequence[float], known_s: Sequence[float], repeated: range) -> None:
    def attending(times_s: Sequence[float]) -> list[TimedWord]:
        return [TimedWord(" so", (1,), 0, 0, 0.9, round(time_s * SAMPLE_RATE), -0.1) for time_s in times_s]

    assert find_repeated(attending(attended_s), attending(known_s)) == repeated


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


@pytest.mark.parametrize(
    ("where", "place"), [((-5, 100, 90), (1_000, 1_100, 1_090)), ((100, 900, 950), (1_100, 1_500, 1_500))]
)
def test_a_word_is_placed_within_its_window(where: tuple[int, int, int], place: tuple[int, int, int]) -> None:
    span = Span(utterance=1, start=1_000, end=1_500, last=False, pause=False, first_word=0, issued_s=0.0)
    word = placed(TimedWord(" so", (1,), where[0], where[1], 0.9, where[2]), span)
    assert (word.start_samples, word.end_samples, word.attended_samples) == place
