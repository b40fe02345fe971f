"""Decoding against transformers' and openai-whisper's."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
import torch
import whisper.decoding
import whisper.utils
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.errors import InferenceError
from streamer.whisper.decode.filters import TimestampRules
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.search import loop_length
from streamer.whisper.decode.timing import to_hypothesis
from streamer.whisper.decode.window import (
    DecodedWindow,
    WindowOptions,
    decode_window,
    detect_language,
    max_tokens_for,
    rules_for,
)
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.model import WhisperModel
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO, SAMPLE, SPEECH, Samples, Untyped, noise, read, tensor
from tests.unit.whisper.tokens.published import with_added

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
SPECIAL = TOKENIZER.special
N_VOCAB = TOKENIZER.n_vocab
BEGIN = SPECIAL.timestamp_begin
EOT = SPECIAL.end_of_text

CONFIG = GenerationConfig(
    suppress_tokens=(),
    begin_suppress_tokens=(EOT,),
    max_initial_timestamp_index=50,
    alignment_heads=((0, 0),),
    multilingual=True,
)

PIECES = {
    "sample_1": read(SAMPLE)[:N_SAMPLES],
    "sample_2": read(SAMPLE)[N_SAMPLES : 2 * N_SAMPLES],
    "speech": read(SPEECH),
    "noise": noise(10 * SAMPLE_RATE),
    "silence": np.zeros(5 * SAMPLE_RATE, dtype=np.float32),
}


@pytest.mark.parametrize(
    ("language", "task", "written_in"),
    [("ja", "transcribe", "ja"), ("de", "transcribe", "en"), ("ja", "translate", "en")],
)
def test_hot_words_are_spelled_as_the_window_s_text_is(language: str, task: str, written_in: str) -> None:
    hot_words = HotWords(TOKENIZER, ["NPU"])
    options = WindowOptions(language=language, task=task, filters=(hot_words,))
    assert hot_words.in_language(written_in) in rules_for(TOKENIZER, CONFIG, options, N_VOCAB)
    assert hot_words.in_language("ja") is not hot_words.in_language("en")


class ScriptedDecoder:
    """A decoder that wants to say a script, whatever it is fed; after it, the end of the text."""

    def __init__(self, script: Sequence[int], capacity: int = 448) -> None:
        self.script = list(script)
        self.capacity = capacity
        self.n_windows = 1
        # All tokens since the start of the sequence, and how many came in each call.
        self.fed: list[int] = []
        self.calls: list[int] = []

    @property
    def n_fed(self) -> int:
        return len(self.fed)

    def begin(self) -> None:
        self.fed, self.calls = [], []

    def rewind(self, n_fed: int) -> None:
        del self.fed[n_fed:]

    def room(self, *_: object) -> NoReturn:
        raise AssertionError("not made for beams")

    extend = drop = room

    def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
        assert len(self.fed) + len(tokens) <= self.capacity
        self.fed += tokens
        self.calls.append(len(tokens))
        n_said = sum(self.calls[1:])
        logits = np.zeros((len(tokens), N_VOCAB), dtype=np.float32)
        logits[-1, self.script[n_said] if n_said < len(self.script) else EOT] = 20.0
        return logits[np.newaxis, n_silent:], np.ones((1, 1, len(tokens) - n_silent, 1500), dtype=np.float32)


def say(script: Sequence[int], options: WindowOptions, capacity: int = 448) -> tuple[DecodedWindow, ScriptedDecoder]:
    decoder = ScriptedDecoder(script, capacity)
    return decode_window(decoder, TOKENIZER, CONFIG, options), decoder


def random_prefixes(n: int) -> list[list[int]]:
    """Return beginnings of texts as the rules can meet them, and some as they cannot."""
    random = np.random.default_rng(5)
    prefixes: list[list[int]] = [[]]
    for _ in range(n):
        prefix: list[int] = []
        time = 0
        for _ in range(int(random.integers(1, 4))):
            time += int(random.integers(0, 300))
            prefix += [BEGIN + min(time, 1500)] * int(random.integers(1, 3))
            prefix += random.integers(0, 500, int(random.integers(0, 5))).tolist()
        prefixes.append(prefix[: int(random.integers(1, len(prefix) + 1))])
    return prefixes


@pytest.mark.parametrize("max_initial", [None, 0, 50])
def test_timestamp_rules_equal_both_references(max_initial: int | None) -> None:
    start = [SPECIAL.start_of_transcript, TOKENIZER.languages["en"], SPECIAL.transcribe]
    ours = TimestampRules(SPECIAL, max_initial)
    settings: Untyped = SimpleNamespace(
        no_timestamps_token_id=SPECIAL.no_timestamps,
        eos_token_id=EOT,
        bos_token_id=EOT,
        max_initial_timestamp_index=max_initial,
        _detect_timestamp_from_logprob=True,
    )
    transformers_rules = WhisperTimeStampLogitsProcessor(settings, begin_index=len(start))
    names = SimpleNamespace(no_timestamps=SPECIAL.no_timestamps, timestamp_begin=BEGIN, eot=EOT)
    openai_rules = whisper.decoding.ApplyTimestampRules(names, len(start), max_initial)
    random = np.random.default_rng(6)
    n_forced = 0
    for prefix, boost in itertools.product(random_prefixes(60), (-4.0, 0.0, 4.0)):
        logits = random.standard_normal(N_VOCAB).astype(np.float32)
        logits[BEGIN:] += boost
        actual = logits.copy()
        ours.apply(actual, prefix)
        ids = torch.tensor([[*start, *prefix]])
        openai = tensor(logits.copy())[None]
        openai_rules.apply(openai, ids)
        np.testing.assert_array_equal(actual, openai[0].numpy())
        np.testing.assert_array_equal(actual, transformers_rules(ids, tensor(logits)[None])[0].numpy())
        n_forced += bool(np.isneginf(actual[:BEGIN]).all())
    assert 20 < n_forced < 150


def test_text_behind_the_times_is_text_to_the_rules() -> None:
    """As if it came before them: the rules know tokens before the end of text, controls, times and no others."""
    n_added = 7
    ours = TimestampRules(SPECIAL, 50)
    random = np.random.default_rng(7)
    for prefix, boost in itertools.product(random_prefixes(40), (-4.0, 0.0, 4.0)):
        logits = random.standard_normal(N_VOCAB + n_added).astype(np.float32)
        logits[BEGIN:N_VOCAB] += boost
        # Tokens of text, and where they are in a vocabulary that has all text before the times.
        moved = SimpleNamespace(no_timestamps=SPECIAL.no_timestamps + n_added, timestamp_begin=BEGIN + n_added)
        names = SimpleNamespace(**vars(moved), eot=EOT + n_added)
        order = [*range(N_VOCAB, N_VOCAB + n_added), *range(N_VOCAB)]
        added = [N_VOCAB + token % n_added if token % 5 == 0 and token < EOT else token for token in prefix]
        openai = tensor(logits[order])[None]
        rules = whisper.decoding.ApplyTimestampRules(names, 0, 50)
        rules.apply(openai, torch.tensor([[order.index(token) for token in added]], dtype=torch.long))
        ours.apply(logits, added)
        np.testing.assert_array_equal(logits[order], openai[0].numpy())


def window_of(model: WhisperModel, samples: Samples, options: WindowOptions) -> DecodedWindow:
    model.runtime.decoder.use(model.runtime.encode(log_mel(samples, 80), 0))
    return decode_window(model.runtime.decoder, model.tokenizer, model.generation, options)


@pytest.mark.parametrize(
    ("name", "timestamps"),
    [("speech", False), ("speech", True), ("sample_2", True), ("noise", True), ("silence", True)],
)
def test_tokens_equal_transformers(
    model: WhisperModel, reference: Untyped, processor: Untyped, name: str, timestamps: bool
) -> None:
    features = processor(PIECES[name], sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
    # One window, not what `generate` makes of the rest after the last timestamp.
    output = reference.generate(
        features, return_timestamps=timestamps, language="en", task="transcribe", force_unique_generate_call=True
    )
    start = 3 if timestamps else 4
    expected = output[0].tolist()
    assert expected[:3] == TOKENIZER.start_sequence("en", "transcribe")
    expected = expected[start:]
    if EOT in expected:
        expected = expected[: expected.index(EOT)]
    window = window_of(model, PIECES[name], WindowOptions(language="en", timestamps=timestamps))
    assert window.tokens == expected
    assert len(window.log_probs) == len(expected)


@pytest.mark.parametrize("name", ["sample_1", "silence"])
def test_probabilities_equal_transformers(
    model: WhisperModel, reference: Untyped, processor: Untyped, name: str
) -> None:
    options = WindowOptions(language="en", max_tokens=30)
    window = window_of(model, PIECES[name], options)
    features = processor(PIECES[name], sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
    start = [*TOKENIZER.start_sequence("en", "transcribe"), SPECIAL.no_timestamps]
    with torch.no_grad():
        logits = reference(features, decoder_input_ids=torch.tensor([[*start, *window.tokens]])).logits[0]
    assert window.no_speech_prob == pytest.approx(float(logits[0].softmax(-1)[SPECIAL.no_speech]), rel=1e-3)
    allowed = torch.full((N_VOCAB,), -torch.inf)
    allowed[: EOT + 1] = 0
    allowed[list(model.generation.suppress_tokens)] = -torch.inf
    expected = []
    for i, token in enumerate(window.tokens):
        row = logits[len(start) - 1 + i] + allowed
        if i == 0:
            row[list(model.generation.begin_suppress_tokens)] = -torch.inf
        expected.append(float(row.log_softmax(-1)[token]))
    np.testing.assert_allclose(window.log_probs, expected, atol=1e-3)
    if len(window.tokens) == 30:
        assert window.avg_logprob == pytest.approx(sum(expected) / 31, abs=1e-3)  # as if the end had come


def test_no_special_token_comes_inside_a_text() -> None:
    for token in range(EOT + 1, BEGIN):
        for timestamps in (False, True):
            window, _ = say(
                [BEGIN, token] if timestamps else [token], WindowOptions(language="en", timestamps=timestamps)
            )
            assert token not in window.tokens
    window, _ = say([BEGIN + 3], WindowOptions(language="en"))
    assert BEGIN + 3 not in window.tokens


@pytest.mark.parametrize("timestamps", [False, True])
def test_only_text_comes_from_behind_the_times(tmp_path: Path, timestamps: bool) -> None:
    tokenizer = with_added(tmp_path, {"[UM]": N_VOCAB, "<|music|>": N_VOCAB + 1}, N_VOCAB + 4)
    suppress, *_ = rules_for(tokenizer, CONFIG, WindowOptions(language="en", timestamps=timestamps), N_VOCAB + 4)
    logits = np.zeros(N_VOCAB + 4, dtype=np.float32)
    suppress.apply(logits, [])
    assert np.isfinite(logits[N_VOCAB:]).tolist() == [True, False, False, False]
    assert np.isfinite(logits[:EOT]).all()


def test_the_prompt_makes_room_for_a_long_prefix() -> None:
    prefix = tuple(range(100, 500))
    window, decoder = say([1], WindowOptions(language="en", prompt=tuple(range(300)), begins_with=prefix))
    assert window.tokens == [*prefix, 1]
    assert max(decoder.calls) <= 448


def test_the_result_begins_with_the_prefix_and_scores_it(model: WhisperModel) -> None:
    alone = window_of(model, PIECES["sample_1"], WindowOptions(language="en", max_tokens=40))
    prefix = tuple(alone.tokens[:25])
    forced = window_of(model, PIECES["sample_1"], WindowOptions(language="en", max_tokens=15, begins_with=prefix))
    assert forced.tokens == alone.tokens
    # But for the first: what may not come first is allowed in a prefix.
    np.testing.assert_allclose(forced.log_probs[1:], alone.log_probs[1:], atol=1e-3)
    np.testing.assert_allclose(forced.attention, alone.attention, atol=1e-4)
    assert forced.no_speech_prob == pytest.approx(alone.no_speech_prob, rel=1e-4)
    assert forced.avg_logprob == pytest.approx(sum(alone.log_probs[25:]) / 16, abs=1e-4)


def test_a_prefix_nobody_would_say_comes_out_all_the_same() -> None:
    window, _ = say([7, 8], WindowOptions(language="en", begins_with=(400, 401)))
    assert window.tokens == [400, 401, 7, 8]
    # The end of the text may follow a prefix at once.
    window, _ = say([], WindowOptions(language="en", begins_with=(400, 401)))
    assert window.tokens == [400, 401]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_no_more_than_max_tokens_are_sampled(n: int) -> None:
    window, decoder = say(range(100, 200), WindowOptions(language="en", begins_with=(1, 2), max_tokens=n))
    assert window.tokens == [1, 2, *range(100, 100 + n)]
    assert len(window.log_probs) == 2 + n
    assert len(decoder.fed) == 4 + 2 + max(0, n - 1)


@pytest.mark.parametrize("n_prefix", [0, 10, 443, 444])
def test_the_sequence_ends_where_it_is_full(n_prefix: int) -> None:
    script = [100 + i % 300 for i in range(600)]
    window, _ = say(script, WindowOptions(language="en", begins_with=tuple(script[:n_prefix])))
    assert len(window.tokens) == 448 - 4 + 1  # the last is not fed any more
    words = to_hypothesis(window, TOKENIZER, "en", N_SAMPLES).words
    assert all(0 <= word.start_samples <= word.end_samples <= N_SAMPLES for word in words)


@pytest.mark.parametrize("n_prefix", [445, 447, 448, 600])
def test_a_prefix_that_the_sequence_has_no_room_for_is_the_result(n_prefix: int) -> None:
    prefix = tuple(TOKENIZER.encode(" the committee" * n_prefix)[:n_prefix])
    window, decoder = say([7, 8], WindowOptions(language="en", prompt=(1, 2, 3), begins_with=prefix))
    assert decoder.n_fed == 448
    assert (window.tokens, window.n_sampled, window.n_begins_with) == (list(prefix), 0, n_prefix)
    assert len(window.log_probs) == n_prefix
    assert window.attention.shape[1] == 4 + n_prefix
    hypothesis = to_hypothesis(window, TOKENIZER, "en", N_SAMPLES)
    assert tuple(token for word in hypothesis.words for token in word.tokens) == prefix
    assert all(0 <= word.start_samples <= word.end_samples <= N_SAMPLES for word in hypothesis.words)
    assert all(0 <= word.probability <= 1 for word in hypothesis.words)


def test_decoding_stops_when_it_is_cancelled() -> None:
    answers = iter([False, False, False, True])
    decoder = ScriptedDecoder(range(100, 200))
    window = decode_window(decoder, TOKENIZER, CONFIG, WindowOptions(language="en"), lambda: next(answers))
    assert window.tokens == [100, 101, 102]


def test_a_loop_is_cut_to_its_first_round() -> None:
    script = [1, 2, *[10, 11, 12, 13] * 50]
    window, decoder = say(script, WindowOptions(language="en", stop_at_loop=True))
    assert window.looped
    assert window.tokens == [1, 2, 10, 11, 12, 13]
    assert len(window.log_probs) == 6
    assert sum(decoder.calls) < 30
    window, _ = say(script, WindowOptions(language="en"))
    assert not window.looped
    assert len(window.tokens) == len(script)


def test_a_loop_of_one_token_is_cut_to_one() -> None:
    window, _ = say([1, *[10] * 100], WindowOptions(language="en", stop_at_loop=True))
    assert window.looped
    assert window.tokens == [1, 10]


def test_a_loop_never_takes_from_the_prefix() -> None:
    prefix = (10,) * 18
    window, _ = say([10] * 20, WindowOptions(language="en", begins_with=prefix, stop_at_loop=True))
    assert window.looped
    assert window.tokens == list(prefix)


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([], 0),
        ([5], 0),
        ([5] * 4, 0),  # "no, no, no, no" is speech
        ([5] * 15, 0),
        ([5] * 16, 1),
        ([1, 2] * 7, 0),
        ([1, 2] * 8, 2),
        ([9, *[1, 2] * 8], 2),
        ([*[1, 2] * 8, 9], 0),
        ([*range(24)] * 4, 24),
        ([*range(24)] * 3, 0),
        ([*range(25)] * 4, 0),
        ([*range(5)] * 3 + [*range(4)], 0),
        (list(range(400)), 0),
    ],
)
def test_what_is_a_loop(tokens: list[int], length: int) -> None:
    assert loop_length(tokens) == length


NANS = np.full((1, 1, N_VOCAB), np.nan, dtype=np.float32)


def test_logits_that_are_no_numbers_are_an_error_of_the_device() -> None:
    class Broken(ScriptedDecoder):
        def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
            logits, attention = super().feed(tokens, n_silent)
            return (logits * np.nan if len(self.calls) > 2 else logits), attention

    for options in (WindowOptions(language="en"), WindowOptions(language="en", temperature=0.4)):
        with pytest.raises(InferenceError, match="logits are not finite"):
            decode_window(Broken([1, 2, 3]), TOKENIZER, CONFIG, options)
    with pytest.raises(InferenceError, match="logits are not finite"):
        detect_language(SimpleNamespace(begin=lambda: None, feed=lambda *_: (NANS, NANS)), TOKENIZER)


@pytest.mark.parametrize(("among", "found"), [((), "fr"), (("en", "de"), "de")])
def test_a_language_is_detected_among_some_or_all(among: tuple[str, ...], found: str) -> None:
    languages = {"en": 0, "de": 1, "fr": 2}
    tokenizer: Untyped = SimpleNamespace(languages=languages, special=SimpleNamespace(start_of_transcript=3))
    logits = np.array([[[0.0, 1.0, 2.0, 9.0]]], np.float32)
    decoder = SimpleNamespace(begin=lambda: None, feed=lambda *_: (logits, None))
    language, probabilities = detect_language(decoder, tokenizer, among)
    assert (language, list(probabilities)) == (found, list(among or languages))
    assert sum(probabilities.values()) == pytest.approx(1)


def test_speech_has_at_most_a_token_for_each_encoder_position() -> None:
    assert max_tokens_for(0) == 16
    assert max_tokens_for(2 * SAMPLE_RATE) == 16 + 100


def test_words_have_their_tokens_scores(model: WhisperModel) -> None:
    n_samples = len(PIECES["sample_1"])
    window = window_of(model, PIECES["sample_1"], WindowOptions(language="en"))
    hypothesis = to_hypothesis(window, model.tokenizer, "en", n_samples)
    assert "".join(word.text for word in hypothesis.words) == TOKENIZER.decode(window.tokens)
    position = 0
    for word in hypothesis.words:
        log_probs = window.log_probs[position : position + len(word.tokens)]
        position += len(word.tokens)
        assert word.probability == pytest.approx(float(np.mean(np.exp(log_probs))))
        assert word.log_prob == pytest.approx(sum(log_probs))
        assert 0 <= word.start_samples <= word.end_samples <= n_samples
        assert 0 < word.attended_samples <= n_samples
    starts = [word.start_samples for word in hypothesis.words]
    assert starts == sorted(starts)
    # Two measures of one thing: mostly they agree.
    apart = [abs(word.attended_samples - word.end_samples) for word in hypothesis.words]
    assert np.median(apart) < SAMPLE_RATE // 6
    assert starts[-1] - starts[0] > SAMPLE_RATE


def test_alignment_of_no_words_is_none(model: WhisperModel) -> None:
    model.runtime.decoder.use(model.runtime.encode(log_mel(PIECES["silence"], 80), 0))
    fed = WindowOptions(language="en", max_tokens=0)
    again = decode_window(model.runtime.decoder, model.tokenizer, model.generation, fed)
    assert to_hypothesis(again, model.tokenizer, "en", 0).words == ()


def test_a_hypothesis_says_what_was_seen() -> None:
    script = TOKENIZER.encode(" one two")
    window, _ = say(script, WindowOptions(language="en"))
    hypothesis = to_hypothesis(replace(window, no_speech_prob=0.25, looped=True), TOKENIZER, "en", SAMPLE_RATE)
    assert [word.text for word in hypothesis.words] == [" one", " two"]
    assert (hypothesis.language, hypothesis.no_speech_prob, hypothesis.looped) == ("en", 0.25, True)
    assert hypothesis.avg_logprob == window.avg_logprob
    assert hypothesis.compression_ratio == pytest.approx(whisper.utils.compression_ratio(" one two"))
