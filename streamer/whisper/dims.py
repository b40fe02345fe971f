"""The ten integers that describe a Whisper model; every shape derives from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamer.constants import N_FRAMES, exact_div
from streamer.errors import ModelError

# Of each size Hugging Face's name, and the narrowest and widest that are accepted, up to twice large-v3's: a file that
# announces more is broken or hostile.
_SIZES = {
    "n_mels": ("num_mel_bins", 1, 256),
    "n_audio_ctx": ("max_source_positions", 1, 1500),
    "n_audio_state": ("d_model", 1, 2560),
    "n_audio_head": ("encoder_attention_heads", 1, 40),
    "n_audio_layer": ("encoder_layers", 1, 64),
    "n_vocab": ("vocab_size", 1, 131_072),
    "n_text_ctx": ("max_target_positions", 32, 448),  # room for the start of a transcript and some text
    "n_text_state": ("d_model", 1, 2560),
    "n_text_head": ("decoder_attention_heads", 1, 40),
    "n_text_layer": ("decoder_layers", 1, 64),
}

# Sequences that a search follows at once, at most: each takes memory and time, and more have gained nothing. A call of
# the decoder takes one token of each, so that this is no more than `BLOCK_TOKENS`.
MAX_BEAMS = 16

# Decoder heads, each by its layer and its place there.
Heads = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """Sizes of a Whisper model, named as in openai-whisper's `ModelDimensions`."""

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    @property
    def audio_head_size(self) -> int:
        return exact_div(self.n_audio_state, self.n_audio_head)

    @property
    def text_head_size(self) -> int:
        return exact_div(self.n_text_state, self.n_text_head)

    @property
    def cache_size(self) -> int:
        """Slots of the decoder's key-value cache: every position but the one being decoded."""
        return self.n_text_ctx - 1

    @classmethod
    def from_huggingface(cls, config: Mapping[str, object], path: Path) -> "ModelDimensions":
        """Read a Hugging Face `config.json`. Raises ModelError if a size is missing, or not a Whisper model's."""
        return cls._read(config, {name: published for name, (published, _, _) in _SIZES.items()}, path)

    @classmethod
    def from_openai(cls, dims: Mapping[str, object], path: Path) -> "ModelDimensions":
        """Read openai-whisper's own names (`.pt`, MLX's `config.json`, ggml's header); raises as `from_huggingface`."""
        return cls._read(dims, {name: name for name in _SIZES}, path)

    @classmethod
    def _read(cls, source: Mapping[str, object], keys: Mapping[str, str], path: Path) -> "ModelDimensions":
        values: dict[str, int] = {}
        for name, key in keys.items():
            value = source.get(key)
            _, low, high = _SIZES[name]
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ModelError(
                    f"{path} has {key} {value!r:.60}: expected a whole number from {low} to {high};"
                    " fetch the file again, or use a Whisper model"
                )
            values[name] = value
        dims = cls(**values)
        for part in ("audio", "text"):
            state, head = f"n_{part}_state", f"n_{part}_head"
            if values[state] % values[head]:
                raise ModelError(
                    f"{path} has {keys[state]} {values[state]} and {values[head]} heads: expected a multiple of the"
                    " heads; fetch the file again"
                )
        if dims.n_audio_state != dims.n_text_state:
            raise ModelError(
                f"{path} has {keys['n_audio_state']} {dims.n_audio_state} and {keys['n_text_state']}"
                f" {dims.n_text_state}: expected the same width in encoder and decoder; use a Whisper model"
            )
        if dims.n_audio_ctx * 2 != N_FRAMES:
            raise ModelError(
                f"{path} has {keys['n_audio_ctx']} {dims.n_audio_ctx}: expected {N_FRAMES // 2} (30 s of audio);"
                " use a Whisper model"
            )
        return dims
