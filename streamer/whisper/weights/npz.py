"""NumPy's `.npz`: a zip archive of arrays, compressed or not, each with a short text before it that describes it.

`numpy.load` would make room for an array before it looks for it. MLX writes the same, and calls bfloat16 `V2`.
"""

import io
import math
import zipfile
from pathlib import Path

from numpy.lib import format as npy

from streamer.whisper.weights.binary import open_file
from streamer.whisper.weights.tensors import ITEM_BYTES, StoredTensor, is_shape
from streamer.whisper.weights.zipped import Archive

# Longest beginning of an array that is read, the description in it; NumPy's are filled up to 128 bytes.
_MAX_HEAD_BYTES = 1024

# By the version of the description; a third one is for names of fields.
_READ = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

# NumPy's types under the names that safetensors gives them.
_TYPES = {"<f2": "F16", "|V2": "BF16", "<f4": "F32", "<u4": "U32"}


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read which arrays a file has, and where, but none of them. Raises ModelError where the file is damaged."""
    with open_file(path, "numpy.savez") as file:
        archive = Archive(file)
        tensors = {name.removesuffix(".npy"): _find_array(path, archive, name) for name in archive.names}
        if len(tensors) < len(archive.names):
            raise ValueError("an array twice")
    return tensors


def _find_array(path: Path, archive: Archive, name: str) -> StoredTensor:
    with archive.open(name) as member:
        head = io.BytesIO(member.read(_MAX_HEAD_BYTES))
    try:
        shape, columns_first, found = _READ[npy.read_magic(head)](head)
    except Exception:  # noqa: BLE001 - NumPy evaluates the text, as a literal: errors of many kinds
        raise ValueError(f"{name!r:.60} is not a plain array") from None
    start = head.tell()
    dtype = _TYPES.get(found.str, found.str)
    info = archive.member(name)
    if not is_shape(shape) or (dtype in ITEM_BYTES and start + ITEM_BYTES[dtype] * math.prod(shape) != info.file_size):
        raise ValueError(f"a wrong number of bytes for {name!r:.60}")
    strides = tuple(math.prod(shape[:i]) for i in range(len(shape))) if columns_first else None
    if info.compress_type != zipfile.ZIP_STORED:
        return StoredTensor(path, dtype, shape, start, strides, packed=name)
    return StoredTensor(path, dtype, shape, archive.find(name)[0] + start, strides)
