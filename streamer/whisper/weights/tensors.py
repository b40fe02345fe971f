"""Tensors of a file, read one by one."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from streamer.whisper.weights.binary import unfit

# NumPy's types under the names that safetensors gives them. NumPy has no bfloat16: its bits are read.
TYPES = {
    name: np.dtype(code)
    for name, code in (
        *(("BOOL", "?"), ("U8", "u1"), ("I8", "i1"), ("U16", "<u2"), ("I16", "<i2"), ("F16", "<f2"), ("BF16", "<u2")),
        *(("U32", "<u4"), ("I32", "<i4"), ("F32", "<f4"), ("U64", "<u8"), ("I64", "<i8"), ("F64", "<f8")),
    )
}

# What a graph takes.
FLOATS = ("F16", "BF16", "F32")

# A Whisper's tensors have up to three dimensions, and no file has 2^48 elements.
_MAX_RANK = 8
_MAX_LENGTH = 1 << 48


# A tuple, since a pickle can give any other object new attributes.
class Tensor(NamedTuple):
    """A tensor whose elements stay in its file until they are read."""

    shape: tuple[int, ...]

    # As safetensors writes it, such as F16.
    dtype: str

    # Returns the elements. Raises ModelError if the file has changed or is damaged.
    load: Callable[[], NDArray[Any]]

    def read(self) -> NDArray[Any]:
        """Return the elements in the order of rows, bfloat16 as float32. Raises ModelError as `load`."""
        values = self.load()
        if self.dtype == "BF16":
            halves: NDArray[np.uint32] = np.left_shift(values, 16, dtype=np.uint32, order="C")
            return halves.view(np.float32)
        return np.ascontiguousarray(values)

    def view(self, shape: tuple[int, ...], change: Callable[[NDArray[Any]], NDArray[Any]]) -> "Tensor":
        """Return the tensor of this shape that a change of the elements gives."""
        return Tensor(shape, self.dtype, lambda: change(self.load()))


def stored(path: Path, dtype: str, shape: tuple[int, ...], start: int) -> Tensor:
    """Return a tensor whose elements are in a file from a byte on, in the order of rows."""

    def load() -> NDArray[Any]:
        try:
            return np.fromfile(path, TYPES[dtype], math.prod(shape), offset=start).reshape(shape)
        except OSError as error:
            fact = f"cannot be read ({error.strerror})"
        except ValueError:
            fact = "was truncated while it was read"
        raise unfit(path, fact, "it not to change", "try again")

    return Tensor(shape, dtype, load)


def is_shape(value: object) -> TypeGuard[list[int] | tuple[int, ...]]:
    """Return whether what a file gave is a list of lengths, none of them beyond reason."""
    return (
        isinstance(value, list | tuple)
        and len(value) <= _MAX_RANK
        and all(type(length) is int and 0 <= length <= _MAX_LENGTH for length in value)
    )
