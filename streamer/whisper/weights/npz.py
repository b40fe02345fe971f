"""NumPy's `.npz`: an uncompressed zip archive of arrays, each with a short text before it that describes it.

Read here and not by `numpy.load`, which evaluates the text, and makes room for an array before it looks for it.
Source: the documentation of `numpy.lib.format`; MLX writes the same, and calls bfloat16 `V2`.
"""

import io
import math
import re
import struct
import zipfile
from pathlib import Path

from streamer.errors import ModelError
from streamer.whisper.weights.tensors import StoredTensor, is_shape

# The archive's table of contents of a quantized large-v3 has 200 kB.
_MAX_DIRECTORY_BYTES = 1 << 20

# Longest description that is read; NumPy's are filled up to 128 bytes.
_MAX_DESCRIPTION_BYTES = 1024

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a member of the archive: signature, lengths of name and extra field
_ENCRYPTED = 1

# NumPy's types under the names that safetensors gives them, and bytes of an element.
_TYPES = {"<f2": ("F16", 2), "<V2": ("BF16", 2), "|V2": ("BF16", 2), "<f4": ("F32", 4), "<u4": ("U32", 4)}

_DESCRIPTION = re.compile(
    r"\{'descr': (?P<descr>[^:]+), 'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[\d, ]*)\),? *\} *\n?"
)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read which arrays a file has, and where. None of them is read.

    Raises ModelError where the file cannot be read, is truncated or compressed, or has a description that does not
    fit what it describes.
    """
    try:
        with _File(path) as file:
            n_bytes = file.seek(0, io.SEEK_END)
            tensors: dict[str, StoredTensor] = {}
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
            for info in members:
                name = info.filename.removesuffix(".npy")
                if name in tensors:
                    raise ValueError(f"{name!r:.60} twice")
                tensors[name] = _read_member(path, file, info, n_bytes)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): expected a file that you may read") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError, struct.error) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path} cannot be read ({reason:.120}): it is truncated or no file of numpy.savez; fetch it again"
        ) from None
    return tensors


class _File(io.FileIO):
    """A file of which no more is read at once than an archive's table of contents may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise ValueError(f"a table of contents of more than {_MAX_DIRECTORY_BYTES >> 20} MiB")
        return super().read(size) or b""


def _read_member(path: Path, file: _File, info: zipfile.ZipInfo, n_bytes: int) -> StoredTensor:
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
        raise ModelError(
            f"{path} has {info.filename!r:.60} compressed or encrypted: expected neither; save it again with"
            " numpy.savez"
        )
    file.seek(info.header_offset)
    signature, *lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    begin = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
    end = begin + info.file_size
    if signature != b"PK\x03\x04" or end > n_bytes:
        raise ValueError(f"{info.filename!r:.60} is not where the archive says")

    file.seek(begin)
    magic, major, length = struct.unpack("<6sBxH", file.read(10))
    if major != 1:  # the length has four bytes
        length += struct.unpack("<H", file.read(2))[0] << 16
    description = _DESCRIPTION.fullmatch(file.read(min(length, _MAX_DESCRIPTION_BYTES)).decode("latin-1"))
    start = file.tell()
    if magic != b"\x93NUMPY" or length > _MAX_DESCRIPTION_BYTES or description is None:
        raise ValueError(f"{info.filename!r:.60} is not a plain array")
    descr = description["descr"].strip("'")
    dtype, item_bytes = _TYPES.get(descr, (descr, 0))
    shape = tuple(int(digits) for digits in re.findall(r"\d+", description["shape"]))
    if not is_shape(shape) or (item_bytes and start + item_bytes * math.prod(shape) != end):
        raise ValueError(f"a wrong number of bytes for {info.filename!r:.60}")
    strides = _column_strides(shape) if description["fortran"] == "True" else None
    return StoredTensor(path, dtype, shape, start, strides)


def _column_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances, in elements, of an array whose elements follow each other in the order of columns."""
    return tuple(math.prod(shape[:i]) for i in range(len(shape)))
