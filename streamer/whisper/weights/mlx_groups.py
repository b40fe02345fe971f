"""MLX's quantized matrices: numbers of 2 to 8 bits in a row, a group of neighbours sharing a scale and an offset.

Source: `mlx.core.quantize` in the mode "affine": a weight is its number times the group's scale plus the group's bias,
and the numbers of a row follow each other bit by bit, lowest bit first.
"""

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import Float32Array
from streamer.whisper.weights.binary import unfit
from streamer.whisper.weights.tensors import FLOATS, Tensor

_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)

_ROWS = 64  # unpacked at once


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
        found = f"{packed.dtype:.20} {list(packed.shape)!s:.60}, with scales {list(scales.shape)!s:.60}"
        expected = f"MLX's affine quantization of {list(shape)}, of 2 to 8 bits in groups of 32, 64 or 128"
        raise unfit(where, f"has {name:.60} quantized to {found}", expected, "convert the model again")

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


def _unpack(packed: NDArray[np.uint32], columns: int) -> NDArray[np.uint64]:
    """Return the numbers (rows, columns) of rows of packed bits."""
    # Eight numbers take as many bytes as one has bits; filled up, these bytes are one number of 64 bits.
    octets = np.ascontiguousarray(packed).view(np.uint8).reshape(len(packed), columns // 8, -1)
    bits = octets.shape[2]
    words = np.pad(octets, ((0, 0), (0, 0), (0, 8 - bits))).view("<u8")
    numbers = words >> np.arange(0, 8 * bits, bits, dtype=np.uint64) & np.uint64(2**bits - 1)
    return numbers.reshape(len(packed), columns)
