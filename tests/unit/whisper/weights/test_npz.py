"""NumPy's archives, stored and deflated, whole and broken."""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.errors import ModelError
from streamer.whisper.weights.npz import read_header
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.models import write_description

ARRAYS: dict[str, NDArray[Any]] = {
    "half": np.arange(24, dtype=np.float16).reshape(4, 6),
    "single": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "vector": np.arange(5, dtype=np.float32),
    "columns": np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
    "nothing": np.zeros((0, 4), np.float16),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_they_are(path: Path, save: Callable[..., None]) -> None:
    save(path, allow_pickle=False, **ARRAYS)
    found = read_header(path)
    assert set(found) == set(ARRAYS)
    for name, values in ARRAYS.items():
        assert found[name].shape == values.shape
        if values.size:
            assert found[name].read().dtype == values.dtype
            np.testing.assert_array_equal(found[name].read(), values)
    assert found["columns"].read().flags.c_contiguous


def test_the_description_that_mlx_writes_is_read(path: Path) -> None:
    """With a comma behind the last length, none behind the last entry, and bfloat16 as two bytes of anything."""
    description = "{'descr': '<V2', 'fortran_order': False, 'shape': (2, 3, )}        \n"
    write_description(path, description, b"\x80\x3f" * 3 + b"\x20\xc0" * 3)
    tensor = read_header(path)["x"]
    assert tensor.dtype == "BF16"
    assert tensor.read().tolist() == [[1, 1, 1], [-2.5, -2.5, -2.5]]


def test_other_types_are_named_and_left_alone(path: Path) -> None:
    others: dict[str, Any] = {
        "|O": np.array([object()]),
        "<f8": np.zeros(3),
        "<U1": np.array(["x"]),
        "|V8": np.zeros(3, "i4,f4"),
    }
    np.savez(path, **others)
    assert {name: tensor.dtype for name, tensor in read_header(path).items()} == {name: name for name in others}


def test_a_deflated_array_that_is_damaged_after_it_was_opened_is_refused(path: Path) -> None:
    np.savez_compressed(path, x=np.random.default_rng(0).random(1000))
    tensor, data = read_header(path)["x"], path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    for damaged in (flipped, data[: len(data) // 2], data.replace(b"x.npy", b"y.npy")):
        path.write_bytes(damaged)
        with pytest.raises(ModelError):
            tensor.read()


def test_two_members_of_one_name_are_refused(path: Path) -> None:
    write_description(path, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }")
    data = zipfile.ZipFile(path).read("x.npy")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("x.npy", data)
    checks.refuse(read_header, path)
