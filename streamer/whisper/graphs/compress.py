"""Weight compression of the graphs: half precision, and integers of 8 and 4 bits with scales.

Only the weights shrink: inputs, outputs and arithmetic stay as they are. A weight is compressed as soon as it is read,
and its nodes are those that OpenVINO's devices know as a compressed matrix, which they keep as it is: whole numbers,
converted to float16, less a zero point, times a scale, converted to float32.
Scales by row or group from the extremes: Jacob et al. (2018), section 2.1.
"""

import difflib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from streamer.arrays import Float32Array, FloatArray
from streamer.errors import ConfigError
from streamer.whisper.graphs.ports import STAGES


@dataclass(frozen=True, slots=True)
class _Integers:
    """How weights become whole numbers. Symmetric ones have no zero point, which compilers of NPUs want of 4 bits."""

    bits: int
    symmetric: bool
    group_size: int = 0  # weights of a row that share a scale; 0: all of them


_INTEGERS = {
    "int8": _Integers(8, symmetric=False),
    "int8-sym": _Integers(8, symmetric=True),
    "int4": _Integers(4, symmetric=True, group_size=128),
    "int4-channel": _Integers(4, symmetric=True),
}

# From the largest to the smallest. f32 leaves the weights as the checkpoint has them, which may be f16.
PRECISIONS = ("f32", "f16", *_INTEGERS)

DEFAULT_PRECISION = "f16"  # of a stage that is not named

# Smaller groups are not made: the whole row has one scale then. nano.en's rows of 192 make groups of 64.
_LEAST_GROUP = 32

_PIECE = 1 << 20  # weights that are worked on at once, so that their copies in float32 stay small
_PARTS = (1.0, 0.93, 0.86, 0.79, 0.72)  # of a row's range, tried as the range of its numbers

_F16 = np.finfo(np.float16)

_Numbers = NDArray[np.integer[Any]]


def parse_precisions(text: str) -> dict[str, str]:
    """Return the precision of each stage, from one for all (`int8`) or from some by name (`encoder=f16,decoder=int8`).

    A stage that is not named gets f16. Raises ConfigError for what is neither, naming the nearest that is.
    """
    if "=" not in text:
        return dict.fromkeys(STAGES, _known(text, PRECISIONS, "precision"))
    found: dict[str, str] = {}
    for part in text.split(","):
        stage, equals, precision = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"weights {text!r:.60} name a precision for {stage!r:.20}: expected STAGE=PRECISION,...")
        if _known(stage, STAGES, "stage") in found:
            raise ConfigError(f"weights {text!r:.60} name {stage} twice: give it one precision")
        found[stage] = _known(precision, PRECISIONS, "precision")
    return dict.fromkeys(STAGES, DEFAULT_PRECISION) | found


def _known(name: str, known: tuple[str, ...], what: str) -> str:
    if name in known:
        return name
    nearest = difflib.get_close_matches(name.lower(), known, n=1)
    meant = f"did you mean {nearest[0]}?" if nearest else f"use one of {', '.join(known)}"
    raise ConfigError(f"there is no {what} {name!r:.60}: {meant}")


def precision_of_tables(precision: str) -> str:
    """Return the precision of what is no plain matrix, embeddings and convolutions: 8 bits where others have 4."""
    return "int8-sym" if precision in _INTEGERS and _INTEGERS[precision].bits == 4 else precision


def constant(array: FloatArray, precision: str) -> ov.Node:
    """Return weights as a node that gives them in float32; array : shape = (rows, ...), float16 or float32.

    Vectors have no integers: what is not a matrix, or more, is kept in float16.
    """
    if precision in _INTEGERS and array.ndim > 1:
        return _compressed(array, _INTEGERS[precision])
    if (
        precision != "f32"
        and array.dtype == np.float32
        and max(array.max(initial=0), -array.min(initial=0)) <= _F16.max
    ):
        array = array.astype(np.float16)
    # The node looks at the array's own memory and keeps it alive. It asks for one that could be written to.
    array = np.require(array, requirements=["C", "ALIGNED", "WRITEABLE"])
    node = ops.constant(array, shared_memory=True)
    return node if array.dtype == np.float32 else ops.convert(node, "f32")


