"""Writes CTranslate2's form of a checkpoint, with variables and aliases as its converter has them."""

import json
import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.ctranslate2 import variable_name

VERSION = 6
TYPES = ("float32", "int8", "int16", "int32", "float16")

Variables = dict[str, NDArray[Any]]


def write_ctranslate2(
    directory: Path, checkpoint: Checkpoint, config: Mapping[str, object] | None = None, *, int8: bool = False
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    variables = variables_of(checkpoint)
    if int8:
        for name in [name for name in variables if name.endswith("weight")]:
            variables[name], variables[f"{name}_scale"] = quantize(variables[name])
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    (directory / "model.bin").write_bytes(packed(variables, aliases))
    (directory / "config.json").write_text(json.dumps(config or {"alignment_heads": [[0, 0]]}), encoding="utf-8")
    return directory


def variables_of(checkpoint: Checkpoint) -> Variables:
    """Return the variables of a checkpoint, none of them quantized; projections of one input stand in one."""
    parts: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for name, values in checkpoint.tensors.items():
        parts[variable_name(name)].append(values)
        if "k_proj" in name:  # the bias that keys do not have
            parts[variable_name(name.replace("weight", "bias"))].append(np.zeros_like(values[0]))
    return {
        "encoder/num_heads": np.array(checkpoint.dims.n_audio_head, np.int16),
        "decoder/num_heads": np.array(checkpoint.dims.n_text_head, np.int16),
        "decoder/activation": np.array(3, np.int8),
        **{name: np.concatenate(values) for name, values in parts.items()},
    }


def quantize(values: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return numbers of 8 bits and the scale of each row."""
    rows = values.astype(np.float32).reshape(len(values), -1)
    scales = np.float32(127) / np.abs(rows).max(axis=1)
    return np.rint(rows * scales[:, None]).astype(np.int8).reshape(values.shape), scales


def packed(
    variables: Mapping[str, NDArray[Any]],
    aliases: Mapping[str, str] | None = None,
    kind: str = "WhisperSpec",
    version: int = VERSION,
) -> bytes:
    """Return the bytes of the file."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    data = [struct.pack("<I", version), text(kind), struct.pack("<2I", 3, len(variables))]
    for name, values in variables.items():
        header = struct.pack(
            f"<B{values.ndim}IBI", values.ndim, *values.shape, TYPES.index(str(values.dtype)), values.nbytes
        )
        data += [text(name), header, values.tobytes()]
    data.append(struct.pack("<I", len(aliases or {})))
    data += [text(alias) + text(name) for alias, name in (aliases or {}).items()]
    return b"".join(data)
