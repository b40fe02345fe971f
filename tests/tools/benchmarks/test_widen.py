"""nano.en at other sizes: the same tokens at their cost."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from streamer.audio.mel import log_mel
from streamer.errors import UsageError
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from tests.whisper.support import NANO, SAMPLE, read, start_runtime
from tools.benchmarks.widen import widen, widened_settings

HEADS = ((2, 0), (2, 1))

# Of nano.en's vocabulary: start of transcript, English, transcribe, no timestamps.
PROMPT = (513, 514, 516, 520)
N_TOKENS = 24


@pytest.fixture(scope="module")
def nano() -> Checkpoint:
    return huggingface.load(NANO)


def greedy(runtime: Runtime) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return the tokens of the sample's beginning, their logits, and the attention of the alignment heads."""
    mel = log_mel(np.resize(read(SAMPLE), 480_000).astype(np.float32), 80)
    runtime.decoder.use(runtime.encode(mel, 0))
    logits, attention = runtime.decoder.feed(PROMPT)
    tokens: list[int] = []
    kept = []
    for _ in range(N_TOKENS):
        tokens.append(int(logits[-1].argmax()))
        logits, attention = runtime.decoder.feed(tokens[-1:])
        kept.append((logits[-1], attention[:, -1]))
    return tokens, np.stack([k[0] for k in kept]), np.stack([k[1] for k in kept])


def test_the_same_tokens_are_said_at_tinys_size(nano: Checkpoint) -> None:
    wide = widen(nano, replace(nano.dims, **tiny()))
    expected, logits, attention = greedy(start_runtime(nano, HEADS))
    found, wide_logits, wide_attention = greedy(start_runtime(wide, HEADS))
    assert len(set(expected)) > N_TOKENS // 2  # it says something
    assert found == expected
    np.testing.assert_allclose(wide_logits, logits, atol=2e-2)
    np.testing.assert_allclose(wide_attention, attention, atol=1e-3)


@pytest.mark.parametrize("n_copies", [2, 4])
def test_nothing_is_stored_once_that_a_model_of_the_size_has_many_times(nano: Checkpoint, n_copies: int) -> None:
    width, heads = 192 * n_copies, 3 * n_copies
    dims = ModelDimensions(80, 1500, width, heads, 6, 2022, 448, width, heads, 6)
    wide = widen(nano, dims)
    shapes = expected_shapes(dims)
    assert {name: wide.tensors[name].shape for name in shapes} == shapes
    layers = [
        {n: wide.tensors[n] for n in shapes if f"decoder.layers.{i}." in n and n.endswith("weight")} for i in (3, 4, 5)
    ]
    for one, other in itertools.combinations(layers, 2):
        for a, b in zip(one.values(), other.values(), strict=True):
            assert a.any()
            assert not np.array_equal(a, b)


def test_a_width_that_channels_cannot_be_copied_to_is_refused(nano: Checkpoint) -> None:
    with pytest.raises(UsageError, match="a width of 512 in heads of 64"):
        widen(nano, replace(nano.dims, n_audio_state=512, n_audio_head=8, n_text_state=512, n_text_head=8))


def test_a_larger_model_follows_one_beam_as_published_ones_do() -> None:
    assert widened_settings({"stream_beams": 4, "stream_windows_s": [5, 10]}) == {"stream_windows_s": [5, 10]}


def tiny() -> dict[str, int]:
    """Return tiny's width, heads and layers."""
    halves = ("audio", "text")
    return {f"n_{half}_{part}": n for half in halves for part, n in (("state", 384), ("head", 6), ("layer", 4))}
