"""Generation settings: those of a model's `generation_config.json`, or openai-whisper's if a model brings none.

Source: openai-whisper's `decoding.py` and `tokenizer.py` (the tokens that are suppressed, the latest first time).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from streamer.constants import CHUNK_LENGTH_S
from streamer.errors import ModelError
from streamer.whisper.dims import MAX_BEAMS, Heads, ModelDimensions
from streamer.whisper.files import converted, read_json
from streamer.whisper.heads import known_heads
from streamer.whisper.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_INITIAL_TIMESTAMP_INDEX = 50  # steps of 20 ms: text begins within the first second
MIN_WINDOW_S = 2  # shortest window that graphs are made for
MAX_HEAD_INDEX = 64  # beyond all layers and heads of any Whisper

# What is written but not spoken. Suppressed if it is one token, alone or behind a space.
_SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
)

# Notes and signs of music. The published vocabularies spell them with two tokens, of which the first has two of the
# three bytes, and nothing that is spoken begins with these.
_MUSIC = "♩♪♫♬♭♮♯"

# Marks that may stand inside of a word, but not begin one.
_INSIDE_WORDS = (" -", " '")


# Windows of live captions, in seconds, of a model that names none (docs/streaming.md): the shortest and the longest if
# one graph computes all lengths between, else the longest alone.
DEFAULT_WINDOWS_S = (5, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """What a model's `generation_config.json` says."""

    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    max_initial_timestamp_index: int | None

    # Layer and head of the cross-attention heads that follow the audio.
    alignment_heads: Heads
    multilingual: bool

    # Whether the model was trained to continue the text that came before a window.
    prompted: bool = True

    # Whether it was trained with silence behind a short window, and not with the zeros that openai-whisper puts there.
    silent_padding: bool = False

    # Lengths of audio, in seconds, that it can be given instead of 30 s without loss, in live captions.
    windows_s: tuple[int, ...] = ()

    # Beams that live captions follow at temperature 0, unless the settings give another number.
    stream_beams: int = 1


_Index = Annotated[int, msgspec.Meta(ge=0)]
_HeadIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_HEAD_INDEX)]
_WindowS = Annotated[int, msgspec.Meta(ge=MIN_WINDOW_S, le=CHUNK_LENGTH_S)]


class _File(msgspec.Struct):
    """What is read of the file; null is as if nothing were said."""

    max_initial_timestamp_index: _Index | None = None
    suppress_tokens: tuple[_Index, ...] | None = None
    begin_suppress_tokens: tuple[_Index, ...] | None = None
    alignment_heads: tuple[tuple[_HeadIndex, _HeadIndex], ...] | None = None
    is_multilingual: bool | None = None
    condition_on_prev_tokens: bool | None = None
    pad_with_silence: bool | None = None
    stream_windows_s: tuple[_WindowS, ...] | None = None
    stream_beams: Annotated[int, msgspec.Meta(ge=1, le=MAX_BEAMS)] | None = None


def read_generation(directory: Path, dims: ModelDimensions, tokenizer: Tokenizer, name: str = "") -> GenerationConfig:
    """Read `generation_config.json` from a model directory. A model that has none gets the default settings.

    name : what the model is called, which may identify its alignment heads if the file does not

    Raises ModelError if the file is broken, or of another model than the dimensions or the tokenizer.
    """
    path = directory / "generation_config.json"
    if path.exists():
        data = read_json(path)
    else:
        missing, path = path, directory / "config.json"
        config = read_json(path) if path.is_file() else {}
        data = _of_ctranslate2(config)
        if not data:
            if "model_type" in config:  # Hugging Face's, of which older fine-tunes lack it
                logger.warning("%s is missing: going on with the settings of the published models", missing)
            return default_generation(tokenizer, dims, name)
    found = data.get("no_timestamps_token_id")
    if found is not None and found != tokenizer.special.no_timestamps:
        raise ModelError(
            f"{path} has no_timestamps_token_id {found!r:.60}, {tokenizer.where} has {tokenizer.special.no_timestamps}:"
            " the files are from different models; fetch both again from one place"
        )
    said = converted(data, _File, path)
    suppressed, begin_suppressed = said.suppress_tokens or (), said.begin_suppress_tokens or ()
    for key, numbers, length in (
        ("max_initial_timestamp_index", (said.max_initial_timestamp_index or 0,), dims.n_audio_ctx + 1),
        ("suppress_tokens", suppressed, dims.n_vocab),
        ("begin_suppress_tokens", begin_suppressed, dims.n_vocab),
    ):
        if any(number >= length for number in numbers):
            raise ModelError(f"{path} has {key} {data[key]!r:.60}: expected numbers below {length}; fetch it again")
    # The first fine-tunes say nothing of languages.
    multilingual = "lang_to_id" in data or tokenizer.multilingual
    return GenerationConfig(
        suppress_tokens=suppressed,
        begin_suppress_tokens=begin_suppressed,
        max_initial_timestamp_index=said.max_initial_timestamp_index,
        alignment_heads=_alignment_heads(said.alignment_heads or (), dims, path, name),
        multilingual=multilingual if said.is_multilingual is None else said.is_multilingual,
        prompted=said.condition_on_prev_tokens is not False,
        silent_padding=bool(said.pad_with_silence),
        windows_s=said.stream_windows_s or (),
        stream_beams=said.stream_beams or 1,
    )


def _of_ctranslate2(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in CTranslate2's config.json under the names of generation_config.json, else nothing."""
    if "suppress_ids" not in config:
        return {}
    return {
        "suppress_tokens": config["suppress_ids"],
        "begin_suppress_tokens": config.get("suppress_ids_begin"),
        "alignment_heads": config.get("alignment_heads"),
        "max_initial_timestamp_index": MAX_INITIAL_TIMESTAMP_INDEX,
    }


def default_generation(tokenizer: Tokenizer, dims: ModelDimensions, name: str = "") -> GenerationConfig:
    """Return openai-whisper's settings, for formats that bring none; `name` is what the model is called."""
    special = tokenizer.special
    suppressed = {*_unspoken(tokenizer), *special.controls}
    return GenerationConfig(
        suppress_tokens=tuple(sorted(suppressed)),
        begin_suppress_tokens=(*tokenizer.encode(" "), special.end_of_text),
        max_initial_timestamp_index=MAX_INITIAL_TIMESTAMP_INDEX,
        alignment_heads=known_heads(dims, name),
        multilingual=tokenizer.multilingual,
    )


def _unspoken(tokenizer: Tokenizer) -> set[int]:
    """Return the tokens of what is written but not spoken."""
    # A smaller vocabulary than the published ones spells by bytes, and these it needs for other text.
    tokens = {spelled[0] for text in _INSIDE_WORDS if len(spelled := tokenizer.encode(text)) == 1}
    for symbols, longest in ((_SYMBOLS, 1), (_MUSIC, 2)):
        for symbol in symbols:
            for text in (symbol, f" {symbol}"):
                spelled = tokenizer.encode(text)
                if 1 <= len(spelled) <= longest:
                    tokens.add(spelled[0])
    return tokens


def _alignment_heads(heads: Heads, dims: ModelDimensions, path: Path, name: str) -> Heads:
    """Return the heads that a file lists, each once; if it lists none of this model's, those that are known."""
    if any(layer >= dims.n_text_layer or head >= dims.n_text_head for layer, head in heads):
        # Some distilled models are published with the list of their teacher.
        logger.warning("%s lists alignment heads that this model does not have: words are timed by other heads", path)
        return known_heads(dims, name)
    return tuple(dict.fromkeys(heads)) or known_heads(dims, name)
