"""Adapters for short windows: with one, a model gives with a few seconds of cut sound what it gives with 30 s.

Each is a LoRA adapter of a published model's encoder, and of the cross-attention keys and values of its decoder, in
PEFT's layout (`weights/lora.py`), with a description of the weights that it was trained for. `tools/train_adapter.py`
makes them.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from streamer.constants import CHUNK_LENGTH_S
from streamer.errors import ModelError
from streamer.outside import one_line
from streamer.whisper.files import read_json
from streamer.whisper.generation import MIN_WINDOW_S
from streamer.whisper.shipped import shipped_adapters
from streamer.whisper.weights import lora
from streamer.whisper.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

AUTO, NONE = "auto", "none"

# In `adapter_config.json`, beside what PEFT writes.
KEY = "streamer"


class AdapterDescription(msgspec.Struct, frozen=True):
    """What an adapter is for."""

    # Lengths of audio in seconds that it was trained for, such as the shortest, one between, and the longest.
    windows_s: tuple[Annotated[int, msgspec.Meta(ge=MIN_WINDOW_S, le=CHUNK_LENGTH_S)], ...]

    # Of the weights without it: see `encoder_digest`.
    encoder_sha256: str

    # Layers and width of the encoder: others need no digest.
    n_audio_layer: int
    n_audio_state: int


@dataclass(frozen=True, slots=True)
class WindowAdapter:
    """An adapter that belongs to a model's weights."""

    path: Path
    windows_s: tuple[int, ...]

    # The model's, with the adapter in it. Only its encoder and cross-KV are used: the decoder is that of all windows.
    checkpoint: Checkpoint


def find(checkpoint: Checkpoint, wanted: str) -> WindowAdapter | None:
    """Return the adapter of a model's weights.

    wanted : auto: one that comes with the program; none; or a directory, which has to be for these weights

    Returns None if none is found. Raises ModelError if the directory holds none, or one for other weights.
    """
    if wanted == NONE:
        return None
    digest = cache(lambda: encoder_digest(checkpoint))
    for path in shipped_adapters() if wanted == AUTO else [Path(wanted).expanduser()]:
        try:
            if found := _read(path, checkpoint, digest):
                return found
        except ModelError as error:
            if wanted != AUTO:
                raise
            logger.warning("%s: going on without this adapter", error)
    if wanted != AUTO:
        raise ModelError(
            f"{wanted} was trained for other weights than this model's: expected an adapter of these weights, as they"
            " were before fine-tuning or quantisation; use --adapter auto or none"
        )
    return None


def encoder_digest(checkpoint: Checkpoint) -> str:
    """Return the SHA-256 of an encoder's weights in float16, in the order of their names: the same in any format."""
    digest = hashlib.sha256()
    for name in sorted(checkpoint.tensors):
        if name.startswith("encoder."):
            digest.update(checkpoint.tensors[name].astype(np.float16).tobytes())
    return digest.hexdigest()


def _read(path: Path, checkpoint: Checkpoint, digest: Callable[[], str]) -> WindowAdapter | None:
    """Return an adapter; None if it is for other weights. Raises ModelError if it is missing or damaged."""
    config = path / lora.CONFIG
    try:
        description = msgspec.convert(read_json(config).get(KEY), AdapterDescription)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"{config} does not say which weights and windows it is for ({one_line(error)}): expected an adapter made"
            " by tools/train_adapter.py; for any other there is --lora"
        ) from None
    dims = checkpoint.dims
    if (description.n_audio_layer, description.n_audio_state) != (dims.n_audio_layer, dims.n_audio_state):
        return None
    if description.encoder_sha256 != digest():
        return None
    return WindowAdapter(path, description.windows_s, lora.merged(checkpoint, path))
