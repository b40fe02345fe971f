"""MLX's directories, whole and quantized."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whisper.model

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import mlx
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.mlx_groups import grouped
from streamer.whisper.weights.openai import openai_name
from streamer.whisper.weights.tensors import stored
from tests.unit.whisper.support import ROOT, TINY_CONFIG, random_checkpoint
from tests.unit.whisper.weights.mlx_writer import is_quantized, rounded, write_mlx
from tests.unit.whisper.weights.models import TINY, change_arrays

POSITIONS, EMBEDDING = "encoder.embed_positions.weight", "decoder.embed_tokens.weight"
HALF = Checkpoint(TINY.dims, {name: value.astype("float16") for name, value in TINY.tensors.items()})

BY_REFERENCE = tomllib.loads((ROOT / "tests" / "data" / "quantized.toml").read_text(encoding="utf-8"))["mlx"]
BITS = [int(bits) for bits in BY_REFERENCE]


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
    tiny = random_checkpoint(ModelDimensions.from_huggingface(TINY_CONFIG, tmp_path))
    write_mlx(tmp_path, tiny, file="model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG), encoding="utf-8")
    found = mlx.load(tmp_path)
    assert found.dims == tiny.dims
    np.testing.assert_array_equal(found.tensors["encoder.conv1.weight"], tiny.tensors["encoder.conv1.weight"])


def parts(
    path: Path, packed: bytes, shape: tuple[int, int], bits: int, scales: np.ndarray, biases: np.ndarray
) -> dict[str, Any]:
    """Write a matrix into a file of its own, and return what `grouped` takes."""
    kind = {"float16": "F16", "float32": "F32"}[scales.dtype.name]
    path.write_bytes(packed + scales.tobytes() + biases.tobytes())
    return {
        "name": "x",
        "where": str(path),
        "packed": stored(path, "U32", (shape[0], shape[1] * bits // 32), 0),
        "scales": stored(path, kind, scales.shape, len(packed)),
        "biases": stored(path, kind, biases.shape, len(packed) + scales.nbytes),
        "shape": shape,
    }


@pytest.mark.parametrize("bits", BITS)
def test_a_group_is_read_as_the_reference_reads_it(tmp_path: Path, bits: int) -> None:
    packed, weights = BY_REFERENCE[str(bits)]
    scale, bias = np.array([[0.5]], np.float16), np.array([[-3.25]], np.float16)
    matrix = grouped(**parts(tmp_path / "x", bytes.fromhex(packed), (1, 32), bits, scale, bias))
    assert matrix.read().dtype == np.float32
    assert matrix.read().tolist() == [[float(weight) for weight in weights.split()]]


# A matrix of 4 rows of 64 numbers of 4 bits, in groups of 32, and what does not fit it.
MISFITS: list[dict[str, Any]] = [
    *({part: {"dtype": "F64"}} for part in ("packed", "scales", "biases")),
    *({part: {"shape": shape}} for part in ("packed", "scales", "biases") for shape in ((4, 7), (4,), (), (3, 8))),
    *({part: {"shape": (4, n)} for part in ("scales", "biases")} for n in (4, 0)),
    {"packed": {"shape": (4, 14)}},  # 7 bits
    *({"shape": shape} for shape in ((4, 48), (4, 1))),
]


@pytest.mark.parametrize("misfit", MISFITS, ids=str)
def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path, misfit: dict[str, Any]) -> None:
    zeros = np.zeros((4, 2), np.float16)
    good = parts(tmp_path / "x", bytes(4 * 32), (4, 64), 4, zeros, zeros)
    assert grouped(**good).shape == (4, 64)
    changed = {
        name: good[name]._replace(**change) if isinstance(change, dict) else change for name, change in misfit.items()
    }
    with pytest.raises(ModelError):
        grouped(**{**good, **changed})
