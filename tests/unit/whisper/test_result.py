"""What a decoder has to say, what is taken for what it does not say, and which texts people can say in a time."""

import math

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.whisper.plausible import can_be_spoken, repeats
from streamer.whisper.result import TimedWord, has_words, is_mark
from tests.unit.whisper.support import table

TEXTS = table("texts")


def test_what_was_not_measured_follows_from_the_rest() -> None:
    word = TimedWord(" word", (1, 2, 3), 160, 320, 0.5)
    assert word.attended_samples == 320
    assert word.log_prob == pytest.approx(3 * math.log(0.5))
    assert TimedWord("", (), 160, 320, 0.5).log_prob == 0
    assert TimedWord(" word", (1,), 160, 320, 0.0).log_prob == -math.inf


def test_what_was_measured_stays() -> None:
    word = TimedWord(" word", (1, 2, 3), 160, 320, 0.5, 240, -4.0)
    assert (word.attended_samples, word.log_prob) == (240, -4.0)
    assert word.likelihood == pytest.approx(math.exp(-4 / 3))
    assert word.moved_by(10) == TimedWord(" word", (1, 2, 3), 170, 330, 0.5, 250, -4.0)
    assert word.duration_samples == 160


def test_letters_and_digits_of_any_script_are_words_and_punctuation_and_notes_are_none() -> None:
    words, marks = (TEXTS["result"][kind] for kind in ("words", "marks"))
    assert [text for text in (*words, *marks) if has_words(text)] == words


@pytest.mark.parametrize(
    ("text", "mark"), [(",", True), ('."', True), ("।", True), (" -", False), ("-x", False), ("ी", False), ("", True)]
)
def test_a_mark_is_punctuation_without_a_space_and_not_the_sign_of_a_letter(text: str, mark: bool) -> None:
    assert is_mark(text) == mark


@pytest.mark.parametrize(("text", "duration_s", "expected"), TEXTS["plausible"]["spoken"])
def test_what_can_be_spoken(text: str, duration_s: float, expected: bool) -> None:
    assert can_be_spoken(text, round(duration_s * SAMPLE_RATE)) == expected


@pytest.mark.parametrize(("text", "expected"), TEXTS["plausible"]["repeats"])
def test_what_repeats_the_text_before_it(text: str, expected: bool) -> None:
    assert repeats(text, "They said the mill and the river was sold to the baker.") == expected
