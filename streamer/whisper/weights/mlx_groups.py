"""MLX's quantized matrices: numbers of 2 to 8 bits in a row, a group of neighbours sharing a scale and an offset.

Source: `mlx.core.quantize` in the mode "affine": a weight is its number times the group's scale plus the group's bias,
and the numbers of a row follow each other bit by bit, lowest bit first.
"""

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import Float32Array
from streamer.errors import ModelError
from streamer.whisper.weights.tensors import FLOATS, Tensor

_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)

_ROWS = 256  # unpacked at once


def grouped(name: str, where: str, packed: Tensor, scales: Tensor, biases: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the matrix (rows, columns) that a file stores as three tensors.

    packed : (rows, columns * bits / 32)
    scales, biases : (rows, columns / group size)

    Raises ModelError unless the tensors fit each other and the shape; `name` and `where` are for the message.
    """
    rows, columns = shape
    groups = [columns // size for size in _GROUP_SIZES if columns % size == 0]
    if (
        packed.dtype != "U32"
        or not {scales.dtype, biases.dtype} <= set(FLOATS)
        or packed.shape not in [(rows, columns * bits // 32) for bits in _BITS]
        or scales.shape not in [(rows, n) for n in groups]
        or biases.shape != scales.shape
    ):
        raise ModelError(
            f"{where} has {name:.60} quantized to {packed.dtype:.20} {list(packed.shape)!s:.60}, with scales"
            f" {list(scales.shape)!s:.60}: expected MLX's affine quantization of {list(shape)}, of 2 to 8 bits in"
            " groups of 32, 64 or 128; convert the model again"
        )

    def load() -> Float32Array:
        numbers, values = packed.load(), np.empty(shape, np.float32)
        for i in range(0, rows, _ROWS):
            values[i : i + _ROWS] = _unpack(numbers[i : i + _ROWS], columns)
        # A scale that is not finite is the file's, and found by the reader of the result.
        with np.errstate(invalid="ignore", over="ignore"):
            by_group = values.reshape(*scales.shape, -1)
            by_group *= scales.read().astype(np.float32)[..., np.newaxis]
            by_group += biases.read().astype(np.float32)[..., np.newaxis]
        return values

    return Tensor(shape, "F32", load)


def _unpack(packed: NDArray[np.uint32], columns: int) -> NDArray[np.uint8]:
    """Return the numbers (rows, columns) of rows of packed bits."""
    bits = np.unpackbits(np.ascontiguousarray(packed).view(np.uint8), axis=1, bitorder="little").reshape(
        len(packed), columns, -1
    )
    return np.packbits(bits, axis=2, bitorder="little")[..., 0]
