"""Files of tensors: lengths are checked before anything is read, and whatever is broken is one error."""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamer.errors import ModelError
from streamer.whisper.files import readable

# What is raised for a broken file, by `zipfile` and others.
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, OverflowError, MemoryError),
    RuntimeError,  # also of recursion, and of what `zipfile` does not read
)


class UnfitError(Exception):
    """A whole file with something in it that is not read. The text is the reason."""


def unfit(where: object, fact: str, expected: str, remedy: str) -> ModelError:
    """Return the error of a model's file, in one line; `where` is its path."""
    return ModelError(f"{where} {fact}: expected {expected}; {remedy}")


class File(io.BufferedReader):
    """An open file. Lengths that it announces are compared with its size; numbers are little-endian."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self.path = path
        self.n_bytes = os.fstat(self.fileno()).st_size

    def left_bytes(self) -> int:
        """Return the number of bytes that have not been read."""
        return self.n_bytes - self.tell()

    def read_all(self, n_bytes: int, what: str) -> bytes:
        """Return the next bytes. Raises ValueError, which names `what` was read, if the file is shorter."""
        return self.read(self._checked(n_bytes, what))

    def read_numbers(self, layout: str, what: str) -> tuple[Any, ...]:
        """Return numbers in a layout of `struct`'s. Raises as `read_all`."""
        return struct.unpack(f"<{layout}", self.read_all(struct.calcsize(f"<{layout}"), what))

    def skip(self, n_bytes: int, what: str) -> int:
        """Skip bytes and return the position of the first. Raises as `read_all`."""
        return self.seek(self._checked(n_bytes, what), os.SEEK_CUR) - n_bytes

    def _checked(self, n_bytes: int, what: str) -> int:
        if not 0 <= n_bytes <= self.left_bytes():
            raise ValueError(f"it ends within {what}")
        return n_bytes


@contextmanager
def open_file(path: Path, writer: str) -> Iterator[File]:
    """Open a file; what goes wrong in the block with it becomes one ModelError.

    writer : the program that writes such files, for the message

    In the block UnfitError, and ValueError and its like for a broken file, say the reason.
    """
    try:
        with readable(path), File(path) as file:
            yield file
    except UnfitError as error:
        fact, remedy = f"cannot be loaded ({error})", f"save it again with {writer}"
        raise unfit(path, fact, "tensors, numbers and texts only", remedy) from None
    except BROKEN as error:
        reason = " ".join(str(error).split())
        fact, expected = f"cannot be read ({reason:.120})", f"a complete file of {writer}"
        raise unfit(path, fact, expected, "download it again") from None
