"""Whisper's graphs compiled for a device, with long-lived infer requests and tensors that we own.

Every input of every request is bound before its first run, and no tensor aliases another window's: cross-attention keys
and values are double-buffered, so that one window can be encoded while another is being decoded.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from streamer.errors import ConfigError, InferenceError
from streamer.whisper import graphs
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import Checkpoint

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.floating]

# What AUTO prefers: the idle accelerator first, the processor that always works last.
DEVICE_ORDER = ("NPU", "GPU", "CPU")

# Tokens of one call of the block decoder: the prompt and a known prefix go through in blocks. On a two-core machine
# a block of 16 costs 1.3 to 1.7 single steps.
BLOCK_TOKENS = 16

# Windows that can be held at once: one being decoded, one being encoded.
N_BUFFERS = 2

# Full precision: reduced precision would change tokens between machines.
_FULL_PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}

# The NPU plugin without an NPU: it delegates to the CPU (docs/design.md). By default it hands tensors from one
# partition to the next in half precision, which an NPU computes in anyway; a check on a CPU wants it exact.
_NPU_THROUGH_CPU = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_F16IC": "NO"}


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An inference device."""

    name: str
    full_name: str

    # Whether AUTO would take it.
    chosen: bool


def list_devices() -> list[DeviceInfo]:
    """Return the inference devices that OpenVINO finds here."""
    core = ov.Core()
    chosen = choose_device("AUTO", core.available_devices)
    return [
        DeviceInfo(name, str(core.get_property(name, "FULL_DEVICE_NAME")), name == chosen)
        for name in core.available_devices
    ]


def choose_device(wanted: str, available: Sequence[str]) -> str:
    """Resolve AUTO, NPU, GPU or CPU to one of the available devices (`GPU.1` counts as a GPU).

    Raises ConfigError where the wanted device is not there.
    """
    for kind in DEVICE_ORDER if wanted == "AUTO" else (wanted,):
        for name in available:
            if name.split(".")[0] == kind:
                return name
    raise ConfigError(
        f"device {wanted} is not there, OpenVINO finds {', '.join(available) or 'none'}: install its driver,"
        " or choose another with --device (AUTO takes the best there is)"
    )


@dataclass(slots=True)
class EncodedWindow:
    """One window's cross-attention keys and values, in one of the runtime's buffers."""

    index: int
    tensors: Mapping[str, ov.Tensor]


