"""Alignment heads that are found by measurement."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.audio.mel import log_mel
from streamer.constants import N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from streamer.whisper.decode.timing import word_spans
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.heads import all_heads
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights import huggingface
from tests.unit.whisper.support import NANO, SAMPLE, Samples, noise, read, start_runtime
from tools.find_heads import MOST_HEADS, choose_heads, find_heads, measure_heads

Matrix = NDArray[np.floating]

# Samples, and all that is said in them: text, first and last sample of each sentence.
Window = tuple[Samples, list[tuple[str, int, int]]]

# Seconds at which the words of the sample's last three sentences begin, counted from half a second before them. By
# forced alignment with a CTC head on the encoder, trained beside the decoder, which knows nothing of its attention.
# fmt: off
WORD_STARTS = (
    0.50, 0.78, 1.24, 1.66, 2.72, 2.94, 3.16, 3.96, 4.42, 5.40, 5.80, 6.14, 6.30, 6.56, 6.92, 7.04, 7.56, 9.30,
    9.46, 9.66, 9.90, 10.16, 10.76, 11.10, 11.28, 11.56, 11.68, 11.84, 12.12, 12.30, 12.58, 12.88, 13.00, 13.52,
    13.62, 13.76, 14.30, 14.58, 14.68, 15.48, 15.72, 16.70, 16.92, 17.26, 17.44, 17.88, 18.02, 18.28, 18.94, 19.10,
    19.26, 19.80, 20.10, 20.20, 20.42, 20.44, 20.64, 20.98,
)
# fmt: on


def follow(middles: Matrix, width: float) -> Matrix:
    """Return one head's attention whose row i looks at middles[i] (samples), `width` encoder positions wide."""
    x = (np.arange(1500) + 0.5) * N_SAMPLES_PER_TOKEN
    rows = np.exp(-0.5 * ((x - middles[:, np.newaxis]) / (width * N_SAMPLES_PER_TOKEN)) ** 2) + 1e-6
    return np.asarray(rows / rows.sum(axis=1, keepdims=True), dtype=np.float32)


def uneven_speech(seed: int) -> tuple[list[tuple[int, int, int]], Matrix]:
    """Return sentences with pauses between them, and the middles of their tokens, which are not equally long."""
    random = np.random.default_rng(seed)
    sentences, middles, position = [], [], 0
    for _ in range(4):
        position += int(random.integers(SAMPLE_RATE // 4, SAMPLE_RATE))
        bounds = position + np.cumsum([0, *random.integers(1000, 8000, size=12)])
        sentences.append((12, int(bounds[0]), int(bounds[-1])))
        middles += [(a + b) / 2 for a, b in pairwise(bounds)]
        position = int(bounds[-1])
    return sentences, np.array(middles)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(6)))
def test_the_heads_that_follow_are_chosen(seed: int, order: list[int]) -> None:
    sentences, middles = uneven_speech(seed)
    n_samples = sentences[-1][2] + SAMPLE_RATE
    heads = [
        follow(middles, 3),
        follow(middles, 4),
        follow(np.full(len(middles), 5.0 * SAMPLE_RATE), 2),  # always at one place
        follow(middles[::-1], 3),  # backwards
        follow(middles, 200),  # everywhere
        follow(middles + SAMPLE_RATE, 3),  # too late
    ]
    before = np.full((6, 3, 1500), 1 / 1500, dtype=np.float32)
    attention = np.concatenate((before, np.stack(heads)[list(order)], before[:, :1]), axis=1)
    # The last of the start's rows predicts the first token of the text.
    chosen = choose_heads(attention[:, :-1], 4, sentences, n_samples)
    assert {order[i] for i in chosen} == {0, 1}
    assert order[chosen[0]] == 0


def test_no_more_are_chosen_than_are_needed() -> None:
    sentences, middles = uneven_speech(0)
    attention = np.stack([follow(middles, 3)] * (MOST_HEADS + 5))
    assert len(choose_heads(attention, 1, sentences, 20 * SAMPLE_RATE)) == MOST_HEADS


def test_heads_that_look_anywhere_are_none() -> None:
    random = np.random.default_rng(0)
    attention = random.random((8, 60, 1500), dtype=np.float32)
    attention /= attention.sum(axis=-1, keepdims=True)
    assert choose_heads(attention, 4, uneven_speech(0)[0], 20 * SAMPLE_RATE) == []
    assert choose_heads(np.zeros_like(attention), 4, uneven_speech(0)[0], 20 * SAMPLE_RATE) == []


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(NANO, n_vocab=2022)


