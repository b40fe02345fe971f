"""Which detected speech has no words."""

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.session.coverage import DetectedSpeech, Hole
from streamer.whisper.result import TimedWord


def speech(*spans: tuple[float, float]) -> DetectedSpeech:
    detected = DetectedSpeech()
    for start_s, end_s in spans:
        detected = detected.with_more(at(start_s), at(end_s))
    return detected


def at(time_s: float) -> int:
    return round(time_s * SAMPLE_RATE)


def word(start_s: float, end_s: float, text: str = " word", attended_s: float | None = None) -> TimedWord:
    attended = at(end_s if attended_s is None else attended_s)
    return TimedWord(text, (1,), at(start_s), at(end_s), 0.9, attended)


def holes(detected: DetectedSpeech, words: list[TimedWord], end_s: float) -> list[tuple[int, float, float]]:
    found = detected.holes(words, 0, at(end_s))
    return [(hole.index, hole.start / SAMPLE_RATE, hole.end / SAMPLE_RATE) for hole in found]


def test_neighbouring_speech_is_one_span_and_the_oldest_is_dropped() -> None:
    detected = speech((0.0, 1.0), (1.0, 2.0), (3.0, 4.0))
    assert detected.spans == ((0, at(2.0)), (at(3.0), at(4.0)))
    assert detected.between(at(1.5), at(3.25)) == at(0.75)
    assert detected.since(at(2.0)).spans == ((at(3.0), at(4.0)),)


def test_a_hole_is_before_between_or_behind_words() -> None:
    detected = speech((0.0, 9.0))
    words = [word(2.0, 2.5), word(2.5, 3.0), word(5.0, 5.5)]
    assert holes(detected, words, 9.0) == [(0, 0.0, 2.0), (2, 3.0, 5.0), (3, 5.5, 9.0)]
    assert next(detected.holes(words, 0, at(9.0))) == Hole(0, 0, at(2.0))


def test_silence_and_little_speech_are_no_hole() -> None:
    assert holes(speech((0.0, 1.4), (8.0, 9.0)), [word(8.0, 8.9)], 9.0) == []
    assert holes(speech((0.0, 2.0), (4.0, 5.0)), [word(0.0, 0.6), word(2.0, 2.4), word(4.2, 5.0)], 5.0) == []


@pytest.mark.parametrize(("spoken_s", "found"), [(0.9, []), (1.1, [(0, 0.0, 3.0)])])
def test_without_any_word_less_speech_is_a_hole(spoken_s: float, found: list[tuple[int, float, float]]) -> None:
    assert holes(speech((1.0, 1.0 + spoken_s)), [], 3.0) == found
    assert holes(speech((1.0, 1.0 + spoken_s)), [word(0.9, 1.2, ".")], 3.0) == [(1, *rest[1:]) for rest in found]


@pytest.mark.parametrize(("attended_s", "found"), [(0.5, (1, 1.0, 5.0)), (4.9, (0, 0.0, 3.9))])
def test_a_word_that_is_stretched_over_skipped_speech_covers_what_was_attended_to(
    attended_s: float, found: tuple[int, float, float]
) -> None:
    words = [word(0.0, 5.0, attended_s=attended_s), word(5.0, 5.5)]
    assert holes(speech((0.0, 5.5)), words, 5.5) == [found]


def test_a_number_may_take_its_time() -> None:
    assert holes(speech((0.0, 3.0)), [word(0.0, 3.0, " 1963")], 3.0) == []
