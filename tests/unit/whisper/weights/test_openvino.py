"""Graphs that others exported, read as the checkpoints that they were made of."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import formats, openvino
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import config_of, random_checkpoint
from tests.unit.whisper.weights.openvino_writer import (
    SCALES,
    Store,
    Style,
    as_float,
    as_half,
    as_int4,
    as_int8,
    write_optimum,
    write_triple,
)

# Heads of 16, so that the scale of attention is a power of two, and so is its root.
DIMS = ModelDimensions(4, 1500, 32, 2, 1, 50, 48, 32, 2, 2)

Write = Callable[..., Path]
both = pytest.mark.parametrize("write", [write_optimum, write_triple])


@pytest.fixture(scope="module")
def exact() -> Checkpoint:
    """Weights that float16 holds, and a quarter of them too, so that nothing is rounded."""
    found = random_checkpoint(DIMS)
    rounded = {name: (np.rint(256 * value) / 256).astype(np.float16) for name, value in found.tensors.items()}
    return replace(found, tensors=rounded)


@pytest.fixture(autouse=True)
def probed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Graphs that would be read in another process first."""
    paths: list[Path] = []
    monkeypatch.setattr(openvino, "probe_graphs", paths.extend)
    return paths


@both
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("store", "transposed"), [(as_float, False), (as_half, True)])
def test_the_weights_are_those_that_were_exported(
    exact: Checkpoint, tmp_path: Path, probed: list[Path], write: Write, scale: str, store: Store, transposed: bool
) -> None:
    write(tmp_path, exact, Style(store, scale, transposed))
    assert formats.find(tmp_path) == (openvino, tmp_path)
    found = openvino.load(tmp_path)
    assert {*probed} == {*tmp_path.glob("*.xml")}
    assert found.dims == DIMS
    assert set(found.tensors) == set(exact.tensors)
    for name, expected in exact.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], expected, err_msg=name)
        assert found.tensors[name].dtype == (np.float16 if store is as_half else np.float32)


@pytest.mark.parametrize(("store", "steps"), [(as_int8, 255), (as_int4, 14)])
def test_integers_are_unpacked_in_half_precision(exact: Checkpoint, tmp_path: Path, store: Store, steps: int) -> None:
    found = openvino.load(write_optimum(tmp_path, exact, Style(store)))
    assert found.tensors["decoder.layers.0.fc1.weight"].dtype == np.float16
    for name, expected in exact.tensors.items():
        error = float(np.abs(found.tensors[name] - expected).max())
        assert error <= 1.2 * float(np.abs(expected).max()) / steps, name


def test_logits_of_their_own_weights_are_found(exact: Checkpoint, tmp_path: Path) -> None:
    own = np.random.default_rng(1).standard_normal((50, 32)).astype(np.float16)
    for values, tied in ((own, False), (exact.tensors["decoder.embed_tokens.weight"], True)):
        untied = replace(exact, tensors={**exact.tensors, "proj_out.weight": values})
        found = openvino.load(write_optimum(tmp_path, untied, Style(tied=False)))
        assert ("proj_out.weight" not in frozenset(found.tensors)) == tied


@both
def test_a_config_of_another_model_is_refused(exact: Checkpoint, tmp_path: Path, write: Write) -> None:
    config = write(tmp_path, exact) / "config.json"
    config.write_text(json.dumps({**config_of(DIMS), "max_target_positions": 448}), encoding="utf-8")
    assert openvino.load(tmp_path).dims == DIMS, "fewer positions may have been exported"
    for key, value in (("encoder_attention_heads", 4), ("vocab_size", 51), ("max_target_positions", 47)):
        config.write_text(json.dumps({**config_of(DIMS), key: value}), encoding="utf-8")
        with pytest.raises(ModelError):
            openvino.load(tmp_path)


def test_graphs_of_two_models_are_refused(exact: Checkpoint, tmp_path: Path) -> None:
    other = random_checkpoint(replace(DIMS, n_audio_state=64, n_text_state=64))
    write_optimum(tmp_path / "a", exact)
    write_optimum(tmp_path / "b", other)
    for suffix in (".xml", ".bin"):
        shutil.copy(tmp_path / f"b/openvino_encoder_model{suffix}", tmp_path / "a")
    with pytest.raises(ModelError):
        openvino.load(tmp_path / "a")


def squared(node: ov.Node) -> ov.Node:
    scores = node.input_value(0)
    return ops.softmax(ops.multiply(scores, ops.reduce_max(ops.abs(scores), [0, 1, 2, 3], True)), -1)


def outer(node: ov.Node) -> ov.Node:
    """A matrix that is the product of two vectors, of any size in a small file."""
    n_out, n_in = node.input_value(1).shape
    column, row = (ops.constant(np.ones(shape, np.float32)) for shape in ((n_out, 1), (1, n_in)))
    return ops.matmul(node.input_value(0), ops.multiply(column, row), False, True)


def powered(node: ov.Node) -> ov.Node:
    """A weight that takes more steps to follow than Python goes down."""
    weight = node.input_value(1).get_node()
    for _ in range(1500):
        weight = ops.multiply(weight, weight)
    return ops.matmul(node.input_value(0), weight, False, True)


# What becomes of the first operation of a kind.
CHANGES: dict[str, tuple[str, Callable[[ov.Node], ov.Node]]] = {
    "a matrix more": ("Gelu", lambda node: ops.matmul(node, ops.constant(np.eye(128, dtype=np.float32)), False, True)),
    "a scale that is not known": ("Softmax", squared),
    "a weight that no file holds": ("MatMul", outer),
    "a weight of many steps": ("MatMul", powered),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_decoder_that_computes_something_else_is_refused(exact: Checkpoint, tmp_path: Path, name: str) -> None:
    path = next(write_triple(tmp_path, exact).glob("*_decoder_static*.xml"))
    kind, change = CHANGES[name]
    model = ov.Core().read_model(path)
    node = next(node for node in model.get_ordered_ops() if node.get_type_name() == kind)
    targets = list(node.output(0).get_target_inputs())
    new = change(node)
    for target in targets:
        target.replace_source_output(new.output(0))
    ov.save_model(model, tmp_path / "new.xml", compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        (tmp_path / f"new{suffix}").replace(path.with_suffix(suffix))
    with pytest.raises(ModelError):
        openvino.load(tmp_path)