@pytest.fixture(scope="module")
def dims() -> ModelDimensions:
    return huggingface.load(NANO).dims


@pytest.fixture(scope="module")
def runtime(dims: ModelDimensions) -> Runtime:
    return start_runtime(huggingface.load(NANO), all_heads(dims))


@pytest.fixture(scope="module")
def windows() -> list[Window]:
    """Return the sample in two windows, the first to measure on and the second to compare with."""
    samples = read(SAMPLE)
    told = json.loads((NANO / "sample.json").read_text(encoding="utf-8"))
    windows = []
    for sentences in (told[:5], told[5:]):
        begin = round(sentences[0]["start"] * SAMPLE_RATE) - SAMPLE_RATE // 2
        end = round(sentences[-1]["end"] * SAMPLE_RATE) + SAMPLE_RATE // 4
        placed = [(s["text"], *(round(s[side] * SAMPLE_RATE) - begin for side in ("start", "end"))) for s in sentences]
        windows.append((samples[begin:end], placed))
    return windows


class TestMeasured:
    """On the shipped model and its sample, whose sentences' places are known."""

    def test_the_best_is_one_that_its_settings_name(
        self, runtime: Runtime, tokenizer: Tokenizer, dims: ModelDimensions, windows: list[Window]
    ) -> None:
        found = self.measured(runtime, tokenizer, dims, windows[0])
        named = json.loads((NANO / "generation_config.json").read_text(encoding="utf-8"))["alignment_heads"]
        # The best one; which goes with it best was found with sixty sentences, and here are five.
        assert list(found[0]) in named

    def test_words_begin_where_another_method_finds_them(
        self, runtime: Runtime, tokenizer: Tokenizer, dims: ModelDimensions, windows: list[Window]
    ) -> None:
        found = self.measured(runtime, tokenizer, dims, windows[0])
        samples, sentences = windows[1]
        runtime.decoder.use(runtime.encode(log_mel(samples, dims.n_mels), 0))
        runtime.decoder.begin()
        start = [*tokenizer.start_sequence("en", "transcribe"), tokenizer.special.no_timestamps]
        text = [token for said, _, _ in sentences for token in tokenizer.encode(f" {said}")]
        (_,), (attention,) = runtime.decoder.feed([*start, *text, tokenizer.special.end_of_text])
        lengths = [len(tokenizer.encode(f" {word}")) for said, _, _ in sentences for word in said.split()]
        # Where a pause ends is not the heads' to say.
        inside = np.ones(len(lengths), dtype=bool)
        inside[np.cumsum([0, *(len(said.split()) for said, _, _ in sentences[:-1])])] = False

        def error_ms(heads: Heads) -> float:
            rows = attention[[all_heads(dims).index(head) for head in heads]]
            starts = np.array([first for first, _ in word_spans(rows, len(start), lengths, len(samples))])
            return float(1000 * np.abs(starts / SAMPLE_RATE - np.array(WORD_STARTS))[inside].mean())

        assert error_ms(found) < 100
        assert error_ms(found) < error_ms(all_heads(dims))
        assert error_ms(((2, 2),)) > 200  # one that looks far ahead

    def test_a_model_that_hears_only_noise_follows_nothing(
        self, runtime: Runtime, tokenizer: Tokenizer, dims: ModelDimensions, windows: list[Window]
    ) -> None:
        samples, sentences = windows[0]
        assert self.measured(runtime, tokenizer, dims, (noise(len(samples)), sentences)) == ()

    def measured(self, runtime: Runtime, tokenizer: Tokenizer, dims: ModelDimensions, window: Window) -> Heads:
        samples, sentences = window
        runtime.decoder.use(runtime.encode(log_mel(samples, dims.n_mels), 0))
        return measure_heads(runtime.decoder, tokenizer, dims, sentences, len(samples))


def test_nanos_own_heads_are_found() -> None:
    checkpoint = huggingface.load(NANO)
    found = find_heads(checkpoint, Tokenizer.load(NANO, n_vocab=checkpoint.dims.n_vocab))
    assert {(2, 0), (2, 1)} & set(found)
    assert len(found) < checkpoint.dims.n_text_layer * checkpoint.dims.n_text_head
