"""Times of the words of a reference, from what was heard."""

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.corpus import Recording
from tools.benchmarks.files import normaliser
from tools.benchmarks.word_times import Times, place_words, with_times


def recording(text: str) -> Recording:
    return Recording("any", np.zeros(10 * SAMPLE_RATE, dtype=np.float32), text, (), "held", "people", "", "", 0)


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
    placed = place_words(recording(text), heard, normaliser("en"))
    assert [word.word for word in placed] == text.split()
    np.testing.assert_allclose([(word.start, word.end) for word in placed], expected)


def test_nothing_is_loaded_when_the_times_are_known() -> None:
    silent = recording("")
    assert with_times([silent], lambda: pytest.fail("loaded"), normaliser("en")) == [silent]
