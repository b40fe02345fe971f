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
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.whisper.device.devices import the_core
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import fix_sizes
from streamer.whisper.graphs.ports import STAGES, GraphId
from streamer.whisper.weights.checkpoint import expected_shapes

Builders = Mapping[str, Callable[[], ov.Model]]
Tensors = Mapping[str, ov.Tensor]

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
    hidden, encoder_s = _encode(graphs["encoder"], mel)
    if "decoder" not in graphs:
        return Reference(hidden, None, {"encoder": encoder_s})
    cross_kv = _CrossKV(graphs["cross_kv"])
    keys_values, cross_kv_s = cross_kv.run(hidden), cross_kv.run_s
    del cross_kv  # gone before the decoder comes, which takes most memory
    decoder = _Decoder(graphs["decoder"], dims)
    logits = decoder.run(keys_values, tokens)
    return Reference(hidden, logits, {"encoder": encoder_s, "cross_kv": cross_kv_s, "decoder": decoder.step_s})


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
    hidden, encoder_s = _encode(compressed["encoder"], mel)
    speeds = {"encoder": reference.times["encoder"] / encoder_s}
    if reference.logits is None:
        return [_drift("encoder", reference.hidden, hidden, speeds, agreement=False)]
    decoder = _Decoder(compressed["decoder"], dims)
    cross_kv = _CrossKV(graphs["cross_kv"])
    decoder_alone = decoder.run(cross_kv.run(reference.hidden), tokens)
    with_encoder = decoder.run(cross_kv.run(hidden), tokens)
    del cross_kv
    cross_kv = _CrossKV(compressed["cross_kv"])
    with_cross_kv = decoder.run(cross_kv.run(reference.hidden), tokens)
    with_all = decoder.run(cross_kv.run(hidden), tokens)

    times = {"encoder": encoder_s, "cross_kv": cross_kv.run_s, "decoder": decoder.step_s}
    speeds = {stage: reference.times[stage] / times[stage] for stage in STAGES}
    speeds["all"] = _window_s(reference.times) / _window_s(times)
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


def _encode(build: Callable[[], ov.Model], mel: FloatArray) -> tuple[FloatArray, float]:
    """Return the hidden states and the seconds that they take."""
    request = _request(build())
    inputs = {"input_features": _tensor(mel[None])}
    fastest = min(_infer(request, inputs) for _ in range(N_RUNS))
    return request.get_output_tensor(0).data.copy(), fastest


class _CrossKV:
    """A cross-KV graph; what a run returns holds until the next."""

    def __init__(self, build: Callable[[], ov.Model]) -> None:
        self._request = _request(build())
        # Seconds of the fastest run so far.
        self.run_s = math.inf

    def run(self, hidden: FloatArray) -> Tensors:
        inputs = {"encoder_hidden_states": _tensor(hidden)}
        self.run_s = min(self.run_s, *(_infer(self._request, inputs) for _ in range(N_RUNS)))
        return {port.any_name: self._request.get_tensor(port) for port in self._request.model_outputs}


class _Decoder:
    """A decoder that is given one token at a time."""

    def __init__(self, build: Callable[[], ov.Model], dims: ModelDimensions) -> None:
        self._dims = dims
        self._request = _request(fix_sizes(build(), GraphId("decoder").ports(dims, 0).inputs))
        # Seconds of the fastest step so far.
        self.step_s = math.inf

    def run(self, cross_kv: Tensors, tokens: Sequence[int]) -> FloatArray:
        """Return the logits after each of the first N_TOKENS tokens, shape (n, n_vocab)."""
        slots = self._dims.cache_size
        ids, position = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
        mask = np.zeros((1, slots + 1), np.float32)
        mask[0, slots] = 1
        shape = (1, self._dims.n_text_head, slots, self._dims.text_head_size)
        names = [f"key_values.{i}.decoder.{kind}" for i in range(self._dims.n_text_layer) for kind in ("key", "value")]
        cache = {name: np.zeros(shape, np.float32) for name in names}
        inputs = {name.replace("present_", "past_", 1): tensor for name, tensor in cross_kv.items()}
        inputs |= {f"past_{name}": _tensor(values) for name, values in cache.items()}
        inputs |= {"input_ids": _tensor(ids), "position_ids": _tensor(position), "attention_mask": _tensor(mask)}
        logits: list[FloatArray] = []
        for n_cached, token in enumerate(tokens[:N_TOKENS]):
            ids[0, 0], position[0] = token, n_cached
            self.step_s = min(self.step_s, _infer(self._request, inputs))
            logits.append(self._request.get_tensor("logits").data[0, 0].copy())
            for name, values in cache.items():
                values[:, :, n_cached] = self._request.get_tensor(f"present_{name}").data[:, :, 0]
            mask[0, n_cached] = 1
        return np.array(logits)


def _request(model: ov.Model) -> ov.InferRequest:
    return the_core().compile_model(model, "CPU", _PROPERTIES).create_infer_request()


def _tensor(values: NDArray[np.generic]) -> ov.Tensor:
    return ov.Tensor(np.ascontiguousarray(values), shared_memory=True)


def _infer(request: ov.InferRequest, inputs: Tensors) -> float:
    """Run a request and return how long it took, in seconds."""
    for name, tensor in inputs.items():
        request.set_tensor(name, tensor)
    begin = time.perf_counter()
    request.infer()
    return time.perf_counter() - begin
