"""When a text is not to be trusted, and what is tried then."""

import math
from collections.abc import Sequence

import pytest

from streamer.settings.table import DecodingSettings
from streamer.whisper.decode import fallback
from streamer.whisper.decode.fallback import decode_with_fallback, has_failed, is_loop, token_entropy
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO, Untyped

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
SPEECH = TOKENIZER.encode(" The committee of cabinet officers regards such impromptu stops as a danger.")
LOOP = TOKENIZER.encode(" and so on and so on" * 20)
FEW = [5, 6] * 40

UNLIKELY = {"avg_logprob": -1.2}
SILENCE = {"avg_logprob": -1.2, "no_speech_prob": 0.7}


def window(tokens: Sequence[int], **fields: Untyped) -> DecodedWindow:
    given: Untyped = {"avg_logprob": -0.3, "no_speech_prob": 0.1, **fields}
    return DecodedWindow(tokens=list(tokens), log_probs=[], attention=Untyped, n_start=4, **given)


def climbing(*temperatures: float, **settings: Untyped) -> DecodeOptions:
    return DecodeOptions(settings=DecodingSettings(**settings), generation=Untyped, temperatures=temperatures)


@pytest.mark.parametrize(
    ("tokens", "fields", "changes", "failed"),
    [
        (SPEECH, {}, {}, False),
        (LOOP, {}, {}, True),
        (LOOP, {}, {"compression_ratio_threshold": None}, False),
        # A loop that was cut to its first round is one.
        (SPEECH, {"looped": True}, {"compression_ratio_threshold": None, "logprob_threshold": None}, True),
        (SPEECH, UNLIKELY, {}, True),
        (SPEECH, UNLIKELY, {"logprob_threshold": None}, False),
        (SPEECH, SILENCE, {}, False),
        (SPEECH, SILENCE, {"no_speech_threshold": None}, True),
        # As in the reference, even a loop is silence if the text is unlikely too.
        (LOOP, SILENCE, {}, False),
        (FEW, {}, {"compression_ratio_threshold": None}, False),
        (FEW, {}, {"compression_ratio_threshold": None, "entropy_threshold": 2.4}, True),
        (SPEECH, {}, {"entropy_threshold": 2.4}, False),
    ],
)
def test_what_is_not_to_be_trusted(
    tokens: list[int], fields: dict[str, Untyped], changes: dict[str, Untyped], failed: bool
) -> None:
    found, settings = window(tokens, **fields), DecodingSettings(**changes)
    assert has_failed(found, loops=is_loop(found, TOKENIZER, settings), settings=settings) == failed


def test_entropy_is_that_of_the_last_32_tokens() -> None:
    assert token_entropy([]) == 0
    assert token_entropy([7] * 50) == 0
    assert token_entropy([*range(1000), *[1, 2] * 16]) == pytest.approx(math.log(2))
    assert token_entropy(range(500)) == pytest.approx(math.log(32))


def test_temperatures_are_tried_until_a_text_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[WindowTask] = []

    def decode(decoder: Untyped, tokenizer: Untyped, options: Untyped, task: WindowTask, *_: object) -> Untyped:
        tried.append(task)
        return window(LOOP if len(tried) < 3 else SPEECH)

    monkeypatch.setattr(fallback, "decode_window", decode)
    task = WindowTask(language="en", prompt=(1, 2))
    assert decode_with_fallback(Untyped, TOKENIZER, climbing(0.0, 0.2, 0.4, 0.6), task).tokens == SPEECH
    assert [attempt.temperature for attempt in tried] == [0.0, 0.2, 0.4]
    assert all(attempt.prompt == task.prompt for attempt in tried)


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
def test_if_all_fail_the_best_text_counts_or_the_last(
    said: list[DecodedWindow], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for keep_failed, expected in (("best", said[best]), ("last", said[-1])):
        texts = iter(said)
        monkeypatch.setattr(fallback, "decode_window", lambda *_, texts=texts: next(texts))
        three = climbing(0.0, 0.2, 1.0, keep_failed=keep_failed)
        found = decode_with_fallback(Untyped, TOKENIZER, three, WindowTask(language="en"))
        assert found is expected
        assert found.failed
