"""Names of Whisper's tensors: openai-whisper's (also in ggml and MLX files) and Hugging Face's."""

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
    """Return openai-whisper's name of a tensor, given Hugging Face's without the leading `model.`."""
    if name in _WHOLE:
        return _WHOLE[name]
    return ".".join(_PARTS.get(part, part) for part in name.split("."))
