"""openai-whisper's checkpoints, a `.pt` of `dims` and `model_state_dict`, and its names of tensors."""

from pathlib import Path

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import torch
from streamer.whisper.weights.binary import unfit
from streamer.whisper.weights.checkpoint import Checkpoint, as_checkpoint, expected_shapes, first_bytes

NAME = "openai-whisper"
FILES = (("*.pt",),)

# Between two dots of a tensor's name: Hugging Face's and openai-whisper's.
_PARTS = {
    "encoder_attn_layer_norm": "cross_attn_ln",
    "self_attn_layer_norm": "attn_ln",
    "final_layer_norm": "mlp_ln",
    "encoder_attn": "cross_attn",
    "self_attn": "attn",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
    "layers": "blocks",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}

_WHOLE = {
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "encoder.layer_norm.weight": "encoder.ln_post.weight",
    "encoder.layer_norm.bias": "encoder.ln_post.bias",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "decoder.layer_norm.weight": "decoder.ln.weight",
    "decoder.layer_norm.bias": "decoder.ln.bias",
}


def openai_name(name: str) -> str:
    """Return openai-whisper's name of a tensor, which ggml and MLX files use too, given Hugging Face's."""
    if name in _WHOLE:
        return _WHOLE[name]
    return ".".join(_PARTS.get(part, part) for part in name.split("."))


def matches(path: Path) -> bool:
    """Return whether a path is a file of PyTorch's. Raises OSError if it cannot be read."""
    return first_bytes(path).startswith((b"PK\x03\x04", b"\x80"))  # the second before PyTorch 1.6


def load(path: Path) -> Checkpoint:
    """Load a checkpoint. Raises ModelError if it is missing, damaged, another program's, or more than data."""
    saved = torch.read(path)
    dims, state = saved.get("dims"), saved.get("model_state_dict")
    if not isinstance(dims, dict) or not isinstance(state, dict):
        remedy = 'save it again as {"dims": model.dims.__dict__, "model_state_dict": model.state_dict()}'
        raise unfit(path, "lacks dims or model_state_dict", "both, as in openai-whisper's checkpoints", remedy)
    # Texts and numbers alone: what a list in a list in a list looks like has no end, and the errors show it.
    dimensions = ModelDimensions.from_openai(
        {name: value for name, value in dims.items() if isinstance(value, int | float | str)}, path
    )
    found = {name: state.get(openai_name(name)) for name in expected_shapes(dimensions)}
    return as_checkpoint(dimensions, found, str(path), "its dims")
