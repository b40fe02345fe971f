"""Zip archives, which `torch.save` and `numpy.savez` write: where each member is in the file, read by `zipfile`."""

import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from streamer.whisper.weights.binary import BROKEN, File, UnfitError

# Weights hardly shrink. What grows this much when it is unpacked is made to fill the memory.
_MAX_GROWTH = 16
_GROWTH_FROM_BYTES = 1 << 20

_PIECE_BYTES = 1 << 16  # unpacked at once
_ENCRYPTED = 1


class Archive:
    """The members of an archive."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._zip = zipfile.ZipFile(file)
        self.n_bytes = file.n_bytes
        members = self._zip.infolist()
        self.names = self._zip.namelist()
        if len(set(self.names)) < len(self.names):
            raise ValueError("a member twice")
        n_unpacked = sum(info.file_size for info in members if info.compress_type != zipfile.ZIP_STORED)
        if n_unpacked > max(_MAX_GROWTH * self.n_bytes, _GROWTH_FROM_BYTES):
            raise UnfitError(f"it unpacks to more than {_MAX_GROWTH} times its size")

    def member(self, name: str) -> zipfile.ZipInfo:
        """Return what the archive says of a member, which `open` can open."""
        try:
            info = self._zip.getinfo(name)
        except KeyError:
            raise ValueError(f"no {name!r:.60} in the archive") from None
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & _ENCRYPTED:
            raise UnfitError(f"{name!r:.60} is compressed or encrypted in another way than numpy does")
        return info

    def open(self, name: str) -> IO[bytes]:
        """Open a member to read its bytes, unpacked."""
        return self._zip.open(self.member(name))

    def find(self, name: str) -> tuple[int, int]:
        """Return first byte and length of a member, which lies in the file as it is."""
        info = self.member(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise UnfitError(f"{name!r:.60} is compressed or encrypted")
        with self._zip.open(info):
            start = self._file.tell()  # behind the member's header
        if start + info.file_size > self.n_bytes:
            raise ValueError(f"{name!r:.60} is not where the archive says")
        return start, info.file_size


def read_packed(path: Path, name: str, n_bytes: int) -> NDArray[np.uint8]:
    """Return the first bytes of a member that is compressed. Raises ValueError if it is damaged, and OSError."""
    values = np.empty(n_bytes, np.uint8)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            for begin in range(0, n_bytes, _PIECE_BYTES):
                piece = member.read(min(_PIECE_BYTES, n_bytes - begin))
                if len(piece) < min(_PIECE_BYTES, n_bytes - begin):
                    raise ValueError("less in it than it announces")
                values[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)
    except (*BROKEN, KeyError) as error:
        raise ValueError(str(error)) from None
    return values
