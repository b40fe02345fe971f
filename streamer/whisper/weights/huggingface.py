"""Hugging Face layout: `config.json` beside `model.safetensors`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import Checkpoint, FloatArray, check_shapes, expected_shapes

# Largest JSON file that is read: those of a Whisper have a few kilobytes.
MAX_JSON_BYTES = 4 << 20

# Names of the types that the graphs take, as safetensors writes them.
_FLOAT_TYPES = ("F16", "F32")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a model directory.

    Raises ModelError where the file is missing or does not hold one.
    """
    try:
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
    config_path = directory / "config.json"
    config = read_json(config_path)
    if config.get("model_type") != "whisper":
        raise ModelError(
            f"{config_path} has model_type {config.get('model_type')!r:.60}: expected 'whisper'; choose a Whisper model"
        )
    dims = ModelDimensions.from_huggingface(config, config_path)

    path = directory / "model.safetensors"
    if not path.is_file():
        raise ModelError(f"{path} is missing: expected the weights that {config_path} describes; fetch it again")
    try:
        with safe_open(path, framework="numpy") as file:
            # `proj_out` is the token embedding again, and whatever else there may be is not looked at.
            expected = expected_shapes(dims)
            stored = {name.removeprefix("model."): name for name in file.keys()}  # noqa: SIM118 - not a mapping
            headers = {name: file.get_slice(stored[name]) for name in expected if name in stored}
            for name, header in headers.items():
                if header.get_dtype() not in _FLOAT_TYPES:
                    raise ModelError(
                        f"{path} has {name} of type {header.get_dtype()}: expected F16 or F32; convert the model"
                    )
            # Before anything is read, so that a broken file costs no memory.
            check_shapes(dims, {name: tuple(header.get_shape()) for name, header in headers.items()}, str(path))
            tensors: dict[str, FloatArray] = {name: np.asarray(file.get_tensor(stored[name])) for name in expected}
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path} cannot be read ({reason:.120}): it is truncated or no safetensors file; fetch it again"
        ) from None
    return Checkpoint(dims, tensors)
