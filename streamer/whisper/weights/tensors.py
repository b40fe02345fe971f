"""Tensors that lie in a file as they are, and the checkpoint that is read from them one by one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.lib.stride_tricks import as_strided

from streamer.arrays import FloatArray
from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import Checkpoint, LazyTensors, check_shapes, expected_shapes

# How the types that a graph takes are read, under the names that safetensors gives them. NumPy has no bfloat16.
_READ_AS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}

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

    # First byte, from the beginning of the file.
    start: int

    # Distances in elements; none where the elements follow each other in the order of rows.
    strides: tuple[int, ...] | None = None

    def read(self) -> FloatArray:
        """Return the elements: float16 and float32 as they are, bfloat16 as the float32 that it is the upper half of.

        Raises ModelError where the file has changed since it was opened.
        """
        element = np.dtype(_READ_AS[self.dtype])
        strides = self.strides or row_strides(self.shape)
        count = 1 + last_element(self.shape, strides)
        try:
            values = np.fromfile(self.path, element, count, offset=self.start)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read ({error.strerror}): expected a file that stays") from None
        if values.size < count:
            raise ModelError(f"{self.path} became shorter while it was read: expected a file that stays; try again")
        values = as_strided(values, self.shape, [stride * element.itemsize for stride in strides])
        if self.dtype != "BF16":
            return np.ascontiguousarray(values)
        halves = np.zeros((*self.shape, 2), "<u2")
        halves[..., 1] = values
        return halves.view("<f4")[..., 0]


def as_checkpoint(
    dims: ModelDimensions, found: Mapping[str, StoredTensor], where: str, described_by: str = "config.json"
) -> Checkpoint:
    """Return the checkpoint of these dimensions. No tensor is read, and tensors that Whisper does not have are ignored.

    `where` and `described_by` are those of `check_shapes`. Raises ModelError where one is missing, of another shape, or
    of a type that is no float of 16 or 32 bits.
    """
    expected = {name: found[name] for name in expected_shapes(dims) if name in found}
    for name, tensor in expected.items():
        if tensor.dtype not in _READ_AS:
            raise ModelError(
                f"{tensor.path} has {name} of type {tensor.dtype!r:.20}: expected F16, BF16 or F32; convert the model"
            )
    check_shapes(dims, {name: tensor.shape for name, tensor in expected.items()}, where, described_by)
    return Checkpoint(dims, LazyTensors({name: tensor.read for name, tensor in expected.items()}, where))


def is_shape(value: object) -> TypeGuard[list[int] | tuple[int, ...]]:
    """Tell whether what a file gave is a list of lengths, none of them beyond reason."""
    return (
        isinstance(value, list | tuple)
        and len(value) <= _MAX_RANK
        and all(type(length) is int and 0 <= length <= _MAX_LENGTH for length in value)
    )


def row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances, in elements, of a tensor whose elements follow each other in the order of rows."""
    strides: list[int] = []
    stride = 1
    for length in reversed(shape):
        strides.insert(0, stride)
        stride *= length
    return tuple(strides)


def last_element(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the distance, in elements, from the first element to the last."""
    return sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
