"""What every loader gives: a Whisper model's dimensions and its named arrays, which are read one by one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamer.arrays import FloatArray
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights.binary import unfit
from streamer.whisper.weights.tensors import FLOATS, Tensor


class LazyTensors(Mapping[str, FloatArray]):
    """Named arrays that are read when they are asked for, so that a model is never in memory twice."""

    def __init__(self, readers: Mapping[str, Callable[[], FloatArray]], where: str = "the checkpoint") -> None:
        """`readers` may raise ModelError: what a header promises, the file may not hold. `where` names the file."""
        self._readers = dict(readers)
        self._where = where

    def __getitem__(self, name: str) -> FloatArray:
        values = self._readers[name]()
        with np.errstate(invalid="ignore"):
            total = np.sum(values, dtype=np.float64)  # takes no memory, and does not overflow
        if not np.isfinite(total):
            remedy = "its training or conversion failed, download it again or use an earlier checkpoint"
            raise unfit(self._where, f"has NaN or infinity in {name}", "finite numbers", remedy)
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's weights under the names of Hugging Face's `WhisperModel`, without the leading `model.`."""

    dims: ModelDimensions

    # float16 or float32, contiguous; each look-up may read the file. `proj_out.weight` is there unless it is tied.
    tensors: Mapping[str, FloatArray]

    # `config.json` of Hugging Face and CTranslate2; empty for other formats.
    config: Mapping[str, Any] = field(default_factory=dict)

    # What the tokens spell, in the order of their numbers, if the file says that; special tokens follow.
    vocabulary: tuple[bytes, ...] = ()


def as_checkpoint(
    dims: ModelDimensions,
    found: Mapping[str, object],
    where: str,
    described_by: str = "config.json",
    *,
    tied: bool = True,
) -> Checkpoint:
    """Return the checkpoint of these dimensions. No tensor is read; what is none, or not Whisper's, is ignored.

    found : tensors by their names in a checkpoint
    where, described_by : the file of the tensors, and what the dimensions were read from, for messages
    tied : whether the logits are made with the embedding

    Raises ModelError if a tensor is missing, of another shape, or of a type that is no float of 16 or 32 bits.
    """
    shapes = expected_shapes(dims, tied=tied)
    tensors = {name: tensor for name in shapes if isinstance(tensor := found.get(name), Tensor)}
    missing = sorted(set(shapes) - set(tensors))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        expected = f"all tensors of the model in {described_by}"
        raise unfit(where, f"lacks the tensor {missing[0]}{more}", expected, "download all files again from one place")
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise unfit(where, f"has {name} of type {tensor.dtype!r:.20}", "F16, BF16 or F32", "convert the model")
        if tensor.shape != shapes[name]:
            fact = f"has {name} of shape {list(tensor.shape)!s:.60}"
            expected = f"{list(shapes[name])} as in {described_by}"
            raise unfit(where, fact, expected, "the files are of different models, download all again from one place")
    return Checkpoint(dims, LazyTensors({name: tensor.read for name, tensor in tensors.items()}, where))


# Of files that are a whole checkpoint, and of some that are a part of one.
SUFFIXES = (".pt", ".pth", ".bin")


def first_bytes(path: Path, n_bytes: int = 4) -> bytes:
    """Return how a checkpoint's file begins, by which it is known; nothing of other files. Raises OSError."""
    if path.suffix not in SUFFIXES or not path.is_file():  # reading a pipe would wait
        return b""
    with path.open("rb") as file:
        return file.read(n_bytes)


def expected_shapes(dims: ModelDimensions, *, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of a model; `tied`: the logits are made with the embedding."""
    audio, text = dims.n_audio_state, dims.n_text_state
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (audio, dims.n_mels, 3),
        "encoder.conv1.bias": (audio,),
        "encoder.conv2.weight": (audio, audio, 3),
        "encoder.conv2.bias": (audio,),
        "encoder.embed_positions.weight": (dims.n_audio_ctx, audio),
        "decoder.embed_tokens.weight": (dims.n_vocab, text),
        "decoder.embed_positions.weight": (dims.n_text_ctx, text),
        **_layer_norm("encoder.layer_norm", audio),
        **_layer_norm("decoder.layer_norm", text),
    }
    if not tied:
        shapes["proj_out.weight"] = (dims.n_vocab, text)
    for i in range(dims.n_audio_layer):
        shapes |= _block(f"encoder.layers.{i}", audio, ("self_attn",))
    for i in range(dims.n_text_layer):
        shapes |= _block(f"decoder.layers.{i}", text, ("self_attn", "encoder_attn"))
    return shapes


def _block(prefix: str, width: int, attentions: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.fc1.weight": (4 * width, width),
        f"{prefix}.fc1.bias": (4 * width,),
        f"{prefix}.fc2.weight": (width, 4 * width),
        f"{prefix}.fc2.bias": (width,),
        **_layer_norm(f"{prefix}.final_layer_norm", width),
    }
    for attention in attentions:
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"{prefix}.{attention}.{projection}.weight"] = (width, width)
            if projection != "k_proj":  # Whisper's keys have no bias
                shapes[f"{prefix}.{attention}.{projection}.bias"] = (width,)
        shapes |= _layer_norm(f"{prefix}.{attention}_layer_norm", width)
    return shapes


def _layer_norm(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.weight": (width,), f"{prefix}.bias": (width,)}
