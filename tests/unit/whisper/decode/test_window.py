"""How a window is decoded: what the sequence begins with, where it ends, and what is kept of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.errors import InferenceError
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.search import loop_length
from streamer.whisper.decode.timing import to_hypothesis
from streamer.whisper.decode.window import decode_window, detect_language, max_tokens_for, rules_for
from tests.unit.whisper.decode.scripted import (
    BEGIN,
    CONFIG,
    ENGLISH,
    EOT,
    LIVE,
    N_VOCAB,
    TOKENIZER,
    ScriptedDecoder,
    say,
)
from tests.unit.whisper.tokens.published import with_added

# As files are decoded, without times.
PLAIN = DecodingSettings(without_timestamps=True)


@pytest.mark.parametrize(
    ("language", "task", "written_in"),
    [("ja", "transcribe", "ja"), ("de", "transcribe", "en"), ("ja", "translate", "en")],
)
def test_hot_words_are_spelled_as_the_windows_text_is(language: str, task: str, written_in: str) -> None:
    hot_words = HotWords(TOKENIZER, ["NPU"])
    options = replace(LIVE, filters=(hot_words,))
    rules = rules_for(TOKENIZER, options, WindowTask(language=language, task=task), N_VOCAB)
    assert hot_words.in_language(written_in) in rules
    assert hot_words.in_language("ja") is not hot_words.in_language("en")


def test_no_special_token_comes_inside_a_text() -> None:
    for token in range(EOT + 1, BEGIN + 1):
        assert token not in say([token])[0].tokens


@pytest.mark.parametrize("live", [False, True])
def test_only_text_comes_from_behind_the_times(tmp_path: Path, live: bool) -> None:
    tokenizer = with_added(tmp_path, {"[UM]": N_VOCAB, "<|music|>": N_VOCAB + 1}, N_VOCAB + 4)
    suppress, *_ = rules_for(tokenizer, DecodeOptions(generation=CONFIG, live=live), ENGLISH, N_VOCAB + 4)
    logits = np.zeros(N_VOCAB + 4, dtype=np.float32)
    suppress.apply(logits, [])
    assert np.isfinite(logits[N_VOCAB:]).tolist() == [True, False, False, False]
    assert np.isfinite(logits[:EOT]).all()


def test_the_prompt_makes_room_for_a_long_beginning() -> None:
    given = tuple(range(100, 500))
    window, decoder = say([1], prompt=tuple(range(300)), begins_with=given)
    assert window.tokens == [*given, 1]
    assert max(decoder.calls) <= 448


def test_a_beginning_that_nobody_would_say_comes_out_all_the_same() -> None:
    assert say([7, 8], begins_with=(400, 401))[0].tokens == [400, 401, 7, 8]
    # The end of the text may follow at once.
    assert say([], begins_with=(400, 401))[0].tokens == [400, 401]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_no_more_than_max_tokens_are_sampled(n: int) -> None:
    window, decoder = say(range(100, 200), begins_with=(1, 2), max_tokens=n)
    assert window.tokens == [1, 2, *range(100, 100 + n)]
    assert len(window.log_probs) == 2 + n
    assert len(decoder.fed) == 4 + 2 + max(0, n - 1)


@pytest.mark.parametrize("n_given", [0, 10, 443, 444])
def test_the_sequence_ends_where_it_is_full(n_given: int) -> None:
    script = [100 + i % 300 for i in range(600)]
    window, _ = say(script, begins_with=tuple(script[:n_given]))
    assert len(window.tokens) == 448 - 4 + 1  # the last is not fed any more
    found = to_hypothesis(window, TOKENIZER, "en", N_SAMPLES).words
    assert all(0 <= word.start_samples <= word.end_samples <= N_SAMPLES for word in found)


@pytest.mark.parametrize("n_given", [445, 448, 600])
def test_a_beginning_that_the_sequence_has_no_room_for_is_the_result(n_given: int) -> None:
    given = tuple(TOKENIZER.encode(" the committee" * n_given)[:n_given])
    window, decoder = say([7, 8], prompt=(1, 2, 3), begins_with=given)
    assert decoder.n_fed == 448
    assert (window.tokens, window.n_sampled, window.n_begins_with) == (list(given), 0, n_given)
    assert len(window.log_probs) == n_given
    assert window.attention.shape[1] == 4 + n_given
    found = to_hypothesis(window, TOKENIZER, "en", N_SAMPLES).words
    assert tuple(token for word in found for token in word.tokens) == given
    assert all(0 <= word.start_samples <= word.end_samples <= N_SAMPLES for word in found)
    assert all(0 <= word.probability <= 1 for word in found)


def test_decoding_stops_when_it_is_cancelled() -> None:
    answers = iter([False, False, False, True])
    decoder = ScriptedDecoder(range(100, 200))
    window = decode_window(decoder, TOKENIZER, LIVE, ENGLISH, lambda: next(answers))
    assert window.tokens == [100, 101, 102]


@pytest.mark.parametrize(
    ("script", "given", "tokens"),
    [
        ([1, 2, *[10, 11, 12, 13] * 50], (), [1, 2, 10, 11, 12, 13]),
        ([1, *[10] * 100], (), [1, 10]),
        # Nothing is taken from what the text had to begin with.
        ([10] * 20, (10,) * 18, [10] * 18),
    ],
)
def test_a_loop_is_cut_to_its_first_round(script: list[int], given: tuple[int, ...], tokens: list[int]) -> None:
    window, decoder = say(script, begins_with=given)
    assert (window.looped, window.tokens, len(window.log_probs)) == (True, tokens, len(tokens))
    assert sum(decoder.calls) < 30 + len(given)
    window, _ = say(script, options=DecodeOptions(settings=PLAIN, generation=CONFIG), begins_with=given)
    assert (window.looped, window.tokens) == (False, [*given, *script])


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([], 0),
        ([5] * 4, 0),  # "no, no, no, no" is speech
        ([5] * 15, 0),
        ([5] * 16, 1),
        ([1, 2] * 7, 0),
        ([9, *[1, 2] * 8], 2),
        ([*[1, 2] * 8, 9], 0),
        ([*range(24)] * 4, 24),
        ([*range(24)] * 3, 0),
        ([*range(25)] * 4, 0),
        ([*range(5)] * 3 + [*range(4)], 0),
    ],
)
def test_what_is_a_loop(tokens: list[int], length: int) -> None:
    assert loop_length(tokens) == length


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_logits_that_are_no_numbers_are_an_error_of_the_device(temperature: float) -> None:
    class Broken(ScriptedDecoder):
        def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
            logits, attention = super().feed(tokens, n_silent)
            return (logits * np.nan if len(self.calls) > 2 else logits), attention

    with pytest.raises(InferenceError):
        decode_window(Broken([1, 2, 3]), TOKENIZER, LIVE, replace(ENGLISH, temperature=temperature))
    nothing = np.full((1, 1, N_VOCAB), np.nan, dtype=np.float32)
    with pytest.raises(InferenceError):
        detect_language(SimpleNamespace(begin=lambda: None, feed=lambda *_: (nothing, nothing)), TOKENIZER)


@pytest.mark.parametrize("drawn", [[5, 6, EOT, 5, EOT], [5, EOT, 5, 6, EOT]])
def test_of_several_texts_that_are_drawn_the_likeliest_is_kept(drawn: list[int]) -> None:
    draws, task = iter(drawn), replace(ENGLISH, temperature=1.0)
    window = decode_window(ScriptedDecoder([]), TOKENIZER, replace(LIVE, best_of=2), task, draw=lambda _: next(draws))
    assert (window.tokens, list(draws)) == ([5], [])


def test_speech_has_at_most_a_token_for_each_encoder_position() -> None:
    assert max_tokens_for(0) == 16
    assert max_tokens_for(2 * SAMPLE_RATE) == 16 + 100


def test_a_hypothesis_says_what_was_seen() -> None:
    window, _ = say(TOKENIZER.encode(" one two"))
    hypothesis = to_hypothesis(replace(window, no_speech_prob=0.25, looped=True), TOKENIZER, "en", SAMPLE_RATE)
    assert [word.text for word in hypothesis.words] == [" one", " two"]
    assert (hypothesis.language, hypothesis.no_speech_prob, hypothesis.looped) == ("en", 0.25, True)
    assert hypothesis.avg_logprob == window.avg_logprob
