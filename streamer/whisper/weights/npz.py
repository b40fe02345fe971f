"""NumPy's `.npz`: a zip archive of arrays, deflated or not, each with a short text before it that describes it.

Read here and not by `numpy.load`, which evaluates the text, and makes room for an array before it looks for it.
Source: the documentation of `numpy.lib.format`; MLX writes the same, and calls bfloat16 `V2`.
"""

import math
import re
import struct
from pathlib import Path

from streamer.whisper.weights.tensors import ITEM_BYTES, StoredTensor, is_shape
from streamer.whisper.weights.zipped import Archive, open_file

# Longest beginning of an array that is read, the description in it; NumPy's are filled up to 128 bytes.
_MAX_HEAD_BYTES = 1024

# NumPy's types under the names that safetensors gives them.
_TYPES = {"<f2": "F16", "<V2": "BF16", "|V2": "BF16", "<f4": "F32", "<u4": "U32"}

_DESCRIPTION = re.compile(
    r"\{'descr': (?P<descr>[^:]+), 'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[\d, ]*)\),? *\} *\n?"
)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read which arrays a file has, and where, but none of them. Raises ModelError where the file is damaged."""
    with open_file(path, "numpy.savez") as file:
        archive = Archive(file)
        tensors = {name.removesuffix(".npy"): _find_array(path, archive, name) for name in archive.names}
        if len(tensors) < len(archive.names):
            raise ValueError("an array twice")
    return tensors


def _find_array(path: Path, archive: Archive, name: str) -> StoredTensor:
    first, n_bytes, n_packed = archive.find_packed(name)
    head = archive.read(first, min(n_bytes, _MAX_HEAD_BYTES), n_packed)
    magic, major, length = struct.unpack("<6sBxH", head[:10])
    start = 10
    if major != 1:  # the length has four bytes
        length += struct.unpack("<H", head[10:12])[0] << 16
        start = 12
    description = _DESCRIPTION.fullmatch(head[start : start + length].decode("latin-1"))
    start += length
    if magic != b"\x93NUMPY" or start > len(head) or description is None:
        raise ValueError(f"{name!r:.60} is not a plain array")
    descr = description["descr"].strip("'")
    dtype = _TYPES.get(descr, descr)
    shape = tuple(int(digits) for digits in re.findall(r"\d+", description["shape"]))
    if not is_shape(shape) or (descr in _TYPES and start + ITEM_BYTES[dtype] * math.prod(shape) != n_bytes):
        raise ValueError(f"a wrong number of bytes for {name!r:.60}")
    columns_first = description["fortran"] == "True"
    strides = tuple(math.prod(shape[:i]) for i in range(len(shape))) if columns_first else None
    if n_packed is None:
        return StoredTensor(path, dtype, shape, first + start, strides)
    return StoredTensor(path, dtype, shape, start, strides, (first, n_packed))
