"""Whisper's graphs compiled for a device, with long-lived infer requests and tensors that we own.

Every input of every request is bound before its first run, and no tensor aliases another window's: cross-attention keys
and values are double-buffered, so that one window can be encoded while another is being decoded.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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

# Reduced precision would change tokens between machines. An NPU computes in half precision and takes no such hint.
_FULL_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}

# The NPU plugin without an NPU: it delegates to the CPU (docs/design.md). By default it hands tensors from one
# partition to the next in half precision, which an NPU computes in anyway; a check on a CPU wants it exact.
_NPU_THROUGH_CPU = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_F16IC": "NO", **_FULL_PRECISION}


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An inference device."""

    name: str
    full_name: str

    # Whether AUTO would take it.
    chosen: bool


def available_devices() -> list[str]:
    """Return the names of the inference devices that OpenVINO finds here."""
    return list(ov.Core().available_devices)


def list_devices() -> list[DeviceInfo]:
    """Return the inference devices that OpenVINO finds here."""
    core = ov.Core()
    chosen = choose_device("AUTO", core.available_devices)
    return [
        DeviceInfo(name, str(core.get_property(name, "FULL_DEVICE_NAME")), name == chosen)
        for name in core.available_devices
    ]


def choose_device(wanted: str, available: Sequence[str]) -> str:
    """Resolve AUTO, NPU, GPU or CPU to the best of the available devices (`GPU.1` counts as a GPU).

    A device's full name stands for itself. Raises ConfigError where the wanted device is not there.
    """
    return choose_devices(wanted, available)[0]


def choose_devices(wanted: str, available: Sequence[str]) -> list[str]:
    """Return all available devices that fit AUTO, NPU, GPU or CPU, the best first.

    Raises ConfigError where there is none.
    """
    if wanted in available:
        return [wanted]
    kinds = DEVICE_ORDER if wanted == "AUTO" else (wanted,)
    found = [name for kind in kinds for name in available if name.split(".")[0] == kind]
    if found:
        return found
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
        self._properties: dict[str, object] = {"PERFORMANCE_HINT": "LATENCY"}
        if npu_through_cpu:
            self.device = "NPU"
            self._properties |= _NPU_THROUGH_CPU
        else:
            self.device = choose_device(device, available_devices())
            if not self.device.startswith("NPU"):
                self._properties |= _FULL_PRECISION
        if cache_dir is not None:
            self._properties["CACHE_DIR"] = str(cache_dir)
        # Device of each stage, as the `ready` event tells it.
        self.devices = dict.fromkeys(("encoder", "cross_kv", "decoder"), self.device)
        dims, weights = checkpoint.dims, checkpoint.tensors
        builders: dict[str, Callable[[], ov.Model]] = {
            "encoder": lambda: graphs.build_encoder(dims, weights),
            "cross_kv": lambda: graphs.build_cross_kv(dims, weights),
            "decoder": lambda: graphs.build_decoder(dims, weights, 1, alignment_heads),
            "block_decoder": lambda: graphs.build_decoder(dims, weights, BLOCK_TOKENS, alignment_heads),
        }
        with ThreadPoolExecutor(len(builders), "compile") as pool:
            compiled = dict(zip(builders, pool.map(self._compile, builders, builders.values()), strict=True))

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

    def _compile(self, stage: str, build: Callable[[], ov.Model]) -> ov.CompiledModel:
        model = build()
        if "CACHE_DIR" in self._properties:
            try:
                return self._core.compile_model(model, self.device, self._properties)
            except RuntimeError as error:
                # The cache may be the reason: a full disk, a blob of another driver. Without it is the test.
                logger.debug("%s for %s with the cache: %s", stage, self.device, _first_line(error))
        properties = {key: value for key, value in self._properties.items() if key != "CACHE_DIR"}
        try:
            compiled = self._core.compile_model(model, self.device, properties)
        except RuntimeError as error:
            raise InferenceError(
                f"{self.device} cannot compile the {stage} graph ({_first_line(error)}): update its driver,"
                " or choose another device with --device CPU"
            ) from None
        if properties != self._properties:
            logger.warning(
                "the cache of compiled graphs in %s cannot be used for the %s graph: delete that directory",
                self._properties["CACHE_DIR"],
                stage,
            )
        return compiled


