"""Tensors that lie in a file as they are, read one by one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from streamer.arrays import FloatArray
from streamer.errors import ModelError
from streamer.whisper.weights.zipped import read_packed

# Bytes of an element of each type, under the names that safetensors gives them.
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}

# How the types that a graph takes are read. NumPy has no bfloat16.
READ_AS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}

# What a shape may be: a Whisper's tensors have up to three dimensions, and no file has 2^48 elements.
_MAX_RANK = 8
_MAX_LENGTH = 1 << 48


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's elements lie in a file, all of them inside of it when it was opened."""

    path: Path

    # As safetensors writes it, such as F16.
    dtype: str

    shape: tuple[int, ...]

    # First byte, from the beginning of the file, or of what is packed in it.
    start: int

    # Distances in elements; none where the elements follow each other in the order of rows.
    strides: tuple[int, ...] | None = None

    # The compressed member of an archive that has the elements in it; empty: the file has them as they are.
    packed: str = ""

    def read(self) -> FloatArray:
        """Return the elements, bfloat16 as float32, others as is. Raises ModelError where the file has changed."""
        strides = self.strides or row_strides(self.shape)
        values = read_elements(self.path, READ_AS[self.dtype], spread(self.shape, strides), self.start, self.packed)
        values = as_strided(values, self.shape, [stride * values.itemsize for stride in strides])
        if self.dtype != "BF16":
            return np.ascontiguousarray(values)
        halves = np.zeros((*self.shape, 2), "<u2")
        halves[..., 1] = values
        return halves.view("<f4")[..., 0]


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """A tensor that is computed from what a file stores."""

    shape: tuple[int, ...]

    # Raises as that of StoredTensor.
    read: Callable[[], FloatArray]


def read_elements(path: Path, dtype: DTypeLike, count: int, start: int, packed: str = "") -> NDArray[Any]:
    """Read elements from a byte of a file, or of what is `packed` in it, on. Raises ModelError if they are gone."""
    try:
        if packed:
            values = read_packed(path, packed, start + count * np.dtype(dtype).itemsize)[start:].view(dtype)
        else:
            values = np.fromfile(path, dtype, count, offset=start)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): expected a file that stays") from None
    except ValueError as error:
        raise ModelError(f"{path} cannot be unpacked ({error!s:.100}): fetch it again") from None
    if len(values) < count:
        raise ModelError(f"{path} became shorter while it was read: expected a file that stays; try again")
    return values


def is_shape(value: object) -> TypeGuard[list[int] | tuple[int, ...]]:
    """Return whether what a file gave is a list of lengths, none of them beyond reason."""
    return (
        isinstance(value, list | tuple)
        and len(value) <= _MAX_RANK
        and all(type(length) is int and 0 <= length <= _MAX_LENGTH for length in value)
    )


def row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances, in elements, of a tensor whose elements follow each other in the order of rows."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def spread(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first of a tensor to its last, others between them included."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
