"""Writes whisper.cpp's file of a model: dimensions, mel filters, vocabulary and tensors, all little-endian.

Source: what whisper.cpp writes (`models/convert-pt-to-ggml.py`) and reads (`whisper_model_load` in `src/whisper.cpp`).
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from streamer.arrays import FloatArray
from streamer.audio.mel import mel_filters
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.ggml import DIMENSIONS
from streamer.whisper.weights.openai import openai_name

MAGIC = 0x67676D6C  # "ggml"
_F32, _F16, _Q8_0 = 0, 1, 8

# Of a file, by the type of its matrices. Blocks have a version, 2, which is counted in thousands.
_FILE_TYPES = {_F16: 1, _Q8_0: 2007}

# Numbers of a block that share a scale.
_BLOCK = 32

# Vectors that the file holds as matrices of one column.
_CONVOLUTION_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")

# Matrices that whisper.cpp adds instead of multiplying with, and so wants whole.
_POSITIONS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")


def write(path: Path, checkpoint: Checkpoint, ranks: Sequence[bytes], *, blocks: bool = False) -> None:
    """Write a checkpoint with its matrices in float16, as whisper.cpp publishes its own, or in blocks of 8 bits (q8_0).

    ranks : bytes of each token that is not special, by number
    """
    stored = _Q8_0 if blocks else _F16
    path.parent.mkdir(parents=True, exist_ok=True)
    dims = checkpoint.dims
    with path.open("wb") as file:
        file.write(struct.pack("<I", MAGIC))
        file.write(struct.pack("<11i", *(getattr(dims, name) for name in DIMENSIONS), _FILE_TYPES[stored]))
        filters = np.ascontiguousarray(mel_filters(dims.n_mels), dtype="<f4")
        file.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
        file.write(struct.pack("<i", len(ranks)))
        for token in ranks:
            file.write(struct.pack("<i", len(token)) + token)
        for name, values in checkpoint.tensors.items():
            _write_tensor(file, name, np.asarray(values), stored)


def _write_tensor(file: BinaryIO, name: str, values: FloatArray, stored: int) -> None:
    if name in _CONVOLUTION_BIASES:
        values = values[:, None]
    if values.ndim < 2 or name in (*_CONVOLUTION_BIASES, *_POSITIONS):
        stored = _F32
    elif values.ndim > 2:  # convolutions are never in blocks
        stored = _F16
    spelled = openai_name(name).encode("utf-8")
    file.write(struct.pack("<3i", values.ndim, len(spelled), stored))
    file.write(struct.pack(f"<{values.ndim}i", *reversed(values.shape)) + spelled)
    file.write(_blocks(values) if stored == _Q8_0 else values.astype("<f4" if stored == _F32 else "<f2").tobytes())


def _blocks(values: FloatArray) -> bytes:
    """Return each 32 numbers as their scale in float16 and 32 multiples of it, as in ggml's `quantize_row_q8_0_ref`."""
    rows = values.astype(np.float32).reshape(-1, _BLOCK)
    scales = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    numbers = np.rint(rows / np.where(scales == 0, np.float32(1), scales)).astype(np.int8)
    return np.concatenate([scales.astype("<f2").view(np.int8), numbers], axis=1).tobytes()
