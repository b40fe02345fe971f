"""What models take on paper, and the two references at any dimensions."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
import transformers
import whisper.model

from streamer.arrays import FloatArray
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.support import Untyped, tensor

# Bytes of one of the weights that no compression touches, in each precision.
BYTES = {"f32": 4, "f16": 2, "int8": 2}


def stage_of(name: str) -> str:
    """Return the stage whose graph holds a tensor."""
    if name.startswith("encoder."):
        return "encoder"
    return "cross_kv" if ".encoder_attn.k_proj." in name or ".encoder_attn.v_proj." in name else "decoder"


def weight_bytes(dims: ModelDimensions, precision: str) -> dict[str, int]:
    """Return on paper how large the weights of each stage are, on disk and in memory."""
    found = dict.fromkeys(("encoder", "cross_kv", "decoder"), 0)
    for name, shape in expected_shapes(dims).items():
        n = math.prod(shape)
        if precision in ("f32", "f16") or len(shape) == 1 or name == "encoder.embed_positions.weight":
            n_bytes = BYTES[precision] * n
        else:
            n_bytes = n + 3 * shape[0]  # a row has a scale of 16 bits and a zero point of 8
        found[stage_of(name)] += n_bytes
    return found


def cross_kv_bytes(dims: ModelDimensions) -> int:
    """Return on paper how large one window's cross-attention keys and values are, in float32."""
    return 4 * 2 * dims.n_text_layer * dims.n_audio_ctx * dims.n_text_state


def cache_bytes(dims: ModelDimensions) -> int:
    """Return on paper how large the decoder's cache of keys and values is, in float32."""
    return 4 * 2 * dims.n_text_layer * dims.cache_size * dims.n_text_state


def empty_transformers(dims: ModelDimensions) -> Untyped:
    """Return transformers' model of these dimensions, its weights without memory."""
    untyped: Untyped = transformers.WhisperForConditionalGeneration
    with torch.device("meta"):
        return untyped(whisper_config(dims)).eval()


def whisper_config(dims: ModelDimensions, **more: Any) -> transformers.WhisperConfig:  # noqa: ANN401
    """Return transformers' settings of a model of these dimensions."""
    return transformers.WhisperConfig(
        vocab_size=dims.n_vocab,
        num_mel_bins=dims.n_mels,
        d_model=dims.n_audio_state,
        encoder_layers=dims.n_audio_layer,
        decoder_layers=dims.n_text_layer,
        encoder_attention_heads=dims.n_audio_head,
        decoder_attention_heads=dims.n_text_head,
        encoder_ffn_dim=4 * dims.n_audio_state,
        decoder_ffn_dim=4 * dims.n_text_state,
        max_source_positions=dims.n_audio_ctx,
        max_target_positions=dims.n_text_ctx,
        **more,
    )


def empty_openai(dims: ModelDimensions) -> Untyped:
    """Return the two halves of openai-whisper's model of these dimensions, their weights without memory."""
    # In the order in which the two are asked for them. The whole model cannot be made without memory.
    audio, text = dataclasses.astuple(dims)[:5], dataclasses.astuple(dims)[5:]
    with torch.device("meta"):
        halves = {"encoder": whisper.model.AudioEncoder(*audio), "decoder": whisper.model.TextDecoder(*text)}
    return torch.nn.ModuleDict(halves).eval()


def transformers_model(checkpoint: Checkpoint) -> Untyped:
    """Return transformers' model, which looks at the checkpoint's own arrays."""
    model = empty_transformers(checkpoint.dims)
    model.model.load_state_dict(_tensors(checkpoint.tensors), strict=True, assign=True)
    model.proj_out.weight = model.model.decoder.embed_tokens.weight
    return model


def openai_model(checkpoint: Checkpoint) -> Untyped:
    """Return the two halves of openai-whisper's model, which look at the checkpoint's own arrays."""
    model = empty_openai(checkpoint.dims)
    tensors = {openai_name(name): value for name, value in _tensors(checkpoint.tensors).items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    # Not a weight: the causal mask, which lost its memory with them.
    n_ctx = checkpoint.dims.n_text_ctx
    model.decoder.mask = torch.full((n_ctx, n_ctx), -torch.inf).triu(1)
    return model


def _tensors(arrays: Mapping[str, FloatArray]) -> dict[str, Untyped]:
    return {name: tensor(array) for name, array in arrays.items()}
