"""Writes MLX's layout of a checkpoint, as `convert.py` of mlx-examples' `whisper` does."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name


def write_mlx(
    directory: Path,
    checkpoint: Checkpoint,
    bits: int | None = None,
    group_size: int = 64,
    file: str = "weights.npz",
    save: Callable[..., None] = np.savez,
) -> Path:
    """Write `config.json` and the weights, in the types that they have or quantized."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, object] = {**asdict(checkpoint.dims), "model_type": "whisper"}
    if bits is not None:
        config["quantization"] = {"group_size": group_size, "bits": bits}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = mlx_tensors(checkpoint, bits, group_size)
    if file.endswith(".npz"):
        save(directory / file, allow_pickle=False, **tensors)
    else:
        save_file(tensors, directory / file)
    return directory


def mlx_tensors(checkpoint: Checkpoint, bits: int | None = None, group_size: int = 64) -> dict[str, NDArray[Any]]:
    """Return the arrays of the file under their names in it."""
    dims = checkpoint.dims
    heads = [(layer, head) for layer in range(dims.n_text_layer // 2, dims.n_text_layer) for head in (0, 1)]
    tensors: dict[str, NDArray[Any]] = {"alignment_heads": np.array(heads, np.int32)}
    for key, values in checkpoint.tensors.items():
        name = openai_name(key).replace("mlp.0", "mlp1").replace("mlp.2", "mlp2")
        if name == "encoder.positional_embedding":
            continue
        if is_quantized(name, values) and bits is not None:
            scales, biases, numbers = quantize(values, bits, group_size)
            tensors[name] = pack(numbers, bits)
            tensors[name.removesuffix("weight") + "scales"] = scales
            tensors[name.removesuffix("weight") + "biases"] = biases
        else:
            tensors[name] = np.ascontiguousarray(values.transpose(0, 2, 1)) if values.ndim == 3 else values
    return tensors


def is_quantized(name: str, values: NDArray[Any]) -> bool:
    """Tell whether MLX would quantize it: the weight of a Linear or an Embedding."""
    return values.ndim == 2 and "position" not in name


def quantize(values: NDArray[Any], bits: int, group_size: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]:
    """Return any scales and biases (rows, groups), and any numbers (rows, columns)."""
    random = np.random.default_rng(crc32(values.tobytes()))
    scales, biases = random.normal(0, 0.1, (2, len(values), values.shape[1] // group_size)).astype(values.dtype)
    return scales, biases, random.integers(0, 2**bits, values.shape, dtype=np.uint8)


def pack(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Return the numbers (rows, columns) bit by bit, lowest first, in rows of whole numbers of 32 bits."""
    single = numbers[:, :, None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(single.reshape(len(numbers), -1), axis=1, bitorder="little").view("<u4")


def rounded(values: NDArray[Any], bits: int, group_size: int) -> NDArray[np.float32]:
    """Return the values that a quantized file holds of an array."""
    scales, biases, numbers = quantize(values, bits, group_size)
    groups = numbers.reshape(*scales.shape, group_size).astype(np.float32)
    return (groups * scales.astype(np.float32)[..., None] + biases.astype(np.float32)[..., None]).reshape(values.shape)
