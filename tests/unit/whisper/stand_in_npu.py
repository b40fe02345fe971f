"""An NPU that is the CPU: its compiler may wait or fail, and its results may be changed."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest

from streamer.arrays import Float32Array
from streamer.whisper.device import devices
from streamer.whisper.device import stage as stage_module
from streamer.whisper.device.stage import Stage
from tests.waiting import WAIT_S

Compile = Callable[[ov.Model], None]


def at_once(model: ov.Model) -> None:
    """Compile without delay."""


class Compiler:
    """The compiler of the stand-in, which waits until it may go on."""

    def __init__(self) -> None:
        self.n_compiled = 0
        self.fails = False
        self._open = threading.Event()

    def __call__(self, model: ov.Model) -> None:
        assert self._open.wait(WAIT_S), "nobody lets the compiler go on"
        self.n_compiled += 1
        if self.fails:
            raise RuntimeError("Exception from x\nthe compiler gives up")

    def go_on(self) -> None:
        """Compile everything, from now on without delay."""
        self._open.set()

    def pause(self) -> None:
        """Compile nothing from now on."""
        self._open.clear()
        self.n_compiled = 0


class StandInCore:
    """OpenVINO's core on a machine with a CPU, and accelerators that compute as the CPU does."""

    def __init__(self, compile: Compile = at_once, available: tuple[str, ...] = ("CPU", "NPU")) -> None:
        """`compile` receives each graph that the NPU's compiler has to compile; it may wait, or raise."""
        self.available_devices = available
        self.driver = "1.38"
        # Devices that graphs were compiled for.
        self.compiled_for: list[str] = []
        self._core = ov.Core()
        self._compile = compile

    def compile_model(self, model: ov.Model | Path, device: str, properties: Mapping[str, Any]) -> ov.CompiledModel:
        self.compiled_for.append(device)
        directory = properties.get("CACHE_DIR", "")
        if device == "NPU" and not (directory and any(Path(directory).glob("*.blob"))):
            self._compile(self._core.read_model(model) if isinstance(model, Path) else model)
        exact = {} if device == "CPU" else {"INFERENCE_PRECISION_HINT": "f32"}
        return self._core.compile_model(model, "CPU", {**properties, **exact})

    def read_model(self, path: Path) -> ov.Model:
        return self._core.read_model(path)

    def get_property(self, device: str, name: str) -> object:
        return self.driver if name == "NPU_DRIVER_VERSION" else self._core.get_property("CPU", name)


def install(
    monkeypatch: pytest.MonkeyPatch,
    compile: Compile = at_once,
    available: tuple[str, ...] = ("CPU", "NPU"),
) -> StandInCore:
    """Have the program find an NPU beside the CPU."""
    core = StandInCore(compile, available)
    monkeypatch.setattr(ov, "Core", lambda: core)  # also after a device was lost
    monkeypatch.setattr(devices, "_cores", [cast(ov.Core, core)])
    return core


def npu_computes(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Float32Array], object]) -> None:
    """Let a stage's output of each run on the NPU be changed."""
    infer = Stage.infer

    def changed(stage: Stage, inputs: Mapping[str, ov.Tensor], outputs: Mapping[str, ov.Tensor] | None = None) -> None:
        infer(stage, inputs, outputs)
        if stage.device == "NPU" and stage.sizes.stage == name:
            for values in [tensor.data for tensor in (outputs or {}).values()] or [
                stage.output("logits" if name == "decoder" else "last_hidden_state").data
            ]:
                change(values)

    monkeypatch.setattr(Stage, "infer", changed)


def add_noise(values: Float32Array) -> None:
    """Add the same noise each time, so that masks and state are in order."""
    values += 3 * np.random.default_rng(1).standard_normal(values.shape[-1], dtype=np.float32)


def late() -> Callable[[Float32Array], None]:
    """Return what puts the result of the call before, of the same size, in the place of each."""
    before: dict[tuple[int, ...], Float32Array] = {}

    def exchange(values: Float32Array) -> None:
        own = values.copy()
        values[:] = before.get(values.shape, own)
        before[values.shape] = own

    return exchange


class HungRequest:
    """A request to a device that never answers."""

    def __init__(self, wait: Callable[[float], None]) -> None:
        self._wait = wait

    def set_tensor(self, port: ov.ConstOutput, tensor: ov.Tensor) -> None:
        """Take a tensor."""

    def start_async(self) -> None:
        """Begin, and never end."""

    def wait_for(self, timeout_ms: int) -> bool:
        """Let the time pass."""
        self._wait(timeout_ms / 1000)
        return False


def npu_hangs(monkeypatch: pytest.MonkeyPatch, name: str, n_calls: int, wait: Callable[[float], None]) -> None:
    """Let the NPU answer no more after this many runs of a stage; `wait` lets seconds pass."""
    infer, n_left = Stage.infer, n_calls
    monkeypatch.setattr(stage_module, "_hung", [])

    def hanging(stage: Stage, inputs: Mapping[str, ov.Tensor], outputs: Mapping[str, ov.Tensor] | None = None) -> None:
        nonlocal n_left
        if stage.device == "NPU":
            n_left -= stage.sizes.stage == name
            if n_left < 0:
                stage._request = cast(ov.InferRequest, HungRequest(wait))
        infer(stage, inputs, outputs)

    monkeypatch.setattr(Stage, "infer", hanging)
