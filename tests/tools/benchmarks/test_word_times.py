"""Times of the words of a reference, from what was heard."""

import json

import numpy as np
import pytest

from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, recording
from tools.benchmarks.files import normaliser
from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.word_times import STRETCH_S, Times, place_words, stretches, words_of


@pytest.mark.parametrize(
    ("text", "heard", "expected"),
    [
        ("Red, green.", [("red", (1.0, 1.5)), ("green", (1.5, 2.0))], [(1.0, 1.5), (1.5, 2.0)]),
        # Misheard words have a place, too.
        ("Red green.", [("read", (1.0, 1.5)), ("green", (1.5, 2.0))], [(1.0, 1.5), (1.5, 2.0)]),
        # What was not heard lies between its neighbours, or at an end of the recording.
        ("red green blue", [("red", (1.0, 2.0)), ("blue", (4.0, 5.0))], [(1.0, 2.0), (2.0, 3.0), (4.0, 5.0)]),
        ("red green", [("red", (1.0, 2.0))], [(1.0, 2.0), (2.0, 6.0)]),
        # A word that is two when it is normalised.
        (
            "well-known man",
            [("well", (1.0, 1.5)), ("known", (1.5, 2.0)), ("man", (2.0, 3.0))],
            [(1.0, 2.0), (2.0, 3.0)],
        ),
    ],
)
def test_words_are_placed(text: str, heard: list[tuple[str, Times]], expected: list[Times]) -> None:
    placed = place_words(text.split(), heard, 10.0, normaliser("en"))
    assert [word.word for word in placed] == text.split()
    np.testing.assert_allclose([(word.start, word.end) for word in placed], expected)


def test_stretches_fit_a_window_and_are_parted_at_pauses() -> None:
    words = [SpokenWord(f"{i}", i + (0.5 if i >= 20 else 0.0), i + 0.9 + (0.5 if i >= 20 else 0.0)) for i in range(60)]
    parts = list(stretches(words))
    assert [word for part in parts for word in part] == words
    assert all(part[-1].end - part[0].start <= STRETCH_S for part in parts)
    assert len(parts[0]) == 20
    assert [len(part) for part in stretches([SpokenWord("slow", 0.0, 40.0), SpokenWord("word", 40.0, 41.0)])] == [1, 1]
    assert list(stretches([])) == []


def test_the_words_of_a_known_text_are_placed_where_they_are_said(model: WhisperModel) -> None:
    sentences = json.loads(SAMPLE.with_suffix(".json").read_text(encoding="utf-8"))
    said = [start for sentence in sentences for start in sentence["words"]]
    text = " ".join(sentence["text"] for sentence in sentences)
    found = words_of(model, recording(), text, normaliser("en"), language="en")
    assert [word.word for word in found] == text.split()
    errors_s = [abs(word.start - start) for word, start in zip(found, said, strict=True)]
    assert sorted(errors_s)[len(errors_s) // 2] < 0.1
    assert sorted(errors_s)[len(errors_s) * 9 // 10] < 0.3
    assert max(errors_s) < 1.0  # a word may begin with the silence before it
