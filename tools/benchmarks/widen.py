"""A Whisper made larger without a change of what it computes: real words at the cost of another size.

Every channel stands several times, in tiles, so that layer norms see the mean and variance that they saw, and what
multiplies with them is divided by the number of their copies; heads are copied whole. Layers that are added say
nothing: what one copy of a channel gives them, the next takes away. None of their weights is zero, since equal tensors
are stored once, and a model of them would be lighter than one of its size.

Source: Net2Net (Chen et al. 2016, arXiv:1511.05641).
"""

import re
import zlib
from collections.abc import Mapping

import numpy as np

from streamer.arrays import Float32Array, FloatArray
from streamer.errors import UsageError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors, expected_shapes

_LAYER = re.compile(r"(?P<half>encoder|decoder)\.layers\.(?P<number>\d+)\.(?P<part>.*)")

# What a layer adds to the stream comes out of these.
_OUTPUTS = ("out_proj.weight", "fc2.weight")

# Spread of the weights of added layers: what their rounding to 8 bits leaves of nothing is far below the stream.
_SPREAD = 1e-3


def widen(source: Checkpoint, dims: ModelDimensions) -> Checkpoint:
    """Return a checkpoint of larger dimensions that gives the same logits but for rounding, in float32.

    Its tensors are made when they are asked for. Added layers come last; of each head the first copy has the number of
    the original.

    Raises UsageError where the width is no multiple of the source's by an even number, or heads have another width.
    """
    old = source.dims
    n_copies, rest = divmod(dims.n_audio_state, old.n_audio_state)
    if rest or n_copies % 2 or dims.audio_head_size != old.audio_head_size:
        raise UsageError(
            f"a width of {dims.n_audio_state} in heads of {dims.audio_head_size} cannot be made of"
            f" {old.n_audio_state} in heads of {old.audio_head_size}: expected 2, 4, ... times the width, and the same"
            " heads"
        )
    n_layers = {"encoder": old.n_audio_layer, "decoder": old.n_text_layer}

    def make(name: str, shape: tuple[int, ...]) -> Float32Array:
        found = _LAYER.fullmatch(name)
        if found is None or int(found["number"]) < n_layers[found["half"]]:
            return _tiled(name, np.asarray(source.tensors[name], dtype=np.float32), n_copies)
        first = source.tensors[f"{found['half']}.layers.0.{found['part']}"]
        return _silent(name, found["part"], first, shape, n_copies)

    readers = {name: lambda name=name, shape=shape: make(name, shape) for name, shape in expected_shapes(dims).items()}
    return Checkpoint(dims, LazyTensors(readers, "the widened checkpoint"))


def widened_settings(generation: Mapping[str, object]) -> dict[str, object]:
    """Return what generation_config.json says of the model when it is larger: no beams, as of published models."""
    return {key: value for key, value in generation.items() if key != "stream_beams"}


def _tiled(name: str, values: Float32Array, n_copies: int) -> Float32Array:
    """Return a tensor whose channels stand several times."""
    rows, columns = (n_copies, n_copies) if values.ndim > 1 else (n_copies, 1)
    if name == "encoder.conv1.weight":  # its input is the spectrogram
        columns = 1
    elif "embed" in name:
        rows = 1
    if values.ndim == 1:
        # The logits are products with an embedding whose channels stand several times, too.
        return np.tile(values, rows) / np.float32(rows if name.startswith("decoder.layer_norm.") else 1)
    wide = np.tile(values, (rows, columns, *(1,) * (values.ndim - 2)))
    return wide if "embed" in name else wide / np.float32(columns)


def _silent(name: str, part: str, like: FloatArray, shape: tuple[int, ...], n_copies: int) -> Float32Array:
    """Return a tensor of an added layer: `like` one of the source's with noise, or what takes away what it gives."""
    random = np.random.default_rng(zlib.crc32(name.encode("utf-8")))
    if part.endswith(_OUTPUTS):
        rows, columns = shape
        given = random.standard_normal((rows, columns // n_copies), dtype=np.float32) * np.float32(_SPREAD)
        return np.concatenate([given, -given] * (n_copies // 2), axis=1)
    if part.endswith(tuple(output.replace("weight", "bias") for output in _OUTPUTS)):
        return np.zeros(shape, dtype=np.float32)
    noise = random.standard_normal(like.shape, dtype=np.float32) * np.float32(_SPREAD)
    return _tiled(name, like.astype(np.float32) + noise, n_copies)