class Runtime:
    """Compiled encoder, cross-KV and decoder of one model.

    Encoding and decoding may each be used by one thread at a time, and the two at once; a buffer belongs to whoever
    encoded into it until it is encoded into again.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        alignment_heads: graphs.Heads,
        *,
        device: str = "AUTO",
        npu_through_cpu: bool = False,
        cache_dir: Path | None = None,
    ) -> None:
        """Build and compile the graphs, in parallel.

        Raises ConfigError where the device is not there, InferenceError where it cannot compile the graphs.
        """
        self.dims: ModelDimensions = checkpoint.dims
        self._core = ov.Core()
        self._properties: dict[str, object] = dict(_FULL_PRECISION)
        if npu_through_cpu:
            self.device = "NPU"
            self._properties |= _NPU_THROUGH_CPU
        else:
            self.device = choose_device(device, self._core.available_devices)
        if cache_dir is not None:
            self._properties["CACHE_DIR"] = str(cache_dir)
        # Device of each stage, as the `ready` event tells it.
        self.devices = dict.fromkeys(("encoder", "cross_kv", "decoder"), self.device)
        dims, weights = checkpoint.dims, checkpoint.tensors
        models = {
            "encoder": lambda: graphs.build_encoder(dims, weights),
            "cross_kv": lambda: graphs.build_cross_kv(dims, weights),
            "decoder": lambda: graphs.build_decoder(dims, weights, 1, alignment_heads),
            "block_decoder": lambda: graphs.build_decoder(dims, weights, BLOCK_TOKENS, alignment_heads),
        }
        compiled: dict[str, ov.CompiledModel] = {}
        failures: list[InferenceError] = []

        def compile_stage(stage: str) -> None:
            try:
                compiled[stage] = self._compile(stage, models[stage]())
            except InferenceError as error:
                failures.append(error)

        threads = [threading.Thread(target=compile_stage, args=(s,), name=f"compile-{s}") for s in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

        self._encoder = _Stage(compiled["encoder"])
        self._cross_kv = _Stage(compiled["cross_kv"])
        # The encoder's output is the cross-KV's input: one tensor, no copy.
        self._cross_kv.bind("encoder_hidden_states", self._encoder.bind_new("last_hidden_state"))
        self._features = self._encoder.bind_new("input_features")
        names = [output.any_name for output in compiled["cross_kv"].outputs]
        self._buffers = [
            EncodedWindow(i, {name: _new_tensor(compiled["cross_kv"].output(name)) for name in names})
            for i in range(N_BUFFERS)
        ]
        self.decoder = DecoderRuntime(
            self.dims, _Stage(compiled["decoder"]), _Stage(compiled["block_decoder"]), self._buffers[0]
        )

    def encode(self, mel: FloatArray, buffer: int) -> EncodedWindow:
        """Encode a window into a buffer.

        mel : shape = (n_mels, 3000)

        Raises InferenceError where the device fails.
        """
        window = self._buffers[buffer]
        np.copyto(self._features.data[0], mel)
        self._encoder.infer()
        for name, tensor in window.tensors.items():
            self._cross_kv.bind(name, tensor)
        self._cross_kv.infer()
        return window

    def _compile(self, stage: str, model: ov.Model) -> ov.CompiledModel:
        try:
            return self._core.compile_model(model, self.device, self._properties)
        except RuntimeError as error:
            if "CACHE_DIR" not in self._properties:
                raise InferenceError(
                    f"{self.device} cannot compile the {stage} graph ({_first_line(error)}): update its driver,"
                    " or choose another device with --device CPU"
                ) from None
        logger.warning("cached %s for %s cannot be used; compiling it anew", stage, self.device)
        uncached = {key: value for key, value in self._properties.items() if key != "CACHE_DIR"}
        try:
            return self._core.compile_model(model, self.device, uncached)
        except RuntimeError as error:
            raise InferenceError(
                f"{self.device} cannot compile the {stage} graph ({_first_line(error)}): update its driver,"
                " or choose another device with --device CPU"
            ) from None


class DecoderRuntime:
    """The decoder's forward pass over one growing sequence, with its key-value cache.

    Tokens go through in blocks of `BLOCK_TOKENS`, a single one through the one-token graph; the two share the cache.
    """

    def __init__(self, dims: ModelDimensions, step: "_Stage", block: "_Stage", window: EncodedWindow) -> None:
        self._dims = dims
        self._step = step
        self._block = block
        # Tokens in the cache.
        self._n_cached = 0
        # Cached keys and values, shape (1, n_head, P, head), by input name; shared by both graphs.
        self._cache: dict[str, ov.Tensor] = {}
        self._inputs: dict[_Stage, dict[str, ov.Tensor]] = {}
        self._outputs: dict[_Stage, dict[str, ov.Tensor]] = {}
        for stage in (step, block):
            self._inputs[stage] = {
                name: stage.bind_new(name) for name in ("input_ids", "position_ids", "attention_mask")
            }
            self._outputs[stage] = {name: stage.bind_new(name) for name in stage.output_names}
        self._layers = [(i, kind) for i in range(dims.n_text_layer) for kind in ("key", "value")]
        for i, kind in self._layers:
            name = f"past_key_values.{i}.decoder.{kind}"
            self._cache[name] = step.bind_new(name)
            block.bind(name, self._cache[name])
        self.use(window)

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can hold."""
        return self._dims.n_text_ctx

    def use(self, window: EncodedWindow) -> None:
        """Decode this window from now on."""
        for i, kind in self._layers:
            for stage in (self._step, self._block):
                stage.bind(
                    f"past_key_values.{i}.encoder.{kind}", window.tensors[f"present_key_values.{i}.encoder.{kind}"]
                )
        self.begin()

    def begin(self) -> None:
        """Forget the sequence and start a new one."""
        self._n_cached = 0
        # Hidden slots are masked, but what they hold still meets the arithmetic: a NaN left there would spread.
        for tensor in self._cache.values():
            tensor.data[:] = 0

    def pollute_hidden_slots(self) -> None:
        """Fill every cache slot that is not in use with noise, for the check that the mask hides them."""
        noise = np.random.default_rng(0)
        for tensor in self._cache.values():
            hidden = tensor.data[:, :, self._n_cached :]
            hidden[:] = noise.standard_normal(hidden.shape, dtype=np.float32)

    def feed(self, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Append tokens to the sequence.

        Returns logits, shape (n, n_vocab), and the alignment heads' attention, shape (n_heads, n, n_audio_ctx), as
        copies. Raises InferenceError where the device fails.
        """
        assert 0 < len(tokens) <= self.capacity - self._n_cached, "the sequence does not fit the context"
        logits: list[FloatArray] = []
        attention: list[FloatArray] = []
        position = 0
        while position < len(tokens):
            some = tokens[position : position + BLOCK_TOKENS]
            outputs = self._call(some)
            logits.append(outputs["logits"].data[0, : len(some)].copy())
            attention.append(outputs["cross_attention"].data[0, :, : len(some)].copy())
            position += len(some)
        if len(logits) == 1:
            return logits[0], attention[0]
        return np.concatenate(logits), np.concatenate(attention, axis=1)

    def _call(self, tokens: Sequence[int]) -> Mapping[str, ov.Tensor]:
        stage = self._step if len(tokens) == 1 else self._block
        inputs, outputs = self._inputs[stage], self._outputs[stage]
        n, n_cached, slots = len(tokens), self._n_cached, self._dims.cache_size
        ids = inputs["input_ids"].data
        ids[0, :n] = tokens
        ids[0, n:] = 0
        # Padding behind the tokens is masked; its positions only have to be valid.
        inputs["position_ids"].data[:] = np.minimum(n_cached + np.arange(ids.shape[1]), self._dims.n_text_ctx - 1)
        mask = inputs["attention_mask"].data
        mask[0, :n_cached] = 1
        mask[0, n_cached:slots] = 0
        mask[0, slots : slots + n] = 1
        mask[0, slots + n :] = 0
        stage.infer()
        # The very last position has no slot: nothing comes after it.
        n_kept = min(n, slots - n_cached)
        for i, kind in self._layers:
            present = outputs[f"present_key_values.{i}.decoder.{kind}"].data
            cache = self._cache[f"past_key_values.{i}.decoder.{kind}"].data
            cache[:, :, n_cached : n_cached + n_kept] = present[:, :, :n_kept]
        self._n_cached += n
        return outputs


class _Stage:
    """One infer request of a compiled graph, its tensors set by name."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self.output_names = [output.any_name for output in compiled.outputs]

    def bind(self, name: str, tensor: ov.Tensor) -> None:
        self._request.set_tensor(name, tensor)

    def bind_new(self, name: str) -> ov.Tensor:
        """Make a zeroed tensor for a port and bind it."""
        port = self._compiled.output(name) if name in self.output_names else self._compiled.input(name)
        tensor = _new_tensor(port)
        self.bind(name, tensor)
        return tensor

    def infer(self) -> None:
        try:
            self._request.infer()
        except RuntimeError as error:
            raise InferenceError(
                f"the device failed while it computed ({_first_line(error)}): see `streamer devices`, update the"
                " driver, or choose another device with --device CPU"
            ) from error


def _new_tensor(port: ov.ConstOutput) -> ov.Tensor:
    tensor = ov.Tensor(port.element_type, port.shape)
    tensor.data[:] = 0
    return tensor


def _first_line(error: Exception) -> str:
    """Return what an OpenVINO exception says, without its stack of source locations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if not line.startswith(("Exception from", "Check"))), "no reason given"
    )
