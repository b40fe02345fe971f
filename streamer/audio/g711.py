"""G.711, the telephone's audio: one byte a sample, to 16-bit linear. Source: ITU-T G.711; full scale as in G.191."""

import numpy as np
from numpy.typing import NDArray


def decode_mulaw(data: bytes) -> bytes:
    """Return mu-law samples as s16le, two bytes for each."""
    return _MULAW[np.frombuffer(data, np.uint8)].tobytes()


def decode_alaw(data: bytes) -> bytes:
    """Return A-law samples as s16le, two bytes for each."""
    return _ALAW[np.frombuffer(data, np.uint8)].tobytes()


# Each code is a sign, an exponent of 3 bits and a mantissa of 4, with bits inverted so that silence has many ones.
_CODES = np.arange(256)


def _mulaw() -> NDArray[np.int16]:
    codes = ~_CODES & 0xFF
    magnitude = (((codes & 0x0F) << 3) + 0x84 << (codes >> 4 & 0x07)) - 0x84
    return np.where(codes & 0x80, -magnitude, magnitude).astype("<i2")


def _alaw() -> NDArray[np.int16]:
    codes = _CODES ^ 0x55
    exponent, steps = codes >> 4 & 0x07, ((codes & 0x0F) << 4) + 0x08
    magnitude = np.where(exponent == 0, steps, steps + 0x100 << np.maximum(exponent - 1, 0))
    return np.where(codes & 0x80, magnitude, -magnitude).astype("<i2")


_MULAW, _ALAW = _mulaw(), _alaw()
