"""An NPU that is the CPU: its compiler takes as long as a test wants, and what it has compiled is kept in the cache."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import openvino as ov
import pytest

from streamer.whisper.device import devices


class StandInCore:
    """OpenVINO's core on a machine with an NPU and a CPU."""

    available_devices = ("CPU", "NPU")

    def __init__(self, compile: Callable[[], None]) -> None:
        """`compile` is called for each graph that the NPU's compiler has to compile; it may wait, or raise."""
        self._core = ov.Core()
        self._compile = compile

    def compile_model(self, model: ov.Model, device: str, properties: Mapping[str, Any]) -> ov.CompiledModel:
        if device == "NPU":
            directory = properties.get("CACHE_DIR", "")
            if not directory or not any(Path(directory).glob("*.blob")):
                self._compile()
            properties = {**properties, "INFERENCE_PRECISION_HINT": "f32"}
        return self._core.compile_model(model, "CPU", properties)

    def get_property(self, device: str, name: str) -> object:
        return self._core.get_property(device.replace("NPU", "CPU"), name)


def install(monkeypatch: pytest.MonkeyPatch, compile: Callable[[], None]) -> None:
    """Have the program find an NPU beside the CPU."""
    monkeypatch.setattr(devices, "_cores", [cast(ov.Core, StandInCore(compile))])
