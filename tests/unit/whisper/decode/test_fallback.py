"""When a text is not to be trusted, and what is tried then."""

import dataclasses
import math
from collections.abc import Sequence

import pytest

from streamer.settings.table import DecodingSettings
from streamer.whisper.decode import fallback
from streamer.whisper.decode.fallback import FallbackOptions, decode_with_fallback, has_failed, is_loop, token_entropy
from streamer.whisper.decode.window import DecodedWindow, WindowOptions
from streamer.whisper.options import fallback_options
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO, Untyped

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
SPEECH = TOKENIZER.encode(" The committee of cabinet officers regards such impromptu stops as a danger.")
LOOP = TOKENIZER.encode(" and so on and so on" * 20)


def window(tokens: Sequence[int], **keywords: float) -> DecodedWindow:
    fields: Untyped = {"avg_logprob": -0.3, "no_speech_prob": 0.1, **keywords}
    return DecodedWindow(tokens=list(tokens), log_probs=[], attention=Untyped, n_start=4, **fields)


def usual(**changes: Untyped) -> FallbackOptions:
    return dataclasses.replace(fallback_options(DecodingSettings()), **changes)


def failed(found: DecodedWindow, options: FallbackOptions) -> bool:
    return has_failed(found, loops=is_loop(found, TOKENIZER, options), fallback=options)


class TestFailure:
    def test_speech_is_trusted(self) -> None:
        assert not failed(window(SPEECH), usual())

    def test_a_loop_is_not(self) -> None:
        assert failed(window(LOOP), usual())
        assert not failed(window(LOOP), usual(compression_ratio_threshold=None))

    def test_a_loop_that_was_cut_to_its_first_round_is_not(self) -> None:
        cut = dataclasses.replace(window(SPEECH), looped=True)
        assert failed(cut, usual(compression_ratio_threshold=None, logprob_threshold=None))

    def test_an_unlikely_text_is_not(self) -> None:
        doubtful = window(SPEECH, avg_logprob=-1.2)
        assert failed(doubtful, usual())
        assert not failed(doubtful, usual(logprob_threshold=None))

    def test_silence_is_no_failure(self) -> None:
        silence = window(SPEECH, avg_logprob=-1.2, no_speech_prob=0.7)
        assert not failed(silence, usual())
        assert failed(silence, usual(no_speech_threshold=None))
        # As in the reference, even a loop, where the text is unlikely too.
        assert not failed(window(LOOP, avg_logprob=-1.2, no_speech_prob=0.7), usual())

    def test_tokens_of_low_entropy_are_not_where_it_is_asked_for(self) -> None:
        few = window([5, 6] * 40)
        lax = usual(compression_ratio_threshold=None)
        assert not failed(few, lax)
        strict = usual(compression_ratio_threshold=None, entropy_threshold=2.4)
        assert failed(few, strict)
        assert not failed(window(SPEECH), strict)


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
    found = decode_with_fallback(Untyped, TOKENIZER, Untyped, options, usual())
    assert found.tokens == SPEECH
    assert [attempt.temperature for attempt in attempts] == [0.0, 0.2, 0.4]
    assert [attempt.n_beams for attempt in attempts] == [5, 1, 1]
    assert all(attempt.best_of == 3 for attempt in attempts)


@pytest.mark.parametrize(
    ("said", "best"),
    [
        ([window(SPEECH, avg_logprob=p) for p in (-1.4, -1.2, -4.3)], 1),
        # A loop is probable, and no text.
        ([window(LOOP, avg_logprob=-0.1), window(SPEECH, avg_logprob=-1.3), window(SPEECH, avg_logprob=-4.3)], 1),
        ([window(LOOP, avg_logprob=p) for p in (-0.1, -0.3, -0.2)], 0),
        # Of equals, the first.
        ([window(SPEECH, avg_logprob=-2.0) for _ in range(3)], 0),
    ],
)
def test_the_best_text_counts_if_all_fail(
    said: list[DecodedWindow], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for keep_last, expected in ((False, said[best]), (True, said[-1])):
        texts = iter(said)
        monkeypatch.setattr(fallback, "decode_window", lambda *_, texts=texts: next(texts))
        three = usual(temperatures=(0.0, 0.2, 1.0), keep_last=keep_last)
        found = decode_with_fallback(Untyped, TOKENIZER, Untyped, WindowOptions(language="en"), three)
        assert found is expected
        assert found.failed


def test_the_last_text_is_kept_where_the_settings_say_so() -> None:
    assert fallback_options(DecodingSettings(keep_failed="last")).keep_last
    assert not fallback_options(DecodingSettings()).keep_last
