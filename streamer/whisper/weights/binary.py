"""Binary files that are read from beginning to end, with little-endian numbers."""

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from streamer.errors import ModelError


class BinaryFile:
    """An open file. Reading stops at its real size, whatever lengths it announces."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self._size_bytes = os.fstat(file.fileno()).st_size

    def left_bytes(self) -> int:
        """Return the number of bytes that have not been read."""
        return self._size_bytes - self._file.tell()

    def read(self, n_bytes: int, what: str) -> bytes:
        """Return the next bytes. Raises ModelError, which names `what` was read, if the file is shorter."""
        data = self._file.read(min(n_bytes, self.left_bytes()))
        if len(data) < n_bytes:
            raise self._truncated(what)
        return data

    def read_numbers(self, layout: str, what: str) -> tuple[Any, ...]:
        """Return numbers in a layout of `struct`'s. Raises as `read`."""
        return struct.unpack(f"<{layout}", self.read(struct.calcsize(f"<{layout}"), what))

    def skip(self, n_bytes: int, what: str) -> int:
        """Skip bytes and return the position of the first. Raises as `read`."""
        if n_bytes > self.left_bytes():
            raise self._truncated(what)
        begin = self._file.tell()
        self._file.seek(n_bytes, os.SEEK_CUR)
        return begin

    def _truncated(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} ends within {what}: expected more bytes, it is truncated or broken; fetch it again"
        )
