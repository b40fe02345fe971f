"""Hugging Face layout: `config.json` beside `model.safetensors` or `pytorch_model.bin`, whole or in shards.

A file in shards has an index beside it, `model.safetensors.index.json`, whose `weight_map` gives each tensor's shard.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import Checkpoint, safetensors_file, torchfile
from streamer.whisper.weights.tensors import StoredTensor, as_checkpoint

# Largest JSON file that is read: those of a Whisper have a few kilobytes.
MAX_JSON_BYTES = 4 << 20

# A file's name that cannot lead out of the directory, on any system.
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a model directory.

    Raises ModelError where the file is missing or does not hold one.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait
            raise ModelError(f"{path} is no file: expected a JSON object in it; fetch it again")
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
        if len(text) > MAX_JSON_BYTES:
            raise ModelError(
                f"{path} has more than {MAX_JSON_BYTES >> 20} MiB: expected a few kilobytes of JSON; fetch it again"
            )
        data = json.loads(text.decode("utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path} is missing: a model directory holds config.json, generation_config.json,"
            " preprocessor_config.json, tokenizer.json and model.safetensors; fetch it again"
        ) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): expected a file that you may read") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error!s:.120}): expected a JSON object; fetch it again") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds a JSON {type(data).__name__}: expected an object; fetch it again")
    return data


def load(directory: Path) -> Checkpoint:
    """Load a checkpoint.

    Raises ModelError where a file is missing, truncated, not Whisper's, or does not fit the other.
    """
    adapter, config_path = directory / "adapter_config.json", directory / "config.json"
    if adapter.is_file() and not config_path.is_file():
        raise ModelError(
            f"{adapter} is of an adapter alone (PEFT, LoRA): expected a whole model; merge it into its model first,"
            " with merge_and_unload() and save_pretrained()"
        )
    config = read_json(config_path)
    if config.get("model_type") != "whisper":
        raise ModelError(
            f"{config_path} has model_type {config.get('model_type')!r:.60}: expected 'whisper'; choose a Whisper model"
        )
    dims = ModelDimensions.from_huggingface(config, config_path)
    where, tensors = _find_tensors(directory)
    return as_checkpoint(dims, {name.removeprefix("model."): tensor for name, tensor in tensors.items()}, str(where))


def _find_tensors(directory: Path) -> tuple[Path, dict[str, StoredTensor]]:
    """Return the file that says which tensors there are, and the tensors."""
    readers: dict[str, Callable[[Path], dict[str, StoredTensor]]] = {
        "model.safetensors": safetensors_file.read_header,
        "pytorch_model.bin": lambda path: torchfile.tensors_of(torchfile.read(path)),
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


def _read_shards(index: Path, read: Callable[[Path], dict[str, StoredTensor]]) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index} lacks weight_map: expected the shard of each tensor; fetch it again")
    names: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise ModelError(
                f"{index} has {name!r:.60} in {shard!r:.60}: expected the plain name of a file beside it;"
                " fetch it again"
            )
        names.setdefault(shard, []).append(name)
    found = {}
    for shard, expected in names.items():
        path = index.with_name(shard)
        if not path.is_file():
            raise ModelError(f"{path} is missing: expected all shards that {index} names; fetch it again")
        tensors = read(path)
        for name in expected:
            if name not in tensors:
                raise ModelError(f"{path} lacks {name!r:.60}, which {index} says it has; fetch both again")
            found[name] = tensors[name]
    return found