def _compressed(array: FloatArray, to: _Integers) -> ov.Node:
    """Return an array as whole numbers with a scale for each row, or for each group of a row."""
    n_rows, n_columns = len(array), math.prod(array.shape[1:])
    group = math.gcd(n_columns, to.group_size) if to.group_size else n_columns
    if group < _LEAST_GROUP or group == n_columns:
        group = n_columns
        shape, scales_shape = array.shape, (n_rows, *(1 for _ in array.shape[1:]))
    else:
        shape, scales_shape = (n_rows, n_columns // group, group), (n_rows, n_columns // group, 1)
    rows = array.reshape(-1, group)
    numbers = np.empty(rows.shape, np.int8 if to.symmetric else np.uint8)
    zeros = np.empty((len(rows), 1), np.uint8)
    scales = np.empty((len(rows), 1), np.float16)
    step = max(1, _PIECE // group)
    for i in range(0, len(rows), step):
        piece = slice(i, i + step)
        quantize = _quantize_symmetric if to.symmetric else _quantize_asymmetric
        quantize(rows[piece].astype(np.float32), to.bits, numbers[piece], scales[piece], zeros[piece])
    node = ops.convert(_integers(numbers, to.bits, shape), "f16")
    if not to.symmetric:
        node = ops.subtract(node, ops.convert(_shared(zeros.reshape(scales_shape)), "f16"))
    node = ops.multiply(node, _shared(scales.reshape(scales_shape)))
    if shape != array.shape:
        node = ops.reshape(node, ops.constant(np.array(array.shape, np.int64)), False)
    return ops.convert(node, "f32")


def _quantize_symmetric(
    rows: Float32Array,
    bits: int,
    numbers: _Numbers,
    scales: NDArray[np.float16],
    _: NDArray[np.uint8],
) -> None:
    """Round rows to multiples of scales, negative ones too, so that the largest weight has the lowest number."""
    lowest = -(1 << bits - 1)
    high, low = rows.max(axis=1, keepdims=True), rows.min(axis=1, keepdims=True)
    widest = np.where(high > -low, high, low) / lowest
    least = np.full_like(widest, np.inf)
    # Of 4 bits, numbers that serve most weights better lose more by them than by cutting the largest off.
    for part in (1.0,) if bits == 8 else _PARTS:
        scale = _in_half(part * widest).astype(np.float16)
        found = np.clip(np.rint(rows / scale), lowest, -1 - lowest)
        error = np.square(found * scale - rows).sum(axis=1, keepdims=True)
        better = error < least
        np.copyto(least, error, where=better)
        np.copyto(scales, scale, where=better)
        np.copyto(numbers, found, where=better, casting="unsafe")


def _quantize_asymmetric(
    rows: Float32Array,
    bits: int,
    numbers: _Numbers,
    scales: NDArray[np.float16],
    zeros: NDArray[np.uint8],
) -> None:
    """Round rows to multiples of their scales, from the smallest weight of a row to the largest."""
    highest = (1 << bits) - 1
    high, low = (
        extreme(rows, axis=1, keepdims=True, initial=0)  # 0 has to be among them
        for extreme in (np.max, np.min)
    )
    scales[:] = _in_half((high - low) / highest)
    zeros[:] = np.clip(np.rint(-low / scales.astype(np.float32)), 0, highest)
    np.rint(np.divide(rows, scales, out=rows), out=rows)
    rows += zeros
    numbers[:] = np.clip(rows, 0, highest, out=rows)


def _in_half(scales: Float32Array) -> Float32Array:
    """Keep scales where float16 has numbers, and away from zero, which all weights of a row may be."""
    size: Float32Array = np.clip(np.abs(scales), _F16.smallest_subnormal, _F16.max)
    return np.copysign(size, scales, out=size)


def _integers(numbers: _Numbers, bits: int, shape: tuple[int, ...]) -> ov.Node:
    if bits == 8:
        return _shared(numbers.reshape(shape))
    # Two to a byte, the first in the lower half. The tensor owns its memory: it would not keep an array alive.
    tensor = ov.Tensor(ov.Type.i4, ov.Shape(shape))
    flat, packed = numbers.reshape(-1), tensor.data
    packed[:] = flat[::2] & 15
    packed[: len(flat) // 2] |= flat[1::2] << 4
    return ops.constant(tensor, shared_memory=True)


def _shared(array: NDArray[np.generic]) -> ov.Node:
    return ops.constant(np.ascontiguousarray(array), shared_memory=True)
