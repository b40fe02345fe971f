"""Writes whisper.cpp's `ggml-*.bin`; what is quantized has any numbers."""

import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.ggml_blocks import BLOCK_SIZE, BLOCKS, dequantize
from streamer.whisper.weights.openai import openai_name

TYPE_NUMBERS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2002, "q4_1": 2003, "q8_0": 2007, "q5_0": 2008, "q5_1": 2009}
FLOATS = {"f32": "<f4", "f16": "<f2"}


def write_ggml(
    path: Path, checkpoint: Checkpoint, vocabulary: list[bytes], mel_filters: NDArray[Any], type_name: str
) -> Path:
    """Write a checkpoint; `mel_filters` has the shape (n_mels, 201).

    As whisper.cpp does: vectors and positions stay f32, the convolutions' weights f16 where matrices are quantized.
    """
    dims = checkpoint.dims
    audio = (dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer)
    sizes = (dims.n_vocab, *audio, dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer, dims.n_mels)
    with path.open("wb") as file:
        file.write(struct.pack("<I10ii", 0x67676D6C, *sizes, FILE_TYPES[type_name]))
        file.write(struct.pack("<ii", *mel_filters.shape) + mel_filters.astype("<f4").tobytes())
        file.write(struct.pack("<i", len(vocabulary)))
        for word in vocabulary:
            file.write(struct.pack("<i", len(word)) + word)
        for name, values in checkpoint.tensors.items():
            file.write(pack_tensor(openai_name(name), values, type_name))
    return path


def stored_type(name: str, n_dims: int, type_name: str) -> str:
    """Return the type that a tensor of this name has in a file of `type_name`."""
    if type_name == "f32" or n_dims == 1 or name.endswith("positional_embedding"):
        return "f32"
    return "f16" if n_dims == 3 else type_name


def pack_tensor(name: str, values: NDArray[Any], type_name: str) -> bytes:
    """Return header and data of a tensor under openai-whisper's name."""
    stored = stored_type(name, values.ndim, type_name)
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        values = values[:, np.newaxis]
    header = struct.pack("<iii", values.ndim, len(name), TYPE_NUMBERS[stored])
    header += struct.pack(f"<{values.ndim}i", *reversed(values.shape)) + name.encode("ascii")
    return header + pack_values(values, stored)


def pack_values(values: NDArray[Any], type_name: str) -> bytes:
    if type_name in FLOATS:
        return values.astype(FLOATS[type_name]).tobytes()
    return any_blocks(values, type_name).tobytes()


def any_blocks(values: NDArray[Any], type_name: str) -> NDArray[np.void]:
    """Return as many blocks as an array has, of any numbers; which a block holds, `data/quantized.toml` knows."""
    layout = BLOCKS[type_name]
    random = np.random.default_rng(crc32(values.tobytes()))
    found = np.frombuffer(random.bytes(values.size // BLOCK_SIZE * layout.itemsize), layout).copy()
    for name in {"scale", "min"} & {*(layout.names or ())}:
        found[name] = random.normal(0, 0.1, len(found))
    return found


def as_read(values: NDArray[Any], type_name: str) -> NDArray[Any]:
    """Return what a file of this type holds of an array."""
    if type_name in FLOATS:
        return values.astype(FLOATS[type_name])
    return dequantize(any_blocks(values, type_name)).reshape(values.shape)
