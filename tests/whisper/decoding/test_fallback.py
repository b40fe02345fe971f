"""When a text is not to be trusted, and what is tried then."""

import math
from collections.abc import Sequence

import pytest

from streamer.whisper.decoding import fallback
from streamer.whisper.decoding.fallback import FallbackOptions, decode_with_fallback, has_failed, token_entropy
from streamer.whisper.decoding.window import DecodedWindow, WindowOptions
from streamer.whisper.tokenizer import Tokenizer
from tests.whisper.support import NANO, Untyped

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
SPEECH = TOKENIZER.encode(" The committee of cabinet officers regards such impromptu stops as a danger.")
LOOP = TOKENIZER.encode(" and so on and so on" * 20)


def window(tokens: Sequence[int], **keywords: float) -> DecodedWindow:
    fields: Untyped = {"avg_logprob": -0.3, "no_speech_prob": 0.1, **keywords}
    return DecodedWindow(tokens=list(tokens), log_probs=[], attention=Untyped, n_start=4, **fields)


class TestFailure:
    def test_speech_is_trusted(self) -> None:
        assert not has_failed(window(SPEECH), TOKENIZER, FallbackOptions())

    def test_a_loop_is_not(self) -> None:
        assert has_failed(window(LOOP), TOKENIZER, FallbackOptions())
        assert not has_failed(window(LOOP), TOKENIZER, FallbackOptions(compression_ratio_threshold=None))

    def test_an_unlikely_text_is_not(self) -> None:
        doubtful = window(SPEECH, avg_logprob=-1.2)
        assert has_failed(doubtful, TOKENIZER, FallbackOptions())
        assert not has_failed(doubtful, TOKENIZER, FallbackOptions(logprob_threshold=None))

    def test_silence_is_no_failure(self) -> None:
        silence = window(SPEECH, avg_logprob=-1.2, no_speech_prob=0.7)
        assert not has_failed(silence, TOKENIZER, FallbackOptions())
        assert has_failed(silence, TOKENIZER, FallbackOptions(no_speech_threshold=None))
        # As in the reference, even a loop, where the text is unlikely too.
        assert not has_failed(window(LOOP, avg_logprob=-1.2, no_speech_prob=0.7), TOKENIZER, FallbackOptions())

    def test_tokens_of_low_entropy_are_not_where_it_is_asked_for(self) -> None:
        few = window([5, 6] * 40)
        lax = FallbackOptions(compression_ratio_threshold=None)
        assert not has_failed(few, TOKENIZER, lax)
        strict = FallbackOptions(compression_ratio_threshold=None, entropy_threshold=2.4)
        assert has_failed(few, TOKENIZER, strict)
        assert not has_failed(window(SPEECH), TOKENIZER, strict)


def test_entropy_is_that_of_the_last_32_tokens() -> None:
    assert token_entropy([]) == 0
    assert token_entropy([7] * 50) == 0
    assert token_entropy([*range(1000), *[1, 2] * 16]) == pytest.approx(math.log(2))
    assert token_entropy(range(500)) == pytest.approx(math.log(32))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[WindowOptions]:
    """What was tried, each time with a text that fails."""
    tried: list[WindowOptions] = []

    def decode(decoder: Untyped, tokenizer: Untyped, config: Untyped, options: WindowOptions, *_: object) -> Untyped:
        tried.append(options)
        return window(LOOP if len(tried) < 3 else SPEECH)

    monkeypatch.setattr(fallback, "decode_window", decode)
    return tried


def test_temperatures_are_tried_until_a_text_is_trusted(attempts: list[WindowOptions]) -> None:
    options = WindowOptions(language="en", n_beams=5, patience=2.0, best_of=3)
    found = decode_with_fallback(Untyped, TOKENIZER, Untyped, options, FallbackOptions())
    assert found.tokens == SPEECH
    assert [attempt.temperature for attempt in attempts] == [0.0, 0.2, 0.4]
    assert [attempt.n_beams for attempt in attempts] == [5, 1, 1]
    assert all(attempt.best_of == 3 for attempt in attempts)


def test_the_last_text_counts_where_none_is_trusted(attempts: list[WindowOptions]) -> None:
    two = FallbackOptions(temperatures=(0.0, 1.0))
    found = decode_with_fallback(Untyped, TOKENIZER, Untyped, WindowOptions(language="en"), two)
    assert found.tokens == LOOP
    assert len(attempts) == 2
