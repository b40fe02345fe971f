"""MLX's quantized matrices: numbers of 2 to 8 bits in a row, a group of neighbours sharing a scale and an offset.

Source: `mlx.core.quantize` in the mode "affine": a weight is its number times the group's scale plus the group's bias,
and the numbers of a row follow each other bit by bit, lowest bit first.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import Float32Array
from streamer.errors import ModelError
from streamer.whisper.weights.tensors import READ_AS, ComputedTensor, StoredTensor

_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)


def grouped(
    name: str, packed: StoredTensor, scales: StoredTensor, biases: StoredTensor, shape: tuple[int, int]
) -> ComputedTensor:
    """Return the matrix (rows, columns) that a file stores as three tensors.

    packed : (rows, columns * bits / 32)
    scales, biases : (rows, columns / group size)

    Raises ModelError unless the tensors fit each other and the shape; `name` is the matrix in the message.
    """
    rows, columns = shape
    groups = [columns // size for size in _GROUP_SIZES if columns % size == 0]
    if (
        packed.dtype != "U32"
        or not {scales.dtype, biases.dtype} <= set(READ_AS)
        or packed.shape not in [(rows, columns * bits // 32) for bits in _BITS]
        or scales.shape not in [(rows, n) for n in groups]
        or biases.shape != scales.shape
    ):
        raise ModelError(
            f"{packed.path} has {name:.60} quantized to {packed.dtype:.20} {list(packed.shape)!s:.60}, with scales"
            f" {list(scales.shape)!s:.60}: expected MLX's affine quantization of {list(shape)}, of 2 to 8 bits in"
            " groups of 32, 64 or 128; convert the model again"
        )
    return ComputedTensor(shape, partial(_read, packed, scales, biases, shape))


def _read(packed: StoredTensor, scales: StoredTensor, biases: StoredTensor, shape: tuple[int, int]) -> Float32Array:
    # Whole numbers of 32 bits have no reader of their own, and a float of as many is read bit by bit.
    data = replace(packed, dtype="F32").read().view(np.uint8)
    values = _unpack(data, bits=data.shape[1] * 8 // shape[1])
    # A scale that is not finite is the file's; what comes of it is not worth a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        groups = values.reshape(*scales.shape, -1)
        groups *= scales.read().astype(np.float32)[..., np.newaxis]
        groups += biases.read().astype(np.float32)[..., np.newaxis]
    return values


def _unpack(packed: NDArray[np.uint8], bits: int) -> Float32Array:
    """Return the numbers (rows, columns) that are packed into bytes (rows, columns * bits / 8)."""
    # Eight numbers take as many bytes as one has bits; filled up, these bytes are one number of 64 bits.
    octets = packed.reshape(len(packed), -1, bits)
    words = np.zeros((*octets.shape[:2], 8), np.uint8)
    words[..., :bits] = octets
    words_64 = words.view("<u8")[..., 0]
    values = np.empty((*words_64.shape, 8), np.float32)
    for i in range(8):
        values[..., i] = words_64 >> np.uint64(i * bits) & np.uint64(2**bits - 1)
    return values.reshape(len(packed), -1)
