"""The language of a window, which depends on nothing that was decoded before."""

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.whisper.decode.window import detect_language
from tests.unit.whisper.support import Untyped
from tests.unit.whisper.tokens.published import MULTILINGUAL, load

TOKENIZER = load(MULTILINGUAL)


class Window:
    """Is German at the start of a transcript, a little Dutch, and English after anything else."""

    def __init__(self) -> None:
        self.fed: list[int] = []

    def begin(self) -> None:
        self.fed = []

    def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
        self.fed += tokens
        logits = np.full(TOKENIZER.n_vocab, -9, np.float32)
        logits[0] = 9  # a token of text
        scores = {"de": 5, "nl": 4} if self.fed == [TOKENIZER.special.start_of_transcript] else {"en": 5}
        for language, score in scores.items():
            logits[TOKENIZER.languages[language]] = score
        return logits[np.newaxis, np.newaxis], np.zeros((1, 1, 1, 1500), np.float32)


@pytest.mark.parametrize(
    ("among", "expected"), [((), "de"), (("de", "nl"), "de"), (("nl", "en"), "nl"), (("en",), "en")]
)
def test_the_likeliest_language_is_found_among_some_or_all(among: Collection[str], expected: str) -> None:
    decoder: Untyped = Window()
    decoder.feed([1, 2, 3])
    language, probabilities = detect_language(decoder, TOKENIZER, among)
    assert language == expected
    assert set(probabilities) == set(among or TOKENIZER.languages)
    assert sum(probabilities.values()) == pytest.approx(1)
    assert max(probabilities.values()) == probabilities[expected]
