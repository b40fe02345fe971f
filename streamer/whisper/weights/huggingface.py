"""Hugging Face layout: `config.json` beside `model.safetensors`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import Checkpoint, FloatArray


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a model directory.

    Raises ModelError where the file is missing or does not hold one.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path} is missing: a model directory holds config.json, generation_config.json,"
            " preprocessor_config.json, tokenizer.json and model.safetensors; fetch it again"
        ) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): check the permissions") from None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}): fetch the file again") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds a JSON {type(data).__name__}: expected an object; fetch the file again")
    return data


def load(directory: Path) -> Checkpoint:
    """Load a checkpoint.

    Raises ModelError where a file is missing, truncated, not Whisper's, or does not fit the other.
    """
    config_path = directory / "config.json"
    config = read_json(config_path)
    if config.get("model_type") != "whisper":
        raise ModelError(f"{config_path} has model_type {config.get('model_type')!r}: expected 'whisper'")
    dims = ModelDimensions.from_huggingface(config, config_path)

    path = directory / "model.safetensors"
    if not path.is_file():
        raise ModelError(f"{path} is missing: expected the weights that {config_path} describes; fetch it again")
    tensors: dict[str, FloatArray] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                # `proj_out` is the token embedding again; the graphs tie the two.
                if name != "proj_out.weight":
                    tensors[name.removeprefix("model.")] = np.asarray(file.get_tensor(name))
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{path} cannot be read ({error}): it is truncated or no safetensors file; fetch it again"
        ) from None
    for name, tensor in tensors.items():
        if tensor.dtype not in (np.float16, np.float32):
            raise ModelError(f"{path} has {name} of type {tensor.dtype}: expected float16 or float32")
    checkpoint = Checkpoint(dims, tensors)
    checkpoint.check(str(path))
    return checkpoint
