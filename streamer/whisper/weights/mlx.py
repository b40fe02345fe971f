"""MLX layout: `config.json` beside `model.safetensors`, `weights.safetensors` or `weights.npz`.

Source: what `convert.py` of mlx-examples' `whisper` writes and `mlx_whisper` reads: openai-whisper's dimensions and
names, except the two layers of `mlp`, convolutions with the kernel in the middle, no positions of the encoder.
mlx-audio puts the same tensors beside a `config.json` of Hugging Face.
"""

import math
from functools import partial
from pathlib import Path

import numpy as np

from streamer.arrays import FloatArray
from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.weights import huggingface, npz, safetensors
from streamer.whisper.weights.binary import unfit
from streamer.whisper.weights.checkpoint import Checkpoint, as_checkpoint, expected_shapes
from streamer.whisper.weights.mlx_groups import grouped
from streamer.whisper.weights.openai import openai_name
from streamer.whisper.weights.tensors import Tensor

NAME = "MLX"

FILES = (("weights.safetensors",), ("weights.npz",))

# In the order in which they are looked for.
_WEIGHTS = ("model.safetensors", "weights.safetensors", "weights.npz")

_ENCODER_POSITIONS = "encoder.embed_positions.weight"

# Longest wave of the encoder's positions, in positions over 2 pi.
_MAX_TIMESCALE = 10_000


def matches(directory: Path) -> bool:
    """Return whether a directory is MLX's, not Hugging Face's. Never raises; a broken file is found at loading."""
    try:
        if "n_mels" in read_json(directory / "config.json"):
            return True
        path = _find_weights(directory)
        return path.name != _WEIGHTS[0] or any(".mlp1." in name for name in safetensors.read_header(path))
    except (ModelError, OSError):
        return False


def load(directory: Path) -> Checkpoint:
    """Load a checkpoint, quantized or not. Raises ModelError if a file is missing, truncated or not Whisper's."""
    config_path = directory / "config.json"
    config = read_json(config_path)
    if "n_mels" in config:
        dims, tied = ModelDimensions.from_openai(config, config_path), True
    else:
        dims = ModelDimensions.from_huggingface(config, config_path)
        tied = huggingface.read_tied(config, config_path)
    path = _find_weights(directory)
    stored = (npz if path.suffix == ".npz" else safetensors).read_header(path)
    shapes = expected_shapes(dims, tied=tied)
    tensors = {name: _find_tensor(stored, path, name, shape) for name, shape in shapes.items()}
    # Older files, and those of others, may have the positions.
    if tensors[_ENCODER_POSITIONS] is None and dims.n_audio_state >= 4 and dims.n_audio_state % 2 == 0:
        # In the type of the others, as MLX's own program computes with them.
        bias, shape = tensors["encoder.conv1.bias"], shapes[_ENCODER_POSITIONS]
        half = bias is not None and bias.dtype == "F16"
        tensors[_ENCODER_POSITIONS] = Tensor(shape, "F32", partial(sinusoids, *shape, half=half))
    return as_checkpoint(dims, tensors, str(path), tied=tied)


def _find_weights(directory: Path) -> Path:
    for name in _WEIGHTS:
        if (directory / name).is_file():
            return directory / name
    raise unfit(directory, "has no weights", f"one of {', '.join(_WEIGHTS)}", "fetch it again")


def _find_tensor(stored: dict[str, Tensor], path: Path, name: str, shape: tuple[int, ...]) -> Tensor | None:
    name = openai_name(name).replace(".mlp.0.", ".mlp1.").replace(".mlp.2.", ".mlp2.")
    tensor = stored.get(name)
    if tensor is None:
        return None
    scales, biases = (stored.get(f"{name.removesuffix('.weight')}.{part}") for part in ("scales", "biases"))
    if scales is not None and len(shape) == 2:
        if biases is None:
            fact = f"has {name} with scales and without biases"
            raise unfit(path, fact, "MLX's affine quantization", "convert the model again")
        return grouped(name, str(path), tensor, scales, biases, (shape[0], shape[1]))
    if len(shape) == 3 and len(tensor.shape) == 3:
        n_out, n_kernel, n_in = tensor.shape
        return tensor.view((n_out, n_in, n_kernel), lambda values: values.transpose(0, 2, 1))
    return tensor


def sinusoids(n_positions: int, width: int, *, half: bool = False) -> FloatArray:
    """Return the encoder's positions, (n_positions, width): sines, then cosines; `sinusoids` of openai-whisper."""
    step = np.float32(-math.log(_MAX_TIMESCALE) / (width // 2 - 1))
    frequencies = np.exp(step * np.arange(width // 2, dtype=np.float32))
    angles = np.arange(n_positions, dtype=np.float32)[:, np.newaxis] * frequencies
    positions: FloatArray = np.concatenate((np.sin(angles), np.cos(angles)), axis=1)
    return positions.astype(np.float16) if half else positions
