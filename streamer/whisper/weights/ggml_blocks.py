"""ggml's quantized blocks: 32 numbers of a row share a scale, and in some types a minimum.

In the k-quants it is 256 numbers. Parts of 16 or 32 of them have scales and minima of their own, which are whole
numbers of a few bits, in units of the block's. Source: the block structures of ggml (`ggml-common.h`) and how it reads
them (`ggml-quants.c`), since its quantization version 2, which keeps scales in half precision.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import Float32Array

_SCALE = ("scale", "<f2")
_MIN = ("min", "<f2")

# Low and high bits of numbers, in rows of bytes: the lowest bits of a row's bytes first, then their next ones.
_LOW = ("low", "u1", (1, 16))
_HIGH = ("high", "u1", (4, 1))
_LOW_2 = ("low", "u1", (2, 32))
_LOW_4 = ("low", "u1", (4, 32))
_HIGH_1 = ("high", "u1", (1, 32))

# Scales of eight parts, and their minima, of six bits.
_PAIRS = ("parts", "u1", 12)

# Layout of one block of each type.
BLOCKS: dict[str, np.dtype[Any]] = {
    "q4_0": np.dtype([_SCALE, _LOW]),
    "q4_1": np.dtype([_SCALE, _MIN, _LOW]),
    "q5_0": np.dtype([_SCALE, _HIGH, _LOW]),
    "q5_1": np.dtype([_SCALE, _MIN, _HIGH, _LOW]),
    "q8_0": np.dtype([_SCALE, ("whole", "i1", 32)]),
    "q2_k": np.dtype([("parts", "u1", 16), _LOW_2, _SCALE, _MIN]),
    "q3_k": np.dtype([_HIGH_1, _LOW_2, ("parts", "u1", 12), _SCALE]),
    "q4_k": np.dtype([_SCALE, _MIN, _PAIRS, _LOW_4]),
    "q5_k": np.dtype([_SCALE, _MIN, _PAIRS, _HIGH_1, _LOW_4]),
    "q6_k": np.dtype([("low", "u1", (2, 64)), ("high", "u1", (2, 32)), ("parts", "i1", 16), _SCALE]),
}


def block_size(layout: np.dtype[Any]) -> int:
    """Return how many numbers a block of this layout holds."""
    return 256 if "parts" in (layout.names or ()) else 32


def dequantize(blocks: NDArray[np.void]) -> Float32Array:
    """Return the numbers (n_blocks, 32 or 256) of blocks (n_blocks) that have one of the layouts in `BLOCKS`."""
    fields = blocks.dtype.names or ()
    size = block_size(blocks.dtype)
    if "whole" in fields:
        values = blocks["whole"].astype(np.float32)
    else:
        numbers, bits = _unpack(blocks["low"], size)
        if "high" in fields:
            high, more = _unpack(blocks["high"], size)
            numbers |= high << np.uint8(bits)
            bits += more
        values = numbers.astype(np.float32)
        if "min" not in fields:
            values -= 2 ** (bits - 1)
    scales = blocks["scale"].astype(np.float32)[:, np.newaxis]
    mins = blocks["min"].astype(np.float32)[:, np.newaxis] if "min" in fields else None
    # A scale that is not finite is the file's; what comes of it is not worth a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        if "parts" in fields:
            part_scales, part_mins = _unpack_parts(blocks["parts"], with_mins=mins is not None)
            scales = scales * part_scales
            mins = None if mins is None else mins * -part_mins
        parts = values.reshape(*scales.shape, size // scales.shape[1])
        parts *= scales[..., np.newaxis]
        if mins is not None:
            parts += mins[..., np.newaxis]
    return values


def _unpack(rows: NDArray[np.uint8], size: int) -> tuple[NDArray[np.uint8], int]:
    """Return the numbers (n_blocks, size) that lie in rows of bytes (n_blocks, n_rows, n_bytes), and their bits."""
    bits = 8 * rows.shape[1] * rows.shape[2] // size
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, np.newaxis]
    return (rows[:, :, np.newaxis] >> shifts & np.uint8(2**bits - 1)).reshape(len(rows), size), bits


def _unpack_parts(packed: NDArray[Any], *, with_mins: bool) -> tuple[Float32Array, Float32Array]:
    """Return scales and minima (n_blocks, 8 or 16) of the parts of blocks, in the blocks' own units."""
    scales: NDArray[Any] = packed
    mins: NDArray[Any] = np.zeros(1)
    if with_mins and packed.shape[1] == 16:
        scales, mins = packed & 15, packed >> 4
    elif with_mins:
        first, second, third = (packed[:, i : i + 4] for i in (0, 4, 8))
        scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=1)
        mins = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1)
    elif packed.shape[1] == 12:
        low, high = (_unpack(part[:, np.newaxis], 16)[0] for part in (packed[:, :8], packed[:, 8:]))
        scales = (low | high << 4).astype(np.int8) - 32
    return scales.astype(np.float32), mins.astype(np.float32)
