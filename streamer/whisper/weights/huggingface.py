"""Hugging Face layout: `config.json` beside `model.safetensors` or `pytorch_model.bin`, whole or in shards.

A file in shards has an index beside it, `model.safetensors.index.json`, whose `weight_map` gives each tensor's shard.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.weights import lora, safetensors, torch
from streamer.whisper.weights.checkpoint import Checkpoint, as_checkpoint

NAME = "Hugging Face"
FILES = (
    ("model.safetensors",),
    ("model.safetensors.index.json", "model-*-of-*.safetensors"),
    ("pytorch_model.bin",),
    ("pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"),
)

# A file's name that cannot lead out of the directory, on any system.
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def matches(path: Path) -> bool:
    """Return whether a path is a directory in this layout, whole or not."""
    return (path / "config.json").exists()


def load(directory: Path) -> Checkpoint:
    """Load a checkpoint. Raises ModelError if a file is missing, damaged, not Whisper's, or of another model."""
    config_path = directory / "config.json"
    if lora.is_alone(directory):
        base = lora.base_of(directory) or "the model that it was trained on"
        raise ModelError(
            f"{directory} is a LoRA adapter without its model: expected a whole model; use --model with {base},"
            f" and --lora {directory}"
        )
    config = read_json(config_path)
    if config.get("model_type") != "whisper":
        raise ModelError(
            f"{config_path} has model_type {config.get('model_type')!r:.60}: expected 'whisper'; choose a Whisper model"
        )
    dims = ModelDimensions.from_huggingface(config, config_path)
    tied = read_tied(config, config_path)
    where, tensors = _find_tensors(directory)
    found = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return replace(as_checkpoint(dims, found, str(where), tied=tied), config=config)


def read_tied(config: Mapping[str, object], path: Path) -> bool:
    """Return whether the logits are made with the embedding, and not with weights of their own (`proj_out`).

    transformers reads `scale_embedding` too and computes the same whatever it says, and so do we.

    Raises ModelError if the config asks for another activation than that of all Whispers.
    """
    activation = config.get("activation_function", "gelu")
    if activation != "gelu":
        raise ModelError(
            f"{path} has activation_function {activation!r:.60}: expected 'gelu', which the graphs compute; choose"
            " another model"
        )
    tied = config.get("tie_word_embeddings", True)
    if not isinstance(tied, bool):
        raise ModelError(f"{path} has tie_word_embeddings {tied!r:.60}: expected true or false; fetch it again")
    return tied


def _find_tensors(directory: Path) -> tuple[Path, Mapping[str, object]]:
    readers: dict[str, Callable[[Path], Mapping[str, object]]] = {
        "model.safetensors": safetensors.read_header,
        "pytorch_model.bin": torch.read,
    }
    for file, read in readers.items():
        path, index = directory / file, directory / f"{file}.index.json"
        if path.is_file():
            return path, read(path)
        if index.is_file():
            return index, _read_shards(index, read)
    raise ModelError(
        f"{directory / 'model.safetensors'} is missing: expected the weights that {directory / 'config.json'}"
        " describes; fetch it again"
    )


def _read_shards(index: Path, read: Callable[[Path], Mapping[str, object]]) -> dict[str, object]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index} lacks weight_map: expected the shard of each tensor; fetch it again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise ModelError(
                f"{index} has {name!r:.60} in {shard!r:.60}: expected the name of a file in the same directory;"
                " download it again"
            )
    found: dict[str, object] = {}
    for shard in dict.fromkeys(weight_map.values()):
        path = index.with_name(shard)
        if not path.is_file():
            raise ModelError(f"{path} is missing: expected all shards that {index} names; fetch it again")
        found |= read(path)
    return found
