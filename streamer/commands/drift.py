"""How far compressed graphs drift from the checkpoint's own, and what is gained, measured on a recording of speech.

The decoders are teacher-forced: both are given the same tokens, a transcript of the recording, one by one, so that one
different choice does not make everything after it different.

The checkpoint's own graphs are measured first, before anything is compressed, and are gone then: both models at once,
and the tools that compress, would take several times the memory of the conversion itself.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov

from streamer.arrays import FloatArray
from streamer.whisper.device.devices import the_core
from streamer.whisper.device.runtime import DecoderRuntime, EncodedWindow, Stage
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import fix_sizes
from streamer.whisper.graphs.ports import STAGES, GraphId
from streamer.whisper.weights.checkpoint import expected_shapes

Builders = Mapping[str, Callable[[], ov.Model]]

# Tokens that are decoded: enough for their agreement to be worth a look, few enough for large-v3 on a small machine.
N_TOKENS = 32

# Runs of encoder and cross-KV. As of the decoder's steps the fastest counts: whatever else the machine does only adds.
N_RUNS = 3

_PROPERTIES = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


@dataclass(frozen=True, slots=True)
class Reference:
    """What the checkpoint's own graphs compute."""

    # Of the encoder, shape (1, n_audio_ctx, n_audio_state).
    hidden: FloatArray

    # After each token, shape (n, n_vocab); None of an encoder alone.
    logits: FloatArray | None

    # Seconds that a run of each stage takes.
    times: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Drift:
    """What compressing one stage changes, or all of them.

    The encoder and the cross-KV are compared in front of the compressed decoder, the decoder behind what the
    checkpoint's own encoder and cross-KV give.
    """

    stage: str  # or `all`

    # Of logits; of the encoder's hidden states where the model is an encoder alone.
    max_difference: float
    mean_difference: float

    # Part of the positions where the likeliest token is the same; None of an encoder alone.
    agreement: float | None

    # How many times as fast as the reference: the stage, or a window of N_TOKENS tokens in all stages.
    speed: float


def reference_bytes(dims: ModelDimensions, stage: str) -> int:
    """Return the size of a stage's weights as float32."""

    def stage_of(name: str) -> str:
        if name.startswith("encoder."):
            return "encoder"
        return "cross_kv" if ".encoder_attn.k_proj" in name or ".encoder_attn.v_proj" in name else "decoder"

    return 4 * sum(math.prod(shape) for name, shape in expected_shapes(dims).items() if stage_of(name) == stage)


def measure_reference(graphs: Builders, dims: ModelDimensions, mel: FloatArray, tokens: Sequence[int]) -> Reference:
    """Run the checkpoint's own graphs on the CPU: of all stages, or of the encoder alone.

    mel : shape = (n_mels, 3000)
    tokens : a transcript, from the start of a transcript on; of its first N_TOKENS
    """
    hidden, encoder_s = _encode(_stage("encoder", graphs, dims), mel)
    if "decoder" not in graphs:
        return Reference(hidden, None, {"encoder": encoder_s})
    cross_kv = _CrossKV(graphs, dims)
    window, cross_kv_s = cross_kv.window, cross_kv.run(hidden)
    del cross_kv  # gone before the decoder comes, which takes most memory
    logits, step_s = _decode(_stage("decoder", graphs, dims), dims, window, tokens)
    return Reference(hidden, logits, {"encoder": encoder_s, "cross_kv": cross_kv_s, "decoder": step_s})


