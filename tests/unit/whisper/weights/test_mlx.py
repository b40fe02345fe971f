"""MLX's directories, whole and quantized."""

import json
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import whisper.model

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import mlx
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.mlx_groups import grouped
from streamer.whisper.weights.openai import openai_name
from streamer.whisper.weights.tensors import Tensor
from tests.unit.whisper.support import ROOT, config_of, random_checkpoint
from tests.unit.whisper.weights.mlx_writer import is_quantized, rounded, write_mlx
from tests.unit.whisper.weights.models import TINY, change_arrays

POSITIONS, EMBEDDING = "encoder.embed_positions.weight", "decoder.embed_tokens.weight"
HALF = Checkpoint(TINY.dims, {name: value.astype("float16") for name, value in TINY.tensors.items()})

BY_REFERENCE = tomllib.loads((ROOT / "tests" / "data" / "quantized.toml").read_text(encoding="utf-8"))["mlx"]


@pytest.mark.parametrize("checkpoint", [TINY, HALF], ids=["f32", "f16"])
@pytest.mark.parametrize("file", ["weights.npz", "weights.safetensors", "model.safetensors"])
@pytest.mark.parametrize(("bits", "group_size"), [(2, 32), (3, 64), (4, 64)])
def test_quantized_matrices_come_back(
    tmp_path: Path, bits: int, group_size: int, checkpoint: Checkpoint, file: str
) -> None:
    loaded = mlx.load(write_mlx(tmp_path, checkpoint, bits, group_size, file))
    for name, values in checkpoint.tensors.items():
        quantized = is_quantized(openai_name(name), values)
        found = loaded.tensors[name]
        assert found.flags.c_contiguous
        assert found.dtype == (np.float32 if quantized else values.dtype)
        if name != POSITIONS:
            np.testing.assert_array_equal(found, rounded(values, bits, group_size) if quantized else values)


def test_only_some_matrices_may_be_quantized_and_positions_may_be_in_the_file(tmp_path: Path) -> None:
    own = {POSITIONS: TINY.tensors[POSITIONS], EMBEDDING: TINY.tensors[EMBEDDING]}
    arrays = {openai_name(name): value for name, value in own.items()}
    without = {f"decoder.token_embedding.{part}": "" for part in ("scales", "biases")}
    change_arrays(write_mlx(tmp_path, TINY, 4) / "weights.npz", {**arrays, **without})
    for name, values in own.items():
        np.testing.assert_array_equal(mlx.load(tmp_path).tensors[name], values)


@pytest.mark.parametrize("width", [4, 64, 384, 1280])
def test_the_encoder_positions_are_those_of_openai(width: int) -> None:
    found = mlx.sinusoids(1500, width)
    assert found.dtype == np.float32
    # Between the two, the last bit of an angle of up to 1500.
    np.testing.assert_allclose(found, whisper.model.sinusoids(1500, width).numpy(), rtol=0, atol=1.3e-4)


def test_a_width_that_has_no_sinusoids_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        mlx.load(write_mlx(tmp_path, random_checkpoint(ModelDimensions(2, 1500, 3, 1, 1, 8, 32, 3, 1, 1))))


def test_a_config_of_hugging_face_is_read(tmp_path: Path) -> None:
    """As mlx-audio writes it, the tensors being MLX's."""
    write_mlx(tmp_path, TINY, file="model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config_of(TINY.dims)), encoding="utf-8")
    assert mlx.matches(tmp_path)
    found = mlx.load(tmp_path)
    assert found.dims == TINY.dims
    np.testing.assert_array_equal(found.tensors["encoder.conv1.weight"], TINY.tensors["encoder.conv1.weight"])


@pytest.mark.parametrize("bits", BY_REFERENCE)
def test_a_group_is_read_as_the_reference_reads_it(bits: str) -> None:
    packed, weights = BY_REFERENCE[bits]
    numbers = np.frombuffer(bytes.fromhex(packed), "<u4").reshape(1, -1)
    scale, bias = (Tensor((1, 1), "F16", partial(np.array, [[value]], np.float16)) for value in (0.5, -3.25))
    matrix = grouped("x", "x", Tensor(numbers.shape, "U32", lambda: numbers), scale, bias, (1, 32))
    assert matrix.read().dtype == np.float32
    assert matrix.read().tolist() == [[float(weight) for weight in weights.split()]]
