"""ggml's quantized blocks: 32 numbers of a row share a scale, and in some types a minimum.

Source: the block structures of ggml (`ggml-common.h`) and how it reads them (`ggml-quants.c`), since its quantization
version 2, which keeps scales in half precision.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import Float32Array

BLOCK_SIZE = 32

_SCALE = ("scale", "<f2")
_MIN = ("min", "<f2")
_LOW = ("low", "u1", 16)  # four bits of each number: the first 16 numbers have the lower halves of the bytes
_HIGH = ("high", "u1", 4)  # the fifth bit of each number

# Layout of one block of each type.
BLOCKS: dict[str, np.dtype[Any]] = {
    "q4_0": np.dtype([_SCALE, _LOW]),
    "q4_1": np.dtype([_SCALE, _MIN, _LOW]),
    "q5_0": np.dtype([_SCALE, _HIGH, _LOW]),
    "q5_1": np.dtype([_SCALE, _MIN, _HIGH, _LOW]),
    "q8_0": np.dtype([_SCALE, ("whole", "i1", 32)]),
}


def dequantize(blocks: NDArray[np.void]) -> Float32Array:
    """Return the numbers (n_blocks, 32) of blocks (n_blocks) that have one of the layouts in `BLOCKS`."""
    fields = blocks.dtype.names or ()
    if "whole" in fields:
        values = blocks["whole"].astype(np.float32)
    else:
        low = blocks["low"]
        numbers = np.concatenate((low & 15, low >> 4), axis=1)
        if "high" in fields:
            numbers |= np.unpackbits(blocks["high"], axis=1, bitorder="little") << 4
        values = numbers.astype(np.float32)
        if "min" not in fields:
            values -= 16 if "high" in fields else 8
    # A scale that is not finite is the file's; its results are not worth a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        values *= blocks["scale"].astype(np.float32)[:, np.newaxis]
        if "min" in fields:
            values += blocks["min"].astype(np.float32)[:, np.newaxis]
    return values