def measure_drift(
    reference: Reference,
    graphs: Builders,
    compressed: Builders,
    dims: ModelDimensions,
    mel: FloatArray,
    tokens: Sequence[int],
) -> list[Drift]:
    """Compare the compressed graphs with what the checkpoint's own gave for the same `mel` and `tokens`.

    graphs : the checkpoint's own, of which only the cross-KV is built again: it is small
    """
    hidden, encoder_s = _encode(_stage("encoder", compressed, dims), mel)
    speeds = {"encoder": reference.times["encoder"] / encoder_s}
    if reference.logits is None:
        return [_drift("encoder", reference.hidden, hidden, speeds, agreement=False)]
    decoder = _stage("decoder", compressed, dims)
    logits: list[FloatArray] = []
    fastest = {"encoder": encoder_s, "decoder": math.inf}
    for builders in (graphs, compressed):
        cross_kv = _CrossKV(builders, dims)
        fastest["cross_kv"] = math.inf
        for states in (reference.hidden, hidden):
            fastest["cross_kv"] = min(fastest["cross_kv"], cross_kv.run(states))
            rows, step_s = _decode(decoder, dims, cross_kv.window, tokens)
            logits.append(rows)
            fastest["decoder"] = min(fastest["decoder"], step_s)
    decoder_alone, with_encoder, with_cross_kv, with_all = logits

    speeds |= {stage: reference.times[stage] / fastest[stage] for stage in STAGES}
    speeds["all"] = _window_s(reference.times) / _window_s(fastest)
    return [
        _drift("encoder", decoder_alone, with_encoder, speeds),
        _drift("cross_kv", decoder_alone, with_cross_kv, speeds),
        _drift("decoder", reference.logits, decoder_alone, speeds),
        _drift("all", reference.logits, with_all, speeds),
    ]


def _drift(
    stage: str, expected: FloatArray, found: FloatArray, speeds: Mapping[str, float], *, agreement: bool = True
) -> Drift:
    difference = np.abs(found - expected)
    same = float((found.argmax(-1) == expected.argmax(-1)).mean()) if agreement else None
    return Drift(stage, float(difference.max()), float(difference.mean()), same, speeds[stage])


def _window_s(times: Mapping[str, float]) -> float:
    return times["encoder"] + times["cross_kv"] + N_TOKENS * times["decoder"]


def _stage(stage: str, builders: Builders, dims: ModelDimensions) -> Stage:
    graph, model = GraphId(stage), builders[stage]()
    if model.is_dynamic():
        model = fix_sizes(model, graph.ports(dims, 0).inputs)
    return Stage(graph, the_core().compile_model(model, "CPU", _PROPERTIES), "CPU")


def _encode(encoder: Stage, mel: FloatArray) -> tuple[FloatArray, float]:
    """Return the hidden states and the seconds that they take."""
    encoder.bind_input("input_features").data[0] = mel
    hidden: FloatArray = encoder.bind_output("last_hidden_state").data
    return hidden, _seconds(encoder)


class _CrossKV:
    """A cross-KV graph with the window that it writes into."""

    def __init__(self, builders: Builders, dims: ModelDimensions) -> None:
        self._stage = _stage("cross_kv", builders, dims)
        self._hidden = self._stage.bind_input("encoder_hidden_states").data
        self.window = EncodedWindow(0, {name: self._stage.bind_output(name) for name in self._stage.outputs})

    def run(self, hidden: FloatArray) -> float:
        """Compute keys and values of hidden states; return the seconds that they take."""
        self._hidden[:] = hidden
        return _seconds(self._stage)


def _decode(
    stage: Stage, dims: ModelDimensions, window: EncodedWindow, tokens: Sequence[int]
) -> tuple[FloatArray, float]:
    """Return the logits after each token, shape (n, n_vocab), and the seconds of the fastest step."""
    decoder = DecoderRuntime([[stage]], window, dims)
    fastest = math.inf
    rows: list[FloatArray] = []
    for token in tokens[:N_TOKENS]:
        begin = time.perf_counter()
        rows.append(decoder.feed([token])[0][0])
        fastest = min(fastest, time.perf_counter() - begin)
    return np.array(rows), fastest


def _seconds(stage: Stage) -> float:
    """Return how long the fastest of some runs takes."""
    fastest = math.inf
    for _ in range(N_RUNS):
        begin = time.perf_counter()
        stage.infer()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest
