"""NumPy's `.npz`: a zip archive of arrays, compressed or not. MLX writes the same, and calls bfloat16 `V2`."""

import math
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from streamer.whisper.weights.binary import File, open_file
from streamer.whisper.weights.tensors import TYPES, Tensor, is_shape, stored

# By the version of an array's description; a third one is for names of fields.
_READ = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

# NumPy's types under the names that safetensors gives them.
_NAMES = {"<f2": "F16", "|V2": "BF16", "<f4": "F32", "<u4": "U32"}


def read_header(path: Path) -> dict[str, Tensor]:
    """Read which arrays a file has, but none of them. Raises ModelError if the file is damaged."""
    with open_file(path, "numpy.savez") as file, zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise ValueError("two arrays have the same name")
        return {name.removesuffix(".npy"): _find_array(file, archive, name) for name in names}


def _find_array(file: File, archive: zipfile.ZipFile, name: str) -> Tensor:
    info = archive.getinfo(name)
    with archive.open(info) as member:
        start = file.tell()  # behind the member's header
        try:
            shape, by_columns, dtype = _READ[npy.read_magic(member)](member)
        except Exception:  # noqa: BLE001 - NumPy evaluates the text, as a literal: errors of many kinds
            raise ValueError(f"{name!r:.60} is not a plain array") from None
        begin = member.tell()
    if not is_shape(shape) or (not dtype.hasobject and dtype.itemsize * math.prod(shape) != info.file_size - begin):
        raise ValueError(f"{name!r:.60} is not as long as its header says")
    shape, found = tuple(shape), _NAMES.get(dtype.str, dtype.str)
    if info.compress_type != zipfile.ZIP_STORED or found not in TYPES:
        return Tensor(shape, found, partial(_unpack, file.path, name, found))
    # Not through the archive, whose table of all arrays would be read once more for each.
    if by_columns:
        return stored(file.path, found, shape[::-1], start + begin).view(shape, np.transpose)
    return stored(file.path, found, shape, start + begin)


def _unpack(path: Path, name: str, dtype: str) -> NDArray[Any]:
    with open_file(path, "numpy.savez") as file, zipfile.ZipFile(file) as archive:
        if name not in archive.namelist():
            raise ValueError(f"{name!r:.60} is missing from the archive")
        with archive.open(name) as member:
            values: NDArray[Any] = npy.read_array(member, allow_pickle=False)
            return values.view(TYPES[dtype]) if dtype == "BF16" else values
