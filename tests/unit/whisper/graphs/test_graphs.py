"""Weights of graphs with fewer bits."""

import math
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.whisper.device.devices import the_core
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import build_decoder, fix_sizes, logits_of, without_logits
from streamer.whisper.graphs.compress import PRECISIONS, constant
from streamer.whisper.graphs.ports import HIDDEN, LOOKED_UP, ports
from tests.unit.whisper.support import random_checkpoint

DIMS = ModelDimensions(4, 1500, 8, 2, 2, 40, 32, 8, 2, 2)


def value(node: ov.Node) -> FloatArray:
    """Return what a constant with its nodes gives, as the CPU computes it."""
    compiled = the_core().compile_model(ov.Model([ops.result(node)], [], "value"), "CPU")
    return np.array(compiled([])[0])


def test_logits_that_are_made_apart_are_those_of_the_whole_decoder() -> None:
    checkpoint = random_checkpoint(DIMS)
    whole = build_decoder(checkpoint.dims, checkpoint.tensors, [(0, 0)])
    inputs = ports("decoder", checkpoint.dims, 1, n_tokens=3, n_slots=4).inputs
    rng = np.random.default_rng(0)
    values = {
        name: rng.integers(0, 3, shape) if name in LOOKED_UP else rng.random(shape, np.float32)
        for name, shape in inputs.items()
    }

    def run(graph: ov.Model, given: dict[str, NDArray[Any]], output: str) -> FloatArray:
        compiled = the_core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return np.array(compiled(given)[output])

    expected = run(fix_sizes(whole, inputs), values, "logits")
    (hidden,) = run(fix_sizes(without_logits(whole), inputs), values, HIDDEN)
    np.testing.assert_allclose(run(logits_of(whole), {HIDDEN: hidden}, "logits"), expected[0], atol=1e-5)


# A row's scale is its range over as many steps as there are.
@pytest.mark.parametrize(("precision", "n_steps"), [("int8", 255), ("int8-sym", 256)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(5, 384), (3, 7), (4, 8, 3), (1, 1)])
def test_a_weight_is_its_number_times_the_scale(
    precision: str, n_steps: int, dtype: str, shape: tuple[int, ...]
) -> None:
    weights = np.random.default_rng(0).normal(0.01, 0.1, shape).astype(dtype)
    found = value(constant(weights.copy(), precision))
    assert found.shape == weights.shape
    rows = weights.reshape(len(weights), -1).astype(np.float32)
    high, low = np.maximum(rows.max(axis=1), 0), np.minimum(rows.min(axis=1), 0)
    extreme = np.where(high > -low, high, low)
    scale = (high - low if precision == "int8" else 2 * np.abs(extreme)) / n_steps
    # What is nearly the opposite of the extreme has no number of its own: it takes the last, up to a step away.
    lost = np.abs(rows + extreme[:, None]) < scale[:, None]
    error = np.abs(found.reshape(rows.shape) - rows)
    # Half a step, and what float16 rounds from scales and products.
    assert (error <= np.where(lost, 1.02, 0.7) * scale[:, None]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", [0.0, 1e-9, -3e-8, 70_000.0, -1e9])
def test_extreme_weights_stay_finite_and_zeros_stay_zeros(precision: str, number: float) -> None:
    weights = np.zeros((2, 64), np.float32)
    weights[1, 3] = number
    found = value(constant(weights.copy(), precision))
    assert np.isfinite(found).all()
    assert np.abs(found[0]).max() == 0
    assert np.abs(np.delete(found[1], 3)).max() == 0


@pytest.mark.parametrize("precision", ["int8", "int8-sym"])
def test_the_processor_keeps_them_compressed(precision: str) -> None:
    """A matrix that the plugin does not know as compressed is unpacked to float32 when the graph is compiled."""
    weights = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    x = ops.parameter([1, 256], np.float32, "x")
    model = ov.Model([ops.result(ops.matmul(x, constant(weights, precision), False, True))], [x], "m")
    compiled = the_core().compile_model(model, "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0})
    types = {
        str(node.get_rt_info()["outputPrecisions"].astype(str))
        for node in compiled.get_runtime_model().get_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Const" and math.prod(node.get_output_shape(0)) >= 256 * 256
    }
    assert types
    assert types <= {"u8", "i8"}
