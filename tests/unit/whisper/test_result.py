"""What a decoder has to say, and what is taken for what it does not say."""

import math

import pytest

from streamer.whisper.result import TimedWord, has_words, is_mark

# Notes and marks in brackets, letters and digits of any script.
WORDS = """5% C++ A. I ½ はい。 한국어 ไทย नमस्ते שלום مرحبا ٣ 醋 （拍手）はい [Music"""
SENTENCES = [" und (lacht) ja", "[Music] Hello", "2 * 3 * 4", "(he said", "♪ la la ♪"]
MARKS = """. … ? ♪ 🎵 ♪♪♪ 。 ！？ * ¿ % ++ [Music] (applause) *sighs* （拍手） 【音楽】"""
NOTES = ["", " ", " ...", "- -", " [ Silence ]", "[Music] ...", "♪ [Music] ♪", "[a] (b)."]


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


@pytest.mark.parametrize("text", [*WORDS.split(), *SENTENCES])
def test_letters_and_digits_of_any_script_are_words(text: str) -> None:
    assert has_words(text)


@pytest.mark.parametrize("text", [*MARKS.split(), *NOTES])
def test_punctuation_and_notes_are_not_words(text: str) -> None:
    assert not has_words(text)


@pytest.mark.parametrize(
    ("text", "mark"), [(",", True), ('."', True), ("।", True), (" -", False), ("-x", False), ("ी", False), ("", True)]
)
def test_a_mark_is_punctuation_without_a_space_and_not_the_sign_of_a_letter(text: str, mark: bool) -> None:
    assert is_mark(text) == mark
