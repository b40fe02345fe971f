"""NumPy's `.npz`: an uncompressed zip archive of arrays, each with a short text before it that describes it.

Read here and not by `numpy.load`, which evaluates the text, and makes room for an array before it looks for it.
Source: the documentation of `numpy.lib.format`; MLX writes the same, and calls bfloat16 `V2`.
"""

import math
import re
import struct
from pathlib import Path

from streamer.whisper.weights.tensors import ITEM_BYTES, StoredTensor, is_shape
from streamer.whisper.weights.zipped import Archive, open_file

# Longest description that is read; NumPy's are filled up to 128 bytes.
_MAX_DESCRIPTION_BYTES = 1024

# NumPy's types under the names that safetensors gives them.
_TYPES = {"<f2": "F16", "<V2": "BF16", "|V2": "BF16", "<f4": "F32", "<u4": "U32"}

_DESCRIPTION = re.compile(
    r"\{'descr': (?P<descr>[^:]+), 'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[\d, ]*)\),? *\} *\n?"
)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read which arrays a file has, and where. None of them is read.

    Raises ModelError where the file cannot be read, is truncated or compressed, or has a description that does not
    fit what it describes.
    """
    with open_file(path, "numpy.savez") as file:
        archive = Archive(file)
        tensors = {name.removesuffix(".npy"): _find_array(path, archive, name) for name in archive.names}
        if len(tensors) < len(archive.names):
            raise ValueError("an array twice")
    return tensors


def _find_array(path: Path, archive: Archive, name: str) -> StoredTensor:
    start, n_bytes = archive.find(name)
    end = start + n_bytes
    magic, major, length = struct.unpack("<6sBxH", archive.read(start, 10))
    start += 10
    if major != 1:  # the length has four bytes
        length += struct.unpack("<H", archive.read(start, 2))[0] << 16
        start += 2
    description = _DESCRIPTION.fullmatch(archive.read(start, min(length, _MAX_DESCRIPTION_BYTES)).decode("latin-1"))
    start += length
    if magic != b"\x93NUMPY" or length > _MAX_DESCRIPTION_BYTES or description is None:
        raise ValueError(f"{name!r:.60} is not a plain array")
    descr = description["descr"].strip("'")
    dtype = _TYPES.get(descr, descr)
    shape = tuple(int(digits) for digits in re.findall(r"\d+", description["shape"]))
    if not is_shape(shape) or (descr in _TYPES and start + ITEM_BYTES[dtype] * math.prod(shape) != end):
        raise ValueError(f"a wrong number of bytes for {name!r:.60}")
    columns_first = description["fortran"] == "True"
    return StoredTensor(
        path, dtype, shape, start, tuple(math.prod(shape[:i]) for i in range(len(shape))) if columns_first else None
    )
