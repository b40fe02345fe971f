"""Decoding against transformers' and openai-whisper's."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import whisper.decoding
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from streamer.audio.mel import log_mel
from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.whisper.decode.filters import TimestampRules
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.timing import to_hypothesis
from streamer.whisper.decode.window import DecodedWindow, decode_window
from streamer.whisper.model import WhisperModel
from tests.unit.whisper.decode.scripted import BEGIN, EOT, N_VOCAB, SPECIAL, TOKENIZER
from tests.unit.whisper.support import SAMPLE, Samples, Untyped, noise, read, tensor

PIECES = {
    "sample_1": read(SAMPLE)[:N_SAMPLES],
    "sample_2": read(SAMPLE)[N_SAMPLES : 2 * N_SAMPLES],
    "noise": noise(10 * SAMPLE_RATE),
    "silence": np.zeros(5 * SAMPLE_RATE, dtype=np.float32),
}


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


ENGLISH = WindowTask(language="en")


def window_of(model: WhisperModel, samples: Samples, task: WindowTask = ENGLISH, *, live: bool = True) -> DecodedWindow:
    model.runtime.decoder.use(model.runtime.encode(log_mel(samples, 80), 0))
    options = DecodeOptions(generation=model.generation, live=live)
    return decode_window(model.runtime.decoder, model.tokenizer, options, task)


@pytest.mark.parametrize(
    ("name", "timestamps"),
    [("sample_2", False), ("sample_2", True), ("noise", True), ("silence", True)],
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
    window = window_of(model, PIECES[name], live=not timestamps)
    assert window.tokens == expected
    assert len(window.log_probs) == len(expected)


@pytest.mark.parametrize("name", ["sample_1", "silence"])
def test_probabilities_equal_transformers(
    model: WhisperModel, reference: Untyped, processor: Untyped, name: str
) -> None:
    window = window_of(model, PIECES[name], WindowTask(language="en", max_tokens=30))
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


def test_the_result_begins_with_the_prefix_and_scores_it(model: WhisperModel) -> None:
    alone = window_of(model, PIECES["sample_1"], WindowTask(language="en", max_tokens=40))
    prefix = tuple(alone.tokens[:25])
    forced = window_of(model, PIECES["sample_1"], WindowTask(language="en", max_tokens=15, begins_with=prefix))
    assert forced.tokens == alone.tokens
    # But for the first: what may not come first is allowed in a prefix.
    np.testing.assert_allclose(forced.log_probs[1:], alone.log_probs[1:], atol=1e-3)
    np.testing.assert_allclose(forced.attention, alone.attention, atol=1e-4)
    assert forced.no_speech_prob == pytest.approx(alone.no_speech_prob, rel=1e-4)
    assert forced.avg_logprob == pytest.approx(sum(alone.log_probs[25:]) / 16, abs=1e-4)


def test_words_have_their_tokens_scores(model: WhisperModel) -> None:
    n_samples = len(PIECES["sample_1"])
    window = window_of(model, PIECES["sample_1"])
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
    again = window_of(model, PIECES["silence"], WindowTask(language="en", max_tokens=0))
    assert to_hypothesis(again, model.tokenizer, "en", 0).words == ()