class DecoderRuntime:
    """The decoder's forward pass over one growing sequence, with its key-value cache.

    Tokens go through in blocks of `BLOCK_TOKENS`, a single one through the one-token graph; the two share the cache.
    """

    def __init__(self, dims: ModelDimensions, step: "_Stage", block: "_Stage", window: EncodedWindow) -> None:
        self._dims = dims
        # Tokens in the cache.
        self._n_cached = 0
        # Cache slots that may hold something else than zeros, from the first on.
        self._n_dirty = 0
        names = [f"{i}.decoder.{kind}" for i in range(dims.n_text_layer) for kind in ("key", "value")]
        # Cached keys and values, each of shape (1, n_head, P, head); shared by both graphs.
        cache = {name: step.bind_new(f"past_key_values.{name}") for name in names}
        for name, tensor in cache.items():
            block.bind(f"past_key_values.{name}", tensor)
        self._cache = [tensor.data for tensor in cache.values()]
        self._step = _Call(step, names)
        self._block = _Call(block, names)
        self.use(window)

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can hold."""
        return self._dims.n_text_ctx

    def use(self, window: EncodedWindow) -> None:
        """Decode this window from now on."""
        for name, tensor in window.tensors.items():
            for call in (self._step, self._block):
                call.stage.bind(name.replace("present_", "past_", 1), tensor)
        self.begin()

    def begin(self) -> None:
        """Forget the sequence and start a new one."""
        # Hidden slots are masked, but what they hold still meets the arithmetic: a NaN left there would spread.
        for slots in self._cache:
            slots[:, :, : self._n_dirty] = 0
        self._n_cached = self._n_dirty = 0

    def pollute_hidden_slots(self) -> None:
        """Fill every cache slot that is not in use with noise, for the check that the mask hides them."""
        noise = np.random.default_rng(0)
        for slots in self._cache:
            # The same in every slot: attention that averages many of them would average white noise away.
            pattern = 4.0 * noise.standard_normal((1, slots.shape[1], 1, slots.shape[3]), dtype=np.float32)
            slots[:, :, self._n_cached :] = pattern
        self._n_dirty = self._dims.cache_size

    def feed(self, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Append tokens to the sequence.

        Returns logits, shape (n, n_vocab), and the alignment heads' attention, shape (n_heads, n, n_audio_ctx), as
        copies. Raises InferenceError where the device fails.
        """
        assert 0 < len(tokens) <= self.capacity - self._n_cached, "the sequence does not fit the context"
        logits: list[FloatArray] = []
        attention: list[FloatArray] = []
        for first in range(0, len(tokens), BLOCK_TOKENS):
            some = tokens[first : first + BLOCK_TOKENS]
            call = self._forward(some)
            logits.append(call.logits[0, : len(some)].copy())
            attention.append(call.attention[0, :, : len(some)].copy())
        if len(logits) == 1:
            return logits[0], attention[0]
        return np.concatenate(logits), np.concatenate(attention, axis=1)

    def _forward(self, tokens: Sequence[int]) -> "_Call":
        call = self._step if len(tokens) == 1 else self._block
        n, n_cached = len(tokens), self._n_cached
        call.ids[0, :n] = tokens
        # Padding behind the tokens is hidden from them; it only has to be valid.
        call.ids[0, n:] = 0
        np.minimum(call.offsets + n_cached, self._dims.n_text_ctx - 1, out=call.positions)
        self._show(call.mask[0], n_cached, n)
        call.stage.infer()
        # The very last position has no slot: nothing comes after it.
        n_kept = min(n, self._dims.cache_size - n_cached)
        for slots, present in zip(self._cache, call.present, strict=True):
            slots[:, :, n_cached : n_cached + n_kept] = present[:, :, :n_kept]
        self._n_cached += n
        self._n_dirty = max(self._n_dirty, n_cached + n_kept)
        return call

    def _show(self, mask: FloatArray, n_cached: int, n: int) -> None:
        """Show the filled slots and the n current tokens, which sit behind all slots; shape (P + T,)."""
        slots = self._dims.cache_size
        mask[:n_cached] = 1
        mask[n_cached:slots] = 0
        mask[slots : slots + n] = 1
        mask[slots + n :] = 0


class _Call:
    """A decoder graph with its tensors as arrays; looked up once, since a step takes less time than a few look-ups."""

    def __init__(self, stage: "_Stage", names: Sequence[str]) -> None:
        self.stage = stage
        self.ids = stage.bind_new("input_ids").data
        self.positions = stage.bind_new("position_ids").data
        self.mask = stage.bind_new("attention_mask").data
        self.logits = stage.bind_new("logits").data
        self.attention = stage.bind_new("cross_attention").data
        # Keys and values of the call's own tokens, in the order of `names`.
        self.present = [stage.bind_new(f"present_key_values.{name}").data for name in names]
        # Position of each token of the call after its first.
        self.offsets = np.arange(len(self.positions))


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
    found = (line for line in reversed(lines) if not line.startswith(("Exception from", "Check")))
    return next(found, "no reason given")[:200]
