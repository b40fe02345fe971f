"""NumPy's `.npz`: a zip archive of arrays, compressed or not. MLX writes the same, and calls bfloat16 `V2`."""

import math
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from streamer.whisper.weights.binary import open_file
from streamer.whisper.weights.tensors import TYPES, Tensor, is_shape

# By the version of an array's description; a third one is for names of fields.
_READ = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

# NumPy's types under the names that safetensors gives them.
_NAMES = {"<f2": "F16", "|V2": "BF16", "<f4": "F32", "<u4": "U32"}


def read_header(path: Path) -> dict[str, Tensor]:
    """Read which arrays a file has, but none of them. Raises ModelError if the file is damaged."""
    with open_file(path, "numpy.savez") as file, zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise ValueError("a member twice")
        return {name.removesuffix(".npy"): _find_array(path, archive, name) for name in names}


def _find_array(path: Path, archive: zipfile.ZipFile, name: str) -> Tensor:
    with archive.open(name) as member:
        try:
            shape, _, dtype = _READ[npy.read_magic(member)](member)
        except Exception:  # noqa: BLE001 - NumPy evaluates the text, as a literal: errors of many kinds
            raise ValueError(f"{name!r:.60} is not a plain array") from None
        n_bytes = archive.getinfo(name).file_size - member.tell()
    if not is_shape(shape) or (not dtype.hasobject and dtype.itemsize * math.prod(shape) != n_bytes):
        raise ValueError(f"a wrong number of bytes for {name!r:.60}")
    found = _NAMES.get(dtype.str, dtype.str)
    return Tensor(tuple(shape), found, partial(_load, path, name, found))


def _load(path: Path, name: str, dtype: str) -> NDArray[Any]:
    with open_file(path, "numpy.savez") as file, zipfile.ZipFile(file) as archive:
        if name not in archive.namelist():
            raise ValueError(f"no {name!r:.60} in the archive")
        with archive.open(name) as member:
            values: NDArray[Any] = npy.read_array(member, allow_pickle=False)
            return values.view(TYPES[dtype]) if dtype == "BF16" else values
