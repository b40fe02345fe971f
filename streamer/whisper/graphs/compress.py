"""Weight compression of the graphs: half precision, and integers of 8 bits with a scale for each row.

Only the weights shrink: inputs, outputs and arithmetic stay as they are. A weight is compressed as soon as it is read,
and its nodes are those that OpenVINO's devices know as a compressed matrix, which they keep as it is: whole numbers,
converted to float16, less a zero point, times a scale, converted to float32.
Scales from the extremes: Jacob et al. (2018), section 2.1.
"""

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from streamer.arrays import Float32Array, FloatArray

# The second has no zero points, which compilers of NPUs do not take.
INTEGERS = ("int8", "int8-sym")

# From the largest to the smallest. f32 leaves the weights as the checkpoint has them, which may be f16.
PRECISIONS = ("f32", "f16", *INTEGERS)

_PIECE = 1 << 20  # weights that are worked on at once, so that their copies in float32 stay small

_F16 = np.finfo(np.float16)


def constant(array: FloatArray, precision: str) -> ov.Node:
    """Return weights as a node that gives them in float32; array : shape = (rows, ...), float16 or float32.

    Vectors have no integers: what is not a matrix, or more, is kept in float16.
    """
    if precision in INTEGERS and array.ndim > 1:
        return _compressed(array, symmetric=precision == "int8-sym")
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


def _compressed(array: FloatArray, *, symmetric: bool) -> ov.Node:
    """Return an array as whole numbers with a scale for each row, symmetric ones without a zero point."""
    rows = array.reshape(len(array), -1)
    numbers = np.empty(rows.shape, np.int8 if symmetric else np.uint8)
    zeros = np.empty((len(rows), 1), np.uint8)
    scales = np.empty((len(rows), 1), np.float16)
    step = max(1, _PIECE // rows.shape[1])
    for i in range(0, len(rows), step):
        piece = slice(i, i + step)
        if symmetric:
            numbers[piece], scales[piece] = _quantize_symmetric(rows[piece].astype(np.float32))
        else:
            numbers[piece], scales[piece], zeros[piece] = _quantize_asymmetric(rows[piece].astype(np.float32))
    by_row = (len(array), *(1,) * (array.ndim - 1))
    node = ops.convert(_shared(numbers.reshape(array.shape)), "f16")
    if not symmetric:
        node = ops.subtract(node, ops.convert(_shared(zeros.reshape(by_row)), "f16"))
    return ops.convert(ops.multiply(node, _shared(scales.reshape(by_row))), "f32")


def _quantize_symmetric(rows: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Return rows as multiples of their scales, negative ones too: the largest weight gets the lowest number."""
    high, low = rows.max(axis=1, keepdims=True), rows.min(axis=1, keepdims=True)
    scales = _in_half(np.where(high > -low, high, low) / -128)
    return np.clip(np.rint(rows / scales), -128, 127), scales


def _quantize_asymmetric(rows: Float32Array) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Return rows as multiples of their scales above a zero point, from the smallest weight of a row to the largest."""
    # 0 has to be among them.
    high, low = (extreme(rows, axis=1, keepdims=True, initial=0) for extreme in (np.max, np.min))
    scales = _in_half((high - low) / 255)
    zeros = np.clip(np.rint(-low / scales), 0, 255)
    np.rint(np.divide(rows, scales, out=rows), out=rows)
    rows += zeros
    return np.clip(rows, 0, 255, out=rows), scales, zeros


def _in_half(scales: Float32Array) -> Float32Array:
    """Round scales to float16, away from zero, which all weights of a row may be, and from infinity."""
    size = np.clip(np.abs(scales), _F16.smallest_subnormal, _F16.max)
    rounded: Float32Array = np.copysign(size, scales).astype(np.float16).astype(np.float32)
    return rounded


def _shared(array: NDArray[np.generic]) -> ov.Node:
    return ops.constant(np.ascontiguousarray(array), shared_memory=True)
