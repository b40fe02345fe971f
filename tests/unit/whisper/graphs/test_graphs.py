"""Graphs: their ports, weights with fewer bits, and those of others, which get our ports."""

import math
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.arrays import FloatArray
from streamer.whisper.device.devices import the_core
from streamer.whisper.device.masks import OURS
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.compress import PRECISIONS, constant
from streamer.whisper.graphs.foreign import load_triple
from streamer.whisper.graphs.ports import Ports, check_ports
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import random_checkpoint
from tests.unit.whisper.triple import write_triple


def relu(input: str = "", output: str = "", shape: tuple[int, ...] = (1, 4), *, state: bool = False) -> ov.Model:
    """Return a graph whose ports have these names; without one, a port has none."""
    x = ops.parameter(list(shape), np.float32)
    x.output(0).set_names({input} if input else set())
    if state:
        total = ops.add(x, ops.read_value(ops.constant(np.zeros((1, 4), np.float32)), "memory", ov.Type.f32, [1, 4]))
        return ov.Model([ops.result(total)], [ops.assign(total, "memory")], [x], "stateful")
    y = ops.result(ops.relu(x))
    y.output(0).set_names({output} if output else set())
    return ov.Model([y], [x], "relu")


def test_a_graph_with_the_ports_that_are_expected_passes_and_more_outputs_do_no_harm() -> None:
    for outputs in ({"y": (1, 4)}, {}):
        check_ports(Path("a.xml"), relu("x", "y"), Ports({"x": (1, -1)}, outputs), "")


@refusals("whisper_ports")
def test_ports_of_another_graph_are_named(refusal: Refusal) -> None:
    given = dict(refusal.given)
    wanted = Ports(given.pop("inputs"), given.pop("outputs"))
    with refusal.expected():
        check_ports(Path("a.xml"), relu(**given), wanted, "try again")


def value(node: ov.Node) -> FloatArray:
    """Return what a constant with its nodes gives, as the CPU computes it."""
    compiled = the_core().compile_model(ov.Model([ops.result(node)], [], "value"), "CPU")
    return np.array(compiled([])[0])


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


# Small, with two layers of two heads.
DIMS = ModelDimensions(4, 1500, 8, 2, 2, 40, 32, 8, 2, 2)
HEADS = [(1, 0), (0, 1), (1, 1)]


def test_the_attention_of_the_alignment_heads_takes_the_place_of_all_layers(tmp_path: Path) -> None:
    write_triple(tmp_path, random_checkpoint(DIMS), OURS, capacity=32, position_shape=(1, 1))
    triple = load_triple(tmp_path)
    assert triple.dims == DIMS
    ours, theirs = triple.read("decoder", HEADS), ov.Core().read_model(triple.paths["decoder"])
    random = np.random.default_rng(0)
    given = {port.any_name: random.standard_normal(port.shape).astype(np.float32) for port in theirs.inputs}
    given |= {"input_ids": np.array([[3]]), "position_ids": np.array([[2]])}
    compiled = [the_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}) for model in (theirs, ours)]
    expected = {port.any_name: values for port, values in compiled[0](given).items()}
    found = compiled[1]({**given, "position_ids": np.array([2])})["cross_attention"]
    layers = [expected[f"/decoder/layers.{layer}/encoder_attn/Softmax_output_0"] for layer in range(2)]
    np.testing.assert_allclose(found, [[layers[layer][head] for layer, head in HEADS]], atol=1e-6)
