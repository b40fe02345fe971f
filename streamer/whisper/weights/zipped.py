"""Zip archives, which `torch.save` and `numpy.savez` write: where each member lies in the file.

`zipfile` reads the table of contents, through a file that gives it no more than such a table may have: it makes room
for whatever the archive announces.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ModelError
from streamer.whisper.files import readable

# That of large-v3 has 130 kB, that of a quantized one 200 kB.
_MAX_DIRECTORY_BYTES = 4 << 20

# Weights hardly shrink. What grows so much when it is unpacked is made to fill the memory.
_MAX_GROWTH = 16
_GROWTH_FROM_BYTES = 1 << 20

_PIECE_BYTES = 1 << 16  # unpacked at once; it can become a thousand times as much

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a member: signature, lengths of name and extra field
_ENCRYPTED = 1


class UnfitError(Exception):
    """A whole file with something in it that is not read. The text is the reason."""


class File(io.FileIO):
    """A file for `zipfile`, which reads and seeks as the file says."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_SET and offset < 0:
            raise ValueError("a part before the beginning of the file")
        return super().seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise ValueError(f"a table of contents of more than {_MAX_DIRECTORY_BYTES >> 20} MiB")
        return super().read(size) or b""


@contextmanager
def open_file(path: Path, writer: str) -> Iterator[File]:
    """Open the file of an archive; what goes wrong in the block with it becomes one ModelError.

    writer : the function that writes such files, for the message

    In the block UnfitError, and ValueError and its like for a broken file, say the reason.
    """
    try:
        with readable(path), File(path) as file:
            yield file
    except UnfitError as error:
        raise ModelError(
            f"{path} is not taken ({error}): expected tensors, numbers and texts alone; save it again with {writer}"
        ) from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError, struct.error) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path} cannot be read ({reason:.120}): it is truncated or no file of {writer}; fetch it again"
        ) from None


class Archive:
    """The members of an archive."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._n_bytes = file.seek(0, io.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            self._members = {info.filename: info for info in archive.infolist()}
            if len(self._members) < len(archive.infolist()):
                raise ValueError("a member twice")
            packed = [info.file_size for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
        if sum(packed) > max(_MAX_GROWTH * self._n_bytes, _GROWTH_FROM_BYTES):
            raise UnfitError(f"it unpacks to more than {_MAX_GROWTH} times its size")
        self.names = tuple(self._members)

    def find(self, name: str) -> tuple[int, int]:
        """Return first byte and length of a member, which lies in the file as it is."""
        start, n_bytes, n_packed = self.find_packed(name)
        if n_packed is not None:
            raise UnfitError(f"{name!r:.60} is compressed or encrypted")
        return start, n_bytes

    def find_packed(self, name: str) -> tuple[int, int, int | None]:
        """Return first byte and length of a member, and how many bytes it has in the file where it is deflated."""
        info = self._members.get(name)
        if info is None:
            raise ValueError(f"no {name!r:.60} in the archive")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & _ENCRYPTED:
            raise UnfitError(f"{name!r:.60} is compressed or encrypted in another way than numpy does")
        signature, *lengths = _LOCAL_HEADER.unpack(self.read(info.header_offset, _LOCAL_HEADER.size))
        start = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        n_there = info.compress_size if deflated else info.file_size
        if signature != b"PK\x03\x04" or start + n_there > self._n_bytes:
            raise ValueError(f"{name!r:.60} is not where the archive says")
        return start, info.file_size, n_there if deflated else None

    def read(self, start: int, n_bytes: int, n_packed: int | None = None) -> bytes:
        """Return bytes of the file, fewer at its end; of `n_packed` that are deflated there, the first `n_bytes`."""
        self._file.seek(start)
        return self._file.read(n_bytes) if n_packed is None else inflate(self._file, n_packed, n_bytes).tobytes()


def inflate(file: BinaryIO, n_packed: int, n_bytes: int) -> NDArray[np.uint8]:
    """Return the first `n_bytes` that are deflated in the next `n_packed` of a file. Raises ValueError if damaged."""
    values = np.empty(n_bytes, np.uint8)
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)  # without a header of its own
    end = 0
    while end < n_bytes and (piece := file.read(min(n_packed, _PIECE_BYTES))) and not inflater.eof:
        n_packed -= len(piece)
        try:
            found = inflater.decompress(piece, n_bytes - end)
        except zlib.error as error:
            raise ValueError(f"damaged: {error}") from None
        values[end : end + len(found)] = np.frombuffer(found, np.uint8)
        end += len(found)
    if end < n_bytes:
        raise ValueError("less in it than it announces")
    return values
