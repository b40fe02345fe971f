"""MLX's directories, whole and quantized."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whisper.model
from safetensors.numpy import save_file

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import mlx
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.mlx_groups import grouped
from streamer.whisper.weights.openai import openai_name
from streamer.whisper.weights.tensors import stored
from tests.unit.whisper.support import TINY_CONFIG, random_checkpoint
from tests.unit.whisper.weights.mlx_writer import is_quantized, mlx_tensors, pack, quantize, rounded, write_mlx
from tests.unit.whisper.weights.models import TINY, change_arrays

POSITIONS, EMBEDDING = "encoder.embed_positions.weight", "decoder.embed_tokens.weight"
HALF = Checkpoint(TINY.dims, {name: value.astype("float16") for name, value in TINY.tensors.items()})

# A group of random bits with scale 0.5 and bias -3.25, and the weights that `mlx` 0.32.4 reads in it.
BY_REFERENCE = {
    2: (
        "2187ea6bdea6c8de",
        "-2.75 -3.25 -2.25 -3.25 -1.75 -2.75 -3.25 -2.25 -2.25 -2.25 -2.25 -1.75 -1.75 -2.25 -2.25 -2.75"
        " -2.25 -1.75 -2.75 -1.75 -2.25 -2.75 -2.25 -2.25 -3.25 -2.25 -3.25 -1.75 -2.25 -1.75 -2.75 -1.75",
    ),
    3: (
        "200407f644da6c49bea3461d",
        "-3.25 -1.25 -3.25 -2.25 -3.25 -0.25 -2.75 -3.25 -0.25 -0.25 -1.75 -2.25 -1.25 -1.25 -0.25 -0.25"
        " -1.25 -0.75 -0.75 -1.25 -1.25 -1.25 0.25 -0.75 -1.75 -1.25 -2.25 -1.75 -1.25 -2.25 0.25 -3.25",
    ),
    4: (
        "cbea679af89ae2aa41790cc7852a83a4",
        "2.25 2.75 1.75 3.75 0.25 -0.25 1.75 1.25 0.75 4.25 1.75 1.25 -2.25 3.75 1.75 1.75"
        " -2.75 -1.25 1.25 0.25 2.75 -3.25 0.25 2.75 -0.75 0.75 1.75 -2.25 -1.75 0.75 -1.25 1.75",
    ),
    5: (
        "bbaa50b76c1b4fea005a56ea08ca34ed18c242dc",
        "10.25 7.25 1.75 -2.75 7.25 10.25 5.75 3.25 10.25 8.75 6.25 6.75 3.75 -3.25 0.75 2.25"
        " 7.75 5.75 9.75 5.25 -3.25 -0.75 6.25 -0.25 3.25 0.25 -0.25 -1.25 2.75 -2.75 5.25 10.25",
    ),
    6: (
        "176294b80a9f11ebac0958032a74ce069c6132cc247cef6f",
        "8.25 0.75 -0.25 15.25 24.75 17.75 20.75 16.25 5.25 18.75 3.75 18.25 1.25 12.75 23.25 -3.25"
        " 17.75 4.75 16.25 22.25 -0.25 20.75 9.25 8.75 21.75 20.75 2.75 1.25 26.75 27.25 27.75 10.25",
    ),
    8: (
        "daef88bfb84f257cf084d8e60af2ad103b1d73ac77b570010030e825439ba3d4",
        "105.75 116.25 64.75 92.25 88.75 36.25 15.25 58.75 116.75 62.75 104.75 111.75 1.75 117.75 83.25 4.75"
        " 26.25 11.25 54.25 82.75 56.25 87.25 52.75 -2.75 -3.25 20.75 112.75 15.25 30.25 74.25 78.25 102.75",
    ),
}


@pytest.mark.parametrize("checkpoint", [TINY, HALF], ids=["f32", "f16"])
@pytest.mark.parametrize(
    ("bits", "group_size", "file"),
    [
        (4, 64, "weights.npz"),
        (8, 64, "weights.safetensors"),
        (4, 32, "model.safetensors"),
        (2, 32, "weights.npz"),
        (3, 64, "weights.safetensors"),
        (6, 32, "model.safetensors"),
    ],
)
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


@pytest.mark.parametrize("file", ["model.safetensors", "weights.npz"])
def test_bfloat16_is_read_exactly(tmp_path: Path, file: str) -> None:
    """Also scales of quantized matrices, as MLX writes them for a model in bfloat16."""
    write_mlx(tmp_path, TINY, 4, file=file)
    upper = {
        name: (value.view("<u4") >> 16).astype("<u2") if value.dtype == np.float32 else value
        for name, value in mlx_tensors(TINY, 4).items()
    }
    if file.endswith("npz"):
        arrays = {name: value.view("V2") if value.dtype == np.uint16 else value for name, value in upper.items()}
        np.savez(tmp_path / file, allow_pickle=False, **arrays)
    else:
        save_file(upper, tmp_path / file)
        data = (tmp_path / file).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + length].replace(b'"U16"', b'"BF16"')
        (tmp_path / file).write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    found = mlx.load(tmp_path).tensors
    bias = TINY.tensors["decoder.layer_norm.bias"]
    np.testing.assert_array_equal(found["decoder.layer_norm.bias"].view("<u4"), bias.view("<u4") >> 16 << 16)
    assert np.abs(found[EMBEDDING] - TINY.tensors[EMBEDDING]).max() < 0.3
    kernel = "encoder.conv2.weight"
    np.testing.assert_allclose(found[kernel], TINY.tensors[kernel], rtol=0.01)


def test_a_config_of_hugging_face_is_read(tmp_path: Path) -> None:
    """As mlx-audio writes it, the tensors being MLX's."""
    tiny = random_checkpoint(ModelDimensions.from_huggingface(TINY_CONFIG, tmp_path))
    write_mlx(tmp_path, tiny, file="model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG), encoding="utf-8")
    found = mlx.load(tmp_path)
    assert found.dims == tiny.dims
    np.testing.assert_array_equal(found.tensors["encoder.conv1.weight"], tiny.tensors["encoder.conv1.weight"])


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool", "object"])
def test_a_tensor_of_another_type_is_refused(tmp_path: Path, dtype: str) -> None:
    change_arrays(write_mlx(tmp_path, TINY) / "weights.npz", {"decoder.ln.bias": np.zeros(64, dtype)})
    with pytest.raises(ModelError):
        mlx.load(tmp_path)


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


@pytest.mark.parametrize("bits", list(BY_REFERENCE))
def test_a_group_is_read_as_the_reference_reads_it(tmp_path: Path, bits: int) -> None:
    packed, weights = BY_REFERENCE[bits]
    scale, bias = np.array([[0.5]], np.float16), np.array([[-3.25]], np.float16)
    matrix = grouped(**parts(tmp_path / "x", bytes.fromhex(packed), (1, 32), bits, scale, bias))
    assert matrix.read().dtype == np.float32
    assert matrix.read().tolist() == [[float(weight) for weight in weights.split()]]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", list(BY_REFERENCE))
def test_what_is_quantized_is_half_a_step_off(tmp_path: Path, bits: int, group_size: int, dtype: str) -> None:
    values = np.random.default_rng(bits).standard_normal((70, 384)).astype(dtype)
    values[:2] = [[0], [-1.5]]
    scales, biases, numbers = quantize(values, bits, group_size)
    found = grouped(**parts(tmp_path / "x", pack(numbers, bits).tobytes(), (70, 384), bits, scales, biases)).read()
    np.testing.assert_array_equal(found, rounded(values, bits, group_size))
    np.testing.assert_array_equal(found[:2], values[:2])
    assert (np.abs(found - values) <= np.repeat(scales, group_size, axis=1).astype("f4") * 0.51 + 1e-2).all()


@pytest.mark.parametrize(
    "change",
    [
        {"packed": {"dtype": "I32"}},
        {"packed": {"shape": (4, 7)}},
        {"packed": {"shape": (4, 14)}},  # 7 bits
        {"packed": {"shape": (4,)}},
        {"packed": {"shape": (3, 8)}},
        {"scales": {"shape": (4, 4)}, "biases": {"shape": (4, 4)}},
        {"scales": {"shape": (4, 0)}, "biases": {"shape": (4, 0)}},
        {"scales": {"shape": ()}},
        {"biases": {"shape": (4, 1)}},
        {"scales": {"dtype": "U8"}},
        {"biases": {"dtype": "F64"}},
        {"shape": (4, 48)},
        {"shape": (4, 1)},
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    zeros = np.zeros((4, 2), np.float16)
    good = parts(tmp_path / "x", bytes(4 * 32), (4, 64), 4, zeros, zeros)
    assert grouped(**good).shape == (4, 64)
    bad = {key: good[key]._replace(**value) if isinstance(value, dict) else value for key, value in change.items()}
    with pytest.raises(ModelError):
        grouped(**{**good, **bad})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 6e4])
def test_scales_that_are_not_finite_are_no_warning(tmp_path: Path, value: float) -> None:
    scales = np.full((4, 2), value, np.float16)
    assert grouped(**parts(tmp_path / "x", bytes(4 * 32), (4, 64), 4, scales, -scales)).read().shape == (4, 64)
