"""Writes whisper.cpp's `ggml-*.bin`, quantized as in ggml's reference, one place of a block after another."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name

TYPE_NUMBERS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2002, "q4_1": 2003, "q8_0": 2007, "q5_0": 2008, "q5_1": 2009}
QUANTIZED = [name for name in TYPE_NUMBERS if name.startswith("q")]


def write_ggml(
    path: Path, checkpoint: Checkpoint, vocabulary: list[bytes], mel_filters: NDArray[Any], type_name: str
) -> Path:
    """Write a checkpoint; `mel_filters` has the shape (n_mels, 201).

    As whisper.cpp does: vectors and positions stay f32, the convolutions' weights f16 where matrices are quantized.
    """
    dims = checkpoint.dims
    sizes = (
        dims.n_vocab,
        dims.n_audio_ctx,
        dims.n_audio_state,
        dims.n_audio_head,
        dims.n_audio_layer,
        dims.n_text_ctx,
        dims.n_text_state,
        dims.n_text_head,
        dims.n_text_layer,
        dims.n_mels,
    )
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
    if type_name in ("f32", "f16"):
        return values.astype("<f4" if type_name == "f32" else "<f2").tobytes()
    scales, mins, numbers = quantize(values, type_name)
    parts: list[NDArray[Any]] = [scales.astype("<f2").view(np.uint8).reshape(-1, 2)]
    if type_name.endswith("_1"):
        parts.append(mins.astype("<f2").view(np.uint8).reshape(-1, 2))
    if type_name.startswith("q5"):
        for first in (0, 8, 16, 24):
            parts.append(np.bitwise_or.reduce([(numbers[:, first + i, None] >> 4) << i for i in range(8)]))
    if type_name == "q8_0":
        parts.append(numbers)
    else:
        parts += [(numbers[:, i, None] & 15) | ((numbers[:, i + 16, None] & 15) << 4) for i in range(16)]
    return np.concatenate([part.astype(np.uint8) for part in parts], axis=1).tobytes()


def quantize(values: NDArray[Any], type_name: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return scales (n_blocks), minima (n_blocks) and the whole numbers (n_blocks, 32) that are stored."""
    blocks = values.astype(np.float32).reshape(-1, 32)
    if type_name == "q8_0":
        scales = np.abs(blocks).max(axis=1) / np.float32(127)
        scaled = blocks * inverse(scales)[:, None]
        numbers = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
        return scales, np.zeros_like(scales), numbers
    top = 2 ** int(type_name[1]) - 1
    if type_name.endswith("_1"):
        mins = blocks.min(axis=1)
        scales = (blocks.max(axis=1) - mins) / np.float32(top)
        numbers = np.floor((blocks - mins[:, None]) * inverse(scales)[:, None] + np.float32(0.5))
    else:
        # The value that is farthest from zero, whatever its sign, becomes the lowest number.
        farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)[:, 0]
        mins = np.zeros_like(farthest)
        middle = (top + 1) // 2
        scales = farthest / np.float32(-middle)
        numbers = np.floor(blocks * inverse(scales)[:, None] + np.float32(middle + 0.5))
    return scales, mins, numbers.clip(0, top).astype(np.uint8)


def inverse(scales: NDArray[Any]) -> NDArray[Any]:
    return np.where(scales == 0, 0, 1 / np.where(scales == 0, 1, scales)).astype(scales.dtype)


def rounded(values: NDArray[Any], type_name: str) -> NDArray[Any]:
    """Return the values that a file of this type can only give back."""
    if type_name in ("f32", "f16"):
        return values.astype(np.float32 if type_name == "f32" else np.float16)
    scales, mins, numbers = quantize(values, type_name)
    scales, mins = (array.astype(np.float16).astype(np.float32) for array in (scales, mins))
    middle = 0 if type_name == "q8_0" or type_name.endswith("_1") else 2 ** (int(type_name[1]) - 1)
    whole = numbers.astype(np.float32) - np.float32(middle)
    return (whole * scales[:, None] + mins[:, None]).reshape(values.shape)
