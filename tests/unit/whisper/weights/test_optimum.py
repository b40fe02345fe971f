"""optimum-intel's exports, read as the checkpoints that they were made from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.hub.files import choose
from streamer.whisper.weights import formats, optimum
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import random_checkpoint
from tests.unit.whisper.weights.models import change_config
from tests.unit.whisper.weights.optimum_writer import Store, as_float, as_half, as_int4, as_int8, write_optimum

# Heads of 16, so that the scale of attention is a power of two.
DIMS = ModelDimensions(4, 1500, 32, 2, 1, 50, 48, 32, 2, 2)


@pytest.fixture(scope="module")
def exact() -> Checkpoint:
    """Weights that float16 holds, and a quarter of them too, so that nothing is rounded."""
    found = random_checkpoint(DIMS)
    rounded = {name: (np.rint(256 * value) / 256).astype(np.float16) for name, value in found.tensors.items()}
    return replace(found, tensors=rounded)


@pytest.fixture(autouse=True)
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimum, "probe_graphs", lambda paths: None)


@pytest.mark.parametrize(
    ("store", "scale", "wrapped", "transposed"),
    [
        (as_float, "weights", "model.", False),
        (as_half, "operation", "model.model.", True),
        (as_float, "attention", "encoder.", False),
        (as_half, "weights", "encoder.", True),
        (as_float, "operation", "model.", False),
        (as_half, "attention", "model.", True),
    ],
)
def test_the_weights_are_those_that_were_exported(
    exact: Checkpoint, tmp_path: Path, store: Store, scale: str, wrapped: str, transposed: bool
) -> None:
    write_optimum(tmp_path, exact, store=store, scale=scale, wrapped=wrapped, transposed=transposed)
    assert formats.find(tmp_path) == (optimum, tmp_path)
    found = optimum.load(tmp_path)
    assert found.dims == DIMS
    assert set(found.tensors) == set(exact.tensors)
    for name, expected in exact.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], expected, err_msg=name)
        assert found.tensors[name].dtype == (np.float16 if store is as_half else np.float32)


@pytest.mark.parametrize(("store", "steps"), [(as_int8, 255), (as_int4, 14)])
def test_integers_are_unpacked_in_half_precision(exact: Checkpoint, tmp_path: Path, store: Store, steps: int) -> None:
    found = optimum.load(write_optimum(tmp_path, exact, store=store))
    assert found.tensors["decoder.layers.0.fc1.weight"].dtype == np.float16
    for name, expected in exact.tensors.items():
        error = float(np.abs(found.tensors[name] - expected).max())
        assert error <= 1.2 * float(np.abs(expected).max()) / steps, name


def test_logits_of_their_own_weights_are_found(exact: Checkpoint, tmp_path: Path) -> None:
    own = np.random.default_rng(1).standard_normal((50, 32)).astype(np.float16)
    untied = replace(exact, tensors={**exact.tensors, "proj_out.weight": own})
    found = optimum.load(write_optimum(tmp_path, untied, tied=False))
    np.testing.assert_array_equal(found.tensors["proj_out.weight"], own)


def test_a_graph_that_is_missing_or_of_another_model_is_refused(exact: Checkpoint, tmp_path: Path) -> None:
    file = write_optimum(tmp_path, exact) / "openvino_encoder_model.xml"
    change_config(file, {"decoder_layers": 3})
    with pytest.raises(ModelError):
        optimum.load(tmp_path)
    change_config(file, {"decoder_layers": DIMS.n_text_layer})
    assert optimum.load(tmp_path)
    file.unlink()
    with pytest.raises(ModelError):
        optimum.load(tmp_path)


def test_a_weight_that_no_file_holds_is_not_computed(exact: Checkpoint, tmp_path: Path) -> None:
    """Two vectors multiplied are a matrix of 10 GB."""
    write_optimum(tmp_path, exact)
    x = ops.parameter([1, 50_000], np.float32, "x")
    column, row = (ops.constant(np.ones(shape, np.float32)) for shape in ((50_000, 1), (1, 50_000)))
    product = ops.matmul(x, ops.multiply(column, row), False, True)
    product.set_friendly_name("__module.proj_out/aten::linear/MatMul")
    ov.save_model(ov.Model([ops.result(product)], [x]), tmp_path / "openvino_decoder_model.xml")
    with pytest.raises(ModelError):
        optimum.load(tmp_path)


def test_the_hub_gives_the_two_graphs_where_there_is_no_checkpoint() -> None:
    graphs = [f"openvino_{part}_model{suffix}" for part in ("encoder", "decoder") for suffix in (".xml", ".bin")]
    there = ["config.json", "openvino_tokenizer.xml", "openvino_decoder_with_past_model.xml", *graphs]
    assert sorted(choose(there, "OpenVINO/whisper-tiny-int8-ov")) == ["config.json", *sorted(graphs)]
    assert choose([*there, "model.safetensors"], "me/both") == ["config.json", "model.safetensors"]
