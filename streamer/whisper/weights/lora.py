"""LoRA adapters in PEFT's layout: `adapter_config.json` beside `adapter_model.safetensors` or `adapter_model.bin`.

For some of a model's weights W an adapter has two narrow matrices A and B; the model then computes with W + scale B A.
Source: Hu et al. (2021), arXiv:2106.09685; the scale under `use_rslora`: Kalajdzievski (2023), arXiv:2312.03732; keys
and names: what PEFT's `save_pretrained` writes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from streamer.arrays import FloatArray
from streamer.outside import one_line
from streamer.whisper.files import converted, read_json
from streamer.whisper.weights import safetensors, torch
from streamer.whisper.weights.binary import unfit
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors, expected_shapes
from streamer.whisper.weights.tensors import FLOATS, Tensor

CONFIG = "adapter_config.json"

_EXPECTED = "an adapter is a directory with adapter_config.json and adapter_model.safetensors, as PEFT saves it"
_REMEDY = "merge it into its model with PEFT (merge_and_unload, save_pretrained) and use that"

# Keys that, if set, ask for more than W + scale B A.
_MORE = (
    *("use_dora", "use_qalora", "use_bdlora", "lora_bias", "kasa_config", "monteclora_config", "arrow_config"),
    *("modules_to_save", "target_parameters", "trainable_token_indices", "alora_invocation_tokens"),
    "layer_replication",
)

_NAME = re.compile(r"(?:base_model\.model\.)?(?:model\.)?(?P<module>.+)\.lora_(?P<part>[AB])\.weight")

_Alpha = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]


class _Config(msgspec.Struct):
    """What is read of `adapter_config.json`. Ranks are those of the matrices."""

    peft_type: Literal["LORA"]
    lora_alpha: _Alpha
    use_rslora: bool | None = None
    bias: Literal["none"] | None = None

    # Ways to begin the training that leave W as it is; after others the adapter belongs to another W.
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal"] | None = None

    # By the ends of layers' names. PEFT takes any regular expression.
    alpha_pattern: dict[Annotated[str, msgspec.Meta(pattern=r"^[\w.]+$")], _Alpha] | None = None


def is_alone(directory: Path) -> bool:
    """Return whether a directory holds an adapter and no model."""
    return (directory / CONFIG).is_file() and not (directory / "config.json").is_file()


def base_of(directory: Path) -> str:
    """Return which model an adapter says that it was made for, or nothing. Raises ModelError for a broken config."""
    base = read_json(directory / CONFIG, expected=_EXPECTED).get("base_model_name_or_path")
    return one_line(base)[:100] if isinstance(base, str) else ""


def merged(checkpoint: Checkpoint, directory: Path) -> Checkpoint:
    """Return a checkpoint with an adapter in it, added when read. Raises ModelError if the adapter does not fit."""
    tensors = checkpoint.tensors
    shapes = expected_shapes(checkpoint.dims, tied="proj_out.weight" not in frozenset(tensors))
    changes = _read_changes(directory, shapes)

    def read(name: str) -> FloatArray:
        if name not in changes:
            return tensors[name]
        a, b, scale = changes[name]
        weight, rank = tensors[name], a.shape[0]
        # A number that is not finite is found by the reader of the sum.
        with np.errstate(invalid="ignore", over="ignore"):
            change = b.read().astype(np.float32).reshape(-1, rank) @ a.read().reshape(rank, -1)
            change = np.float32(scale) * change.reshape(weight.shape) + weight
            changed: FloatArray = change.astype(weight.dtype, copy=False)
            return changed

    return replace(checkpoint, tensors=LazyTensors({name: partial(read, name) for name in shapes}, str(directory)))


def _read_changes(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[Tensor, Tensor, float]]:
    """Return of each weight that an adapter changes A (rank, n_in, ...), B (n_out, rank, 1, ...) and the scale."""
    where = directory / CONFIG
    data = read_json(where, expected=_EXPECTED)
    config = converted(data, _Config, where, _REMEDY)
    for key in filter(data.get, _MORE):
        raise unfit(where, f"has {key} {data[key]!r:.60}", "plain LoRA", _REMEDY)
    path, found = _find_matrices(directory)
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in found.items():
        match = _NAME.fullmatch(name)
        if match is None or not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
            plain = "lora_A.weight and lora_B.weight of layers, as F16, BF16 or F32"
            raise unfit(path, f"has {name!r:.80}", plain, _REMEDY)
        layers.setdefault(match["module"], {})[match["part"]] = tensor
    if not layers:
        raise unfit(path, "is empty", "the matrices of an adapter", "save it again")
    changes = {}
    for layer, parts in layers.items():
        rank = max(1, *parts["A"].shape[:1]) if "A" in parts else 1
        by_end = (alpha for end, alpha in (config.alpha_pattern or {}).items() if f".{layer}".endswith(f".{end}"))
        alpha = next(by_end, config.lora_alpha)
        shape = shapes.get(f"{layer}.weight", ())
        expected = {"A": (rank, *shape[1:]), "B": (*shape[:1], rank, *(1,) * len(shape[2:]))}
        if len(shape) < 2 or {part: tensor.shape for part, tensor in parts.items()} != expected:
            here = " and ".join(f"{part} {list(tensor.shape)!s:.40}" for part, tensor in sorted(parts.items()))
            wanted = f"A {list(expected['A'])} and B {list(expected['B'])}" if len(shape) > 1 else "no such layer"
            fact, base = f"has {here} for {layer!r:.80}, this model has {wanted}", base_of(directory)
            remedy = f"use it with the model that it was trained on, {base or 'which it does not name'}"
            raise unfit(path, fact, "an adapter of this model", remedy)
        scale = alpha / (math.sqrt(rank) if config.use_rslora else rank)
        changes[f"{layer}.weight"] = parts["A"], parts["B"], scale
    return changes


def _find_matrices(directory: Path) -> tuple[Path, Mapping[str, object]]:
    for name, read in (("adapter_model.safetensors", safetensors.read_header), ("adapter_model.bin", torch.read)):
        if (directory / name).is_file():
            return directory / name, read(directory / name)
    raise unfit(directory / "adapter_model.safetensors", "is missing", "the matrices of an adapter", "fetch it again")
