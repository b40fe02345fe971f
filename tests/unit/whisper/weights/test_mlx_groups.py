"""Quantized matrices: what MLX itself makes of them, and what an independent quantizer wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer.errors import ModelError
from streamer.whisper.weights.mlx_groups import grouped
from streamer.whisper.weights.tensors import stored
from tests.unit.whisper.weights.mlx_writer import pack, quantize, rounded

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


def write(
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
    matrix = grouped(**write(tmp_path / "x", bytes.fromhex(packed), (1, 32), bits, scale, bias))
    assert matrix.read().dtype == np.float32
    assert matrix.read().tolist() == [[float(weight) for weight in weights.split()]]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", list(BY_REFERENCE))
def test_what_is_quantized_comes_back(tmp_path: Path, bits: int, group_size: int, dtype: str) -> None:
    values = np.random.default_rng(bits).standard_normal((5, 384)).astype(dtype)
    values[0] = 0
    values[1] = -1.5
    scales, biases, numbers = quantize(values, bits, group_size)
    found = grouped(**write(tmp_path / "x", pack(numbers, bits).tobytes(), (5, 384), bits, scales, biases)).read()
    np.testing.assert_array_equal(found, rounded(values, bits, group_size))
    np.testing.assert_array_equal(found[:2], values[:2])
    assert (np.abs(found - values) <= np.repeat(scales, group_size, axis=1).astype("f4") * 0.51 + 1e-2).all()


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    zeros = np.zeros((4, 2), np.float16)
    good = write(tmp_path / "x", bytes(4 * 32), (4, 64), 4, zeros, zeros)
    assert grouped(**good).shape == (4, 64)
    packed, scales, biases = good["packed"], good["scales"], good["biases"]
    for bad in (
        {"packed": packed._replace(dtype="I32")},
        {"packed": packed._replace(shape=(4, 7))},
        {"packed": packed._replace(shape=(4, 14))},  # 7 bits
        {"packed": packed._replace(shape=(4,))},
        {"packed": packed._replace(shape=(3, 8))},
        {"scales": scales._replace(shape=(4, 4)), "biases": biases._replace(shape=(4, 4))},
        {"scales": scales._replace(shape=(4, 0)), "biases": biases._replace(shape=(4, 0))},
        {"scales": scales._replace(shape=())},
        {"biases": biases._replace(shape=(4, 1))},
        {"scales": scales._replace(dtype="U8")},
        {"biases": biases._replace(dtype="F64")},
        {"shape": (4, 48)},
        {"shape": (4, 1)},
    ):
        with pytest.raises(ModelError, match=r"has x quantized to .*: expected MLX's affine quantization of"):
            grouped(**{**good, **bad})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 6e4])
def test_scales_that_are_not_finite_are_no_warning(tmp_path: Path, value: float) -> None:
    scales = np.full((4, 2), value, np.float16)
    assert grouped(**write(tmp_path / "x", bytes(4 * 32), (4, 64), 4, scales, -scales)).read().shape == (4, 64)
