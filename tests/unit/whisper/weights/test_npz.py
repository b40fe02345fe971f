"""NumPy's archives, whole and broken: each broken one is one clear line."""

import io
import struct
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.errors import ModelError
from streamer.whisper.weights.npz import read_header
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.checks import at_most

ARRAYS: dict[str, NDArray[Any]] = {
    "half": np.arange(24, dtype=np.float16).reshape(4, 6),
    "single": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "vector": np.arange(5, dtype=np.float32),
    "columns": np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
    "nothing": np.zeros((0, 4), np.float16),
}


@pytest.fixture(params=["stored", "deflated"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save = np.savez if request.param == "stored" else np.savez_compressed
    save(tmp_path / "x.npz", allow_pickle=False, **ARRAYS)
    return tmp_path / "x.npz"


refuse = partial(checks.refuse, read_header)


def write_member(path: Path, description: str, data: bytes = b"", version: int = 1, name: str = "x.npy") -> None:
    """Write an archive of one array."""
    text = description.encode("latin-1")
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"\x93NUMPY" + bytes((version, 0)) + length + text + data)


def test_arrays_come_back_as_they_are(path: Path) -> None:
    found = read_header(path)
    assert set(found) == set(ARRAYS)
    for name, values in ARRAYS.items():
        if values.size:
            assert found[name].read().dtype == values.dtype
            np.testing.assert_array_equal(found[name].read(), values)
        assert found[name].shape == values.shape
    assert found["columns"].read().flags.c_contiguous


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_of_the_description(tmp_path: Path, version: int) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, ARRAYS["single"], version=(version, 0))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("single.npy", file.getvalue())
    np.testing.assert_array_equal(read_header(tmp_path / "x.npz")["single"].read(), ARRAYS["single"])


def test_the_description_that_mlx_writes(tmp_path: Path) -> None:
    """With a comma behind the last length, none behind the last entry, and bfloat16 as two bytes of anything."""
    description = "{'descr': '<V2', 'fortran_order': False, 'shape': (2, 3, )}        \n"
    write_member(tmp_path / "x.npz", description, b"\x80\x3f" * 3 + b"\x20\xc0" * 3)
    tensor = read_header(tmp_path / "x.npz")["x"]
    assert tensor.dtype == "BF16"
    assert tensor.read().tolist() == [[1, 1, 1], [-2.5, -2.5, -2.5]]


def test_other_types_are_named_and_left_alone(tmp_path: Path) -> None:
    strangers: dict[str, Any] = {
        "a": np.array([object()]),
        "b": np.zeros(3),
        "c": np.array(["x"]),
        "d": np.zeros(3, "i4,f4"),
    }
    np.savez(tmp_path / "x.npz", **strangers)
    found = read_header(tmp_path / "x.npz")
    assert {name: tensor.dtype for name, tensor in found.items()} == {"a": "|O", "b": "<f8", "c": "<U1", "d": "|V8"}


def deflated(path: Path, values: NDArray[Any]) -> Path:
    np.savez_compressed(path, x=values)
    return path


def test_a_large_array_is_unpacked_in_pieces(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((1500, 1000), dtype=np.float32)
    tensor = read_header(deflated(tmp_path / "x.npz", values))["x"]
    with at_most(int(1.3 * values.nbytes)):
        found = tensor.read()
    np.testing.assert_array_equal(found, values)


def test_an_array_shorter_or_longer_than_it_says(tmp_path: Path) -> None:
    path = deflated(tmp_path / "x.npz", np.random.default_rng(0).standard_normal(1000, dtype=np.float32))
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", 4128), struct.pack("<I", 1 << 19)))
    refuse(path, "a wrong number of bytes for 'x.npy'")
    path.write_bytes(data)
    tensor = read_header(path)["x"]
    packed = bytearray(data)
    packed[len(data) // 2] ^= 0xFF
    for damaged in (packed, data[: len(data) // 2], data.replace(b"x.npy", b"y.npy")):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="cannot be read"):
            tensor.read()


@pytest.mark.parametrize(
    "shape",
    [
        "(2, 2)",
        "(-3,)",
        "(1152921504606846976,)",
        "(" + "9" * 900 + ",)",
        "(" + "1," * 9 + ")",
        "(4294967296, 4294967296)",
    ],
)
def test_a_shape_that_is_not_there(tmp_path: Path, shape: str) -> None:
    write_member(tmp_path / "x.npz", f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}", bytes(12))
    refuse(tmp_path / "x.npz", "a wrong number of bytes for 'x.npy'")


@pytest.mark.parametrize(
    "description",
    [
        "",
        "{}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ('3',), }",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os').abort(),), }",
        "(" * 900,
    ],
)
def test_a_description_that_is_none(tmp_path: Path, description: str) -> None:
    write_member(tmp_path / "x.npz", description, bytes(12))
    refuse(tmp_path / "x.npz", "'x.npy' is not a plain array")


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("../../readme.txt\n", b"hello" * 100)
    refuse(tmp_path / "x.npz", "'../../readme.txt\\n' is not a plain array")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", b"")
    refuse(tmp_path / "x.npz", "cannot be read")


def test_an_array_twice(tmp_path: Path) -> None:
    description = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
    write_member(tmp_path / "x.npz", description, bytes(12))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        data = archive.read("x.npy")
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("x.npy", data)
    refuse(tmp_path / "x.npz", "a member twice")
