"""Precisions by name, and graphs with fewer bits."""

import math
from collections import Counter

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.arrays import FloatArray
from streamer.errors import ConfigError
from streamer.whisper.device.devices import the_core
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import build as graphs
from streamer.whisper.graphs import compress as module
from streamer.whisper.graphs.compress import PRECISIONS, constant, parse_precisions
from streamer.whisper.graphs.ports import ports
from tests.whisper.graphs.test_build import run
from tests.whisper.support import random_checkpoint

DIMS = ModelDimensions(8, 1500, 64, 1, 1, 100, 32, 64, 1, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int8", ("int8", "int8", "int8")),
        ("f32", ("f32", "f32", "f32")),
        ("encoder=f16,cross_kv=f32,decoder=int8", ("f16", "f32", "int8")),
        (" decoder = int8 ", ("f16", "f16", "int8")),
        ("cross_kv=int8, encoder=f32", ("f32", "int8", "f16")),
    ],
)
def test_precisions_are_for_all_stages_or_for_some(text: str, expected: tuple[str, str, str]) -> None:
    assert parse_precisions(text) == dict(zip(("encoder", "cross_kv", "decoder"), expected, strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int9", "there is no precision 'int9': did you mean int8?"),
        ("F16", "there is no precision 'F16': did you mean f16?"),
        ("", "there is no precision '': use one of f32, f16, int8, int8-sym"),
        ("decodr=int8", "there is no stage 'decodr': did you mean decoder?"),
        ("decoder=bf16", "there is no precision 'bf16': did you mean f16?"),
        ("decoder=", "there is no precision ''"),
        ("int4", "there is no precision 'int4': did you mean int8?"),
        ("decoder=int8,int8", "name a precision for 'int8': expected STAGE=PRECISION"),
        ("decoder=int8,decoder=f16", "name decoder twice"),
        ("x" * 10_000, "there is no precision 'xxx"),
    ],
)
def test_an_unknown_precision_or_stage_names_the_nearest(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_precisions(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def stored_bytes(model: ov.Model) -> float:
    """Return how large the weights are: shapes and indices, which are i64, are none."""
    outputs = [node.output(0) for node in model.get_ops() if node.get_type_name() == "Constant"]
    weights = [output for output in outputs if output.element_type != ov.Type.i64]
    return float(sum(math.prod(output.shape) * output.element_type.bitwidth / 8 for output in weights))


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


def test_a_matrix_is_worked_on_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(0).standard_normal((7, 192), np.float32)
    for precision in PRECISIONS:
        whole = value(constant(weights.copy(), precision))
        with monkeypatch.context() as patch:
            patch.setattr(module, "_PIECE", 2 * 192)
            np.testing.assert_array_equal(value(constant(weights.copy(), precision)), whole)


@pytest.mark.parametrize(
    ("precision", "least", "most"),
    [("f16", 0.5, 0.51), ("int8", 0.25, 0.35), ("int8-sym", 0.25, 0.35)],
)
def test_the_weights_shrink_and_the_graph_stays(precision: str, least: float, most: float) -> None:
    tensors = random_checkpoint(DIMS).tensors

    def build(to: str) -> list[ov.Model]:
        return [
            graphs.build_encoder(DIMS, tensors, to),
            graphs.build_cross_kv(DIMS, tensors, to),
            graphs.build_decoder(DIMS, tensors, [(1, 0)], to),
        ]

    small, large = build(precision), build("f32")
    # The encoder is mostly its positions here, which are no matrix.
    assert least < sum(map(stored_bytes, small[1:])) / sum(map(stored_bytes, large[1:])) < most
    for ours, theirs in zip(small, large, strict=True):
        for found, expected in zip(ours.inputs + ours.outputs, theirs.inputs + theirs.outputs, strict=True):
            assert found.names == expected.names
            assert found.partial_shape == expected.partial_shape
            assert found.element_type == expected.element_type
    kinds = Counter(
        node.output(0).element_type.get_type_name()
        for node in small[2].get_ops()
        if node.get_type_name() == "Constant" and math.prod(node.output(0).shape) >= 64 * 64
    )
    assert kinds == {{"f16": "f16", "int8": "u8", "int8-sym": "i8"}[precision]: 13}

    mel = {"input_features": np.random.default_rng(0).standard_normal((1, 8, 3000), np.float32)}
    found, expected = (run(model, mel)["last_hidden_state"] for model in (small[0], large[0]))
    assert 0 < np.abs(found - expected).mean() < 0.05


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


def test_a_compressed_decoder_can_be_fixed_and_keeps_its_bits() -> None:
    decoder = graphs.build_decoder(DIMS, random_checkpoint(DIMS).tensors, [(1, 0)], "int8")
    fixed = graphs.fix_sizes(decoder, ports("decoder", DIMS, 1, n_tokens=4, n_slots=8).inputs)
    assert not fixed.is_dynamic()
    assert stored_bytes(fixed) == stored_bytes(decoder)
