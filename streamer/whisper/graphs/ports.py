"""The table of the ports of a model's graphs, for all that builds or runs a graph. Names are those of exporters."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from streamer.constants import CHUNK_LENGTH_S, FRAMES_PER_SECOND, TOKENS_PER_SECOND
from streamer.whisper.dims import ModelDimensions

# What a window goes through, in this order.
STAGES = ("encoder", "cross_kv", "decoder")

# Tokens of one call of the block decoder, for prompt and known prefix. On two cores 16 cost 1.3 to 1.7 single steps.
BLOCK_TOKENS = 16

# The same on an NPU, by whose cost model 64 tokens take about as long as two times 16 (docs/npu.md).
NPU_BLOCK_TOKENS = 64

# The same in a graph for any number of tokens, and the numbers that there are: each new one takes 10 ms and 4 MB to
# begin with. On two cores with matrix units, base in int8 takes 10 ms for 1 token, 14 for 6, 21 for 16, 54 for 64.
# OpenVINO 2026.4 keeps a second copy of the weights for calls of more than 6.
MOST_TOKENS = 64
FEW_TOKENS = 6
TOKENS_STEP = 16

# Windows that are decoded at once, at most.
MAX_WINDOWS = 64

# The cache of a graph of any sizes grows by this many tokens: each call reads all of it, filled or not.
SLOTS_STEP = 64

# Inputs that a decoder makes vectors of; and such vectors, which graphs for an NPU take in their place, shape
# (n_windows, n_tokens, n_text_state). So is the node called that holds them in other graphs.
LOOKED_UP = ("input_ids", "position_ids")
EMBEDDED = "inputs_embeds"

# What a decoder's last layer gives, if its logits are made apart of it.
HIDDEN = "hidden_states"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ports:
    """Inputs and outputs of a graph: the shape of each by its name, with -1 for any size."""

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]


def ports(
    stage: str,
    dims: ModelDimensions,
    n_heads: int = 0,
    *,
    window_s: int = CHUNK_LENGTH_S,
    n_tokens: int = -1,
    n_slots: int = -1,
    n_windows: int = 1,
) -> Ports:
    """Return the ports of a stage's graph.

    n_heads : alignment heads whose attention a decoder gives; 0: it gives none
    n_tokens : that a decoder takes a call (T), of each window; -1: any number
    n_slots : of its cache (P); -1: any number
    n_windows : that a decoder decodes at once (B), one behind the other in inputs of one axis; -1: any number
    """
    n_audio_ctx = window_s * TOKENS_PER_SECOND
    hidden = (1, n_audio_ctx, dims.n_audio_state)
    cross = dict.fromkeys(
        key_values(dims.n_text_layer, "encoder"), (1, dims.n_text_head, n_audio_ctx, dims.text_head_size)
    )
    if stage == "encoder":
        features = (1, dims.n_mels, window_s * FRAMES_PER_SECOND)
        return Ports({"input_features": features}, {"last_hidden_state": hidden})
    if stage == "cross_kv":
        return Ports({"encoder_hidden_states": hidden}, {f"present_{name}": shape for name, shape in cross.items()})
    cached = key_values(dims.n_text_layer, "decoder")
    n_rows = -1 if -1 in (n_windows, n_tokens) else n_windows * n_tokens
    return Ports(
        {
            "input_ids": (n_windows, n_tokens),
            "position_ids": (n_rows,),
            "attention_mask": (n_rows, -1 if -1 in (n_tokens, n_slots) else n_slots + n_tokens),
            **{f"past_{name}": (n_windows, dims.n_text_head, n_slots, dims.text_head_size) for name in cached},
            **{f"past_{name}": (n_windows, *shape[1:]) for name, shape in cross.items()},
        },
        {
            "logits": (n_windows, n_tokens, dims.n_vocab),
            **{f"present_{name}": (n_windows, dims.n_text_head, n_tokens, dims.text_head_size) for name in cached},
            **({"cross_attention": (n_windows, n_heads, n_tokens, n_audio_ctx)} if n_heads else {}),
        },
    )


def key_values(n_layer: int, side: str) -> list[str]:
    """Return the names of all layers' keys and values, of the text (`decoder`) or the audio (`encoder`)."""
    return [f"key_values.{i}.{side}.{kind}" for i in range(n_layer) for kind in ("key", "value")]


def dtype_of(port: str) -> type[np.generic]:
    """Return the type of a port of our graphs, before any is compiled."""
    return np.int64 if port in LOOKED_UP else np.float32


def beam_slots(dims: ModelDimensions, n_beams: int) -> int:
    """Return the cache slots of beam search: a prompt, and half a context of text for each beam, none in common."""
    return (n_beams + 1) * (dims.n_text_ctx // 2) + 8
