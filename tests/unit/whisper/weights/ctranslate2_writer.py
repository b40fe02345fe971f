"""Writes CTranslate2's form of a checkpoint, with variables and aliases as its converter has them."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.whisper.weights.checkpoint import Checkpoint

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
    """Return the variables of a checkpoint, none of them quantized."""
    dims, tensors = checkpoint.dims, checkpoint.tensors
    found: Variables = {
        "encoder/num_heads": np.array(dims.n_audio_head, np.int16),
        "decoder/num_heads": np.array(dims.n_text_head, np.int16),
        "decoder/activation": np.array(3, np.int8),
        "decoder/embeddings/weight": tensors["decoder.embed_tokens.weight"],
    }

    def linear(name: str, *modules: str) -> None:
        for kind in ("weight", "bias"):
            parts = [
                # The bias that keys do not have.
                tensors[f"{m}.{kind}"] if f"{m}.{kind}" in tensors else np.zeros_like(tensors[f"{m}.weight"][0])
                for m in modules
            ]
            found[f"{name}/{kind}"] = np.concatenate(parts)

    def norm(name: str, module: str) -> None:
        found[f"{name}/gamma"], found[f"{name}/beta"] = tensors[f"{module}.weight"], tensors[f"{module}.bias"]

    for side, n_layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        found[f"{side}/position_encodings/encodings"] = tensors[f"{side}.embed_positions.weight"]
        norm(f"{side}/layer_norm", f"{side}.layer_norm")
        for i in range(n_layers):
            there, here = f"{side}/layer_{i}", f"{side}.layers.{i}"
            linear(f"{there}/self_attention/linear_0", *(f"{here}.self_attn.{p}_proj" for p in "qkv"))
            linear(f"{there}/self_attention/linear_1", f"{here}.self_attn.out_proj")
            norm(f"{there}/self_attention/layer_norm", f"{here}.self_attn_layer_norm")
            if side == "decoder":
                linear(f"{there}/attention/linear_0", f"{here}.encoder_attn.q_proj")
                linear(f"{there}/attention/linear_1", *(f"{here}.encoder_attn.{p}_proj" for p in "kv"))
                linear(f"{there}/attention/linear_2", f"{here}.encoder_attn.out_proj")
                norm(f"{there}/attention/layer_norm", f"{here}.encoder_attn_layer_norm")
            linear(f"{there}/ffn/linear_0", f"{here}.fc1")
            linear(f"{there}/ffn/linear_1", f"{here}.fc2")
            norm(f"{there}/ffn/layer_norm", f"{here}.final_layer_norm")
    linear("encoder/conv1", "encoder.conv1")
    linear("encoder/conv2", "encoder.conv2")
    return found


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
