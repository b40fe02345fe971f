"""Hugging Face layout: `config.json` beside `model.safetensors` or `pytorch_model.bin`, whole or in shards.

A file in shards has an index beside it, `model.safetensors.index.json`, whose `weight_map` gives each tensor's shard.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.weights import lora, safetensors, torch
from streamer.whisper.weights.binary import unfit
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
    path = directory / "config.json"
    if lora.is_alone(directory):
        base = lora.base_of(directory) or "the model that it was trained on"
        remedy = f"use --model with {base}, and --lora {directory}"
        raise unfit(directory, "is a LoRA adapter without its model", "a whole model", remedy)
    config = read_json(path)
    if config.get("model_type") != "whisper":
        fact = f"has model_type {config.get('model_type')!r:.60}"
        raise unfit(path, fact, "'whisper'", "choose a Whisper model")
    dims, tied = ModelDimensions.from_huggingface(config, path), read_tied(config, path)
    where, tensors = _find_tensors(directory)
    found = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return replace(as_checkpoint(dims, found, str(where), tied=tied), config=config)


def read_tied(config: Mapping[str, object], path: Path) -> bool:
    """Return whether the logits are made with the embedding, and not with weights of their own (`proj_out`).

    transformers reads `scale_embedding` too and computes the same whatever it says, and so do we.

    Raises ModelError if the config asks for another activation than that of all Whispers.
    """
    activation, tied = config.get("activation_function", "gelu"), config.get("tie_word_embeddings", True)
    if activation != "gelu":
        fact = f"has activation_function {activation!r:.60}"
        raise unfit(path, fact, "'gelu', which the graphs compute", "choose another model")
    if not isinstance(tied, bool):
        raise unfit(path, f"has tie_word_embeddings {tied!r:.60}", "true or false", "fetch it again")
    return tied


def _find_tensors(directory: Path) -> tuple[Path, Mapping[str, object]]:
    """Return the file that names all tensors, and these."""
    for file, read in (("model.safetensors", safetensors.read_header), ("pytorch_model.bin", torch.read)):
        path, index = directory / file, directory / f"{file}.index.json"
        if path.is_file():
            return path, read(path)
        if index.is_file():
            shards = map(read, _find_shards(index))
            return index, {name: tensor for shard in shards for name, tensor in shard.items()}
    expected = f"the weights that {directory / 'config.json'} describes"
    raise unfit(directory / "model.safetensors", "is missing", expected, "fetch it again")


def _find_shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise unfit(index, "lacks weight_map", "the shard of each tensor", "fetch it again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            fact = f"has {name!r:.60} in {shard!r:.60}"
            raise unfit(index, fact, "the name of a file in the same directory", "download it again")
    paths = [index.with_name(shard) for shard in dict.fromkeys(weight_map.values())]
    for path in paths:
        if not path.is_file():
            raise unfit(path, "is missing", f"all shards that {index} names", "fetch it again")
    return paths
