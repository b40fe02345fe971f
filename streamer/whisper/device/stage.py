"""One compiled graph with an infer request of its own, and tensors in the types that devices compute in."""

import time
from collections.abc import Callable, Mapping

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from streamer.arrays import Float32Array, FloatArray
from streamer.errors import LostDeviceError, ModelError
from streamer.whisper.device.sizes import Sizes
from streamer.whisper.ir import first_line

# An accelerator that computes for longer has hung: the largest encoder takes a few seconds.
HANGS_AFTER_S = 30.0

# A graph that has run counts as hung after this multiple of its longest run, and after 5 s at the earliest: live audio
# that waits for 30 s is lost.
TIMES_LONGER, HANGS_NOT_BEFORE_S = 10, 5.0

# Requests that never came back, with their tensors. To destroy one would wait for it.
_hung: list[tuple[ov.InferRequest, Mapping[str, ov.Tensor]]] = []


class Stage:
    """Runs one compiled graph. One thread at a time may use it."""

    def __init__(self, sizes: Sizes, compiled: ov.CompiledModel, device: str) -> None:
        self.sizes = sizes
        self.device = device
        self.n_calls = 0
        # Called before each run; what it raises ends the computation.
        self.before: Callable[[], None] = no_op
        # A CPU does not hang, and a decoder's step on it is so short that a watched one costs more.
        self._watched = device != "CPU"
        self._ports: dict[str, ov.ConstOutput] = {
            name: port for port in (*compiled.inputs, *compiled.outputs) for name in port.names
        }
        self._request = compiled.create_infer_request()
        self._patience_s = HANGS_AFTER_S
        self._longest_s = 0.0

    def port(self, name: str) -> ov.ConstOutput:
        """Return an input or an output. Raises ModelError if the graph lacks it."""
        if name not in self._ports:
            raise ModelError(
                f"the {self.sizes} graph has no port {name}, it has {', '.join(sorted(self._ports))!r:.300}: expected a"
                " Whisper graph as `streamer docs design` says; use the original checkpoint"
            )
        return self._ports[name]

    def infer(self, inputs: Mapping[str, ov.Tensor], outputs: Mapping[str, ov.Tensor] | None = None) -> None:
        """Compute. `outputs` are written to; the others stay valid until the next run (see `output`).

        Raises LostDeviceError if the device fails, or gives no answer in time.
        """
        self.before()
        tensors = {**inputs, **(outputs or {})}
        try:
            for name, tensor in tensors.items():
                self._request.set_tensor(self.port(name), tensor)
            if self._watched:
                answered = self._run_watched()
            else:
                # Otherwise it returns copies of all outputs.
                self._request.infer(share_outputs=True)
                answered = True
        except RuntimeError as error:
            raise self.failure(first_line(error)) from error
        if not answered:
            _hung.append((self._request, tensors))
            lost = self.failure(f"no answer within {self._patience_s:.0f} s")
            lost.hopeless = True
            raise lost
        self.n_calls += 1

    def _run_watched(self) -> bool:
        begin_s = time.monotonic()
        self._request.start_async()
        answered: bool = self._request.wait_for(round(self._patience_s * 1000))
        self._longest_s = max(self._longest_s, time.monotonic() - begin_s)
        if answered:
            longer_s = TIMES_LONGER * self._longest_s
            self._patience_s = min(max(longer_s, HANGS_NOT_BEFORE_S), HANGS_AFTER_S)
        return answered

    def output(self, name: str) -> ov.Tensor:
        """Return what the last run computed."""
        return self._request.get_tensor(self.port(name))

    def tensor(self, name: str, values: NDArray[np.generic]) -> ov.Tensor:
        """Return a copy of values in the type of an input."""
        tensor = ov.Tensor(self.port(name).element_type, ov.Shape(values.shape))
        tensor.data[:] = values
        return tensor

    def failure(self, reason: str) -> LostDeviceError:
        """Return the error of a device that failed in this graph."""
        return LostDeviceError(
            f"{self.device} failed while it computed the {self.sizes} ({reason}): see `streamer doctor`, update the"
            " driver, or choose another device with --device CPU",
            self.sizes.stage,
        )


def no_op() -> None:
    """Do nothing before a run."""


def to_float32(tensor: ov.Tensor) -> FloatArray:
    """Return a tensor's values as a copy; NumPy has no bfloat16, and takes such bits for float16."""
    if tensor.element_type != ov.Type.bf16:
        return np.array(tensor.data, dtype=np.float32)
    # The upper half of a float32's bits.
    bits: NDArray[np.uint32] = tensor.data.view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32)


def as_type(values: Float32Array, element_type: ov.Type) -> FloatArray:
    """Return values as NumPy sees them in a tensor of a type; bits that bfloat16 has no room for are dropped."""
    if element_type != ov.Type.bf16:
        return values
    bits: NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits.view(np.float16)
