"""Graphs that are compiled in another process first."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.errors import InferenceError
from streamer.whisper.device import apart as module
from streamer.whisper.device import compile as compile_module
from streamer.whisper.device.apart import compile_apart, may_abort, written
from streamer.whisper.device.devices import the_core
from streamer.whisper.graphs.compress import constant
from streamer.whisper.ir import read_graph
from tests.unit.whisper.device.conftest import Planned

PROPERTIES = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}


def graph(precision: str = "") -> ov.Model:
    """Return a graph with weights in a precision of ours; of 4 bits, as others export them, unless it is named."""
    weights = np.random.default_rng(0).standard_normal((64, 128), np.float32)
    four_bits = ov.Tensor(ov.Type.i4, ov.Shape([64, 128]))
    four_bits.data[:] = 0x21
    small = ops.convert(ops.constant(four_bits), "f32")
    x = ops.parameter([1, 128], np.float32, "x")
    y = ops.result(ops.matmul(x, constant(weights, precision) if precision else small, False, True))
    for node, name in ((x, "x"), (y, "y")):
        node.output(0).set_names({name})
    return ov.Model([y], [x], "m")


@pytest.mark.parametrize(("precision", "small"), [("f16", False), ("int8", False), ("int8-sym", False), ("", True)])
def test_only_weights_of_4_bits_on_an_npu_may_abort(precision: str, small: bool) -> None:
    found = {device: may_abort(graph(precision), device) for device in ("NPU", "NPU.0", "CPU", "GPU")}
    assert found == {"NPU": small, "NPU.0": small, "CPU": False, "GPU": False}


def test_what_the_other_process_compiled_is_only_loaded(tmp_path: Path) -> None:
    properties = {**PROPERTIES, "CACHE_DIR": str(tmp_path)}
    with written(graph()) as path:
        compile_apart(path, "CPU", properties)
    blobs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.blob")}
    assert len(blobs) == 1
    # Also at the next start, when the graph is written elsewhere.
    with written(graph()) as path:
        the_core().compile_model(read_graph(path), "CPU", properties)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.blob")} == blobs


@pytest.mark.parametrize("cached", [False, True])
def test_graphs_that_may_abort_are_compiled_apart_first(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    apart: list[str] = []
    monkeypatch.setattr(compile_module, "may_abort", lambda model, device: True)
    monkeypatch.setattr(compile_module, "compile_apart", lambda path, device, properties: apart.append(device))
    compilation = planned(cache_dir=tmp_path if cached else None)
    compilation.compile()
    assert apart == ["CPU"] * 3
    assert all(compiled.inputs for compiled in compilation.compiled.values())


@pytest.mark.parametrize("code", ["import os; os.abort()", "raise RuntimeError('Exception from x\\nno such type')"])
def test_a_compiler_that_fails_is_an_error_and_not_the_end(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(module, "_COMPILE", code)
    with written(graph()) as path, pytest.raises(InferenceError) as caught:
        compile_apart(path, "NPU", PROPERTIES)
    assert "\n" not in str(caught.value)
