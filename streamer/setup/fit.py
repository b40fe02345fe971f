"""Which of the published models fit this machine's memory and keep pace, from what a few layers take on its CPU.

A layer of the encoder is bound by arithmetic, a step of the decoder by what it reads from memory, a block of tokens by
both: so all sizes follow from one. Held against whole models of the sizes of tiny and small: within a third.
"""

import math
import timeit
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamer.arrays import FloatArray
from streamer.constants import CHUNK_LENGTH_S, FRAMES_PER_SECOND, SAMPLE_RATE, TOKENS_PER_SECOND
from streamer.session.settings import when_stable
from streamer.session.windows import EASE, EASY_SAMPLES
from streamer.settings.table import StreamSettings
from streamer.whisper.device.compile import compile_on_cpu
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.graphs.ports import BLOCK_TOKENS
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors, expected_shapes


def _size(width: int, layers: tuple[int, int], n_vocab: int = 51864, n_mels: int = 80) -> ModelDimensions:
    n_head = width // 64
    return ModelDimensions(n_mels, 1500, width, n_head, layers[0], n_vocab, 448, width, n_head, layers[1])


# By name, the smallest first.
SIZES = {
    "tiny.en": _size(384, (4, 4)),
    "base.en": _size(512, (6, 6)),
    "distil-small.en": _size(768, (12, 4)),
    "small.en": _size(768, (12, 12)),
    "medium.en": _size(1024, (24, 24)),
    "turbo": _size(1280, (32, 4), 51866, 128),
    "large-v3": _size(1280, (32, 32), 51866, 128),
}

# What is measured: enough layers that the processor caches do not hold their weights, few words, and a usual window.
_MEASURED = _size(768, (1, 4), 2048)
_WINDOW_S = 15
_N_RUNS = 2

# Whole encoders took so much longer than a layer of theirs.
_WHOLE = 1.15

# Calls of the decoder in a pass, besides a block for settled words, and more for each second of new audio.
_N_CALLS, _N_CALLS_PER_S = 3, 6

# Beyond margin, pass and half of the wait for it.
_MORE_S = 0.05


@dataclass(frozen=True, slots=True)
class Speed:
    """What a processor does in a second, in float operations and bytes."""

    # Operations of encoding.
    flops: float

    # Bytes that the decoder reads for one token, and bytes of its weights for a block of tokens.
    step_bytes: float
    block_bytes: float

    @classmethod
    def measured(cls) -> "Speed":
        """Measure some layers with random weights of 8 bits. Raises InferenceError if OpenVINO fails."""
        graphs = ModelGraphs.of(_random(_MEASURED), ((0, 0),), "int8")
        runtime = Runtime(compile_on_cpu(graphs, (_WINDOW_S,)), n_buffers=1)
        mel = np.zeros((_MEASURED.n_mels, _WINDOW_S * FRAMES_PER_SECOND), np.float32)
        encode_s = _least_s(lambda: runtime.encode(mel, 0))
        decoder = runtime.decoder_of(runtime.window(_WINDOW_S))
        step_s, block_s = (_least_s(lambda n=n: decoder.feed([0] * n), decoder.begin) for n in (1, BLOCK_TOKENS))  # type: ignore[misc]
        return cls(
            encoder_flops(_MEASURED, _WINDOW_S) / encode_s,
            decoder_bytes(_MEASURED, _WINDOW_S) / step_s,
            decoder_bytes(_MEASURED) / block_s,
        )

    def pass_s(self, dims: ModelDimensions, window_s: int, interval_s: float) -> float:
        """Return what a pass of live captions with `interval_s` of new audio takes, in seconds."""
        step_s = decoder_bytes(dims, window_s) / self.step_bytes
        n_calls = _N_CALLS + _N_CALLS_PER_S * interval_s
        block_s = decoder_bytes(dims) / self.block_bytes
        return _WHOLE * encoder_flops(dims, window_s) / self.flops + block_s + n_calls * step_s


def delay_s(speed: Speed, dims: ModelDimensions, window_s: int, stream: StreamSettings) -> tuple[float, float]:
    """Return after how many seconds half of the words are stable, and how many a pass takes (see `engine.schedule`)."""
    cost_s, interval_s = 0.0, stream.pace_s
    for _ in range(20):  # the rarer passes are, the more audio each has
        cost_s = speed.pass_s(dims, window_s, interval_s)
        interval_s = max(stream.pace_s, cost_s, min(EASY_SAMPLES / SAMPLE_RATE, EASE * cost_s))
        interval_s = min(interval_s, CHUNK_LENGTH_S)  # no pass has more audio
    return when_stable(stream)[0] + _MORE_S + interval_s / 2 + cost_s, cost_s


def encoder_flops(dims: ModelDimensions, window_s: int) -> float:
    """Return the float operations of encoder and cross-KV: two for each multiplication and sum."""
    n, width = window_s * TOKENS_PER_SECOND, dims.n_audio_state
    convolutions = 2 * 3 * dims.n_mels * width * 2 * n + 2 * 3 * width**2 * n
    layer = 2 * 12 * width**2 * n + 4 * n**2 * width
    return convolutions + dims.n_audio_layer * layer + dims.n_text_layer * 4 * width**2 * n


def decoder_bytes(dims: ModelDimensions, window_s: int | None = None) -> float:
    """Return the bytes of the decoder's weights in int8; with a window's keys and values, if one is named."""
    width, n_layer = dims.n_text_state, dims.n_text_layer
    weights = n_layer * 14 * width**2 + dims.n_vocab * width
    n = (window_s or 0) * TOKENS_PER_SECOND
    return weights + n_layer * 2 * 4 * n * width


def memory_bytes(dims: ModelDimensions) -> float:
    """Return about what live captions take with weights of 8 bits, in bytes.

    Measured of tiny to large-v3: the program, what a CPU makes of the weights, two windows' keys and values, and an
    encoder layer's attention.
    """
    n_weights = sum(math.prod(shape) for shape in expected_shapes(dims).values())
    cross = 2 * 4 * dims.n_text_layer * dims.n_audio_ctx * dims.n_text_state
    scores = 4 * dims.n_audio_head * dims.n_audio_ctx**2
    return max(0.65e9, 0.3e9 + 1.1 * n_weights + cross + scores)


def _least_s(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Return what a call takes at best, in seconds, without its first run; `before` is not counted."""
    return min(timeit.repeat(call, before, number=1, repeat=1 + _N_RUNS)[1:])


def _random(dims: ModelDimensions) -> Checkpoint:
    noise = np.random.default_rng(0)

    def reader(shape: tuple[int, ...]) -> Callable[[], FloatArray]:
        return lambda: noise.random(shape, dtype=np.float32) / 8 - 1 / 16

    return Checkpoint(dims, LazyTensors({name: reader(shape) for name, shape in expected_shapes(dims).items()}))
