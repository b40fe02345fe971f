"""Generation settings: those of a model's `generation_config.json`, or openai-whisper's where a model brings none.

Source: openai-whisper's `decoding.py` and `tokenizer.py` (the tokens that are suppressed, the latest first time).
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from streamer.audio.constants import CHUNK_LENGTH_S
from streamer.errors import ModelError
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.heads import known_heads
from streamer.whisper.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Text begins within the first second.
MAX_INITIAL_TIMESTAMP_INDEX = 50  # steps of 20 ms

# Shortest window, in seconds, that graphs are made for.
MIN_WINDOW_S = 2

# Beyond all layers and heads of any Whisper.
MAX_HEAD_INDEX = 64

# What is written but not spoken. Suppressed where it is one token, alone or behind a space.
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


# Each beam takes memory and time; nobody has gained from more.
MAX_BEAMS = 16


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

    # Beams that live captions follow at temperature 0, unless somebody wants another number of them.
    stream_beams: int = 1


def read_generation(directory: Path, dims: ModelDimensions, tokenizer: Tokenizer, name: str = "") -> GenerationConfig:
    """Read `generation_config.json` from a model directory; older fine-tunes lack it, and get the default settings.

    name : what the model is called, which may say what its alignment heads are where the file does not

    Raises ModelError where the file is broken, or of another model than the dimensions or the tokenizer.
    """
    path = directory / "generation_config.json"
    if not path.exists():
        logger.warning("%s is missing: going on with the settings of the published models", path)
        return default_generation(tokenizer, dims, name)
    data = read_json(path)
    found = data.get("no_timestamps_token_id")
    if found is not None and found != tokenizer.special.no_timestamps:
        raise ModelError(
            f"{path} has no_timestamps_token_id {found!r:.60}, {tokenizer.where} has {tokenizer.special.no_timestamps}:"
            " the files are from different models; fetch both again from one place"
        )
    max_initial = data.get("max_initial_timestamp_index")
    if max_initial is not None and not _is_index(max_initial, dims.n_audio_ctx + 1):
        raise ModelError(
            f"{path} has max_initial_timestamp_index {max_initial!r:.60}: expected a whole number from 0 to"
            f" {dims.n_audio_ctx}; fetch it again"
        )
    return GenerationConfig(
        suppress_tokens=_tokens(data, "suppress_tokens", dims, path),
        begin_suppress_tokens=_tokens(data, "begin_suppress_tokens", dims, path),
        max_initial_timestamp_index=max_initial,
        alignment_heads=_alignment_heads(data, dims, path, name),
        # Those of the first fine-tunes say nothing of languages.
        multilingual=_switch(data, "is_multilingual", "lang_to_id" in data or tokenizer.multilingual, path),
        prompted=_switch(data, "condition_on_prev_tokens", True, path),
        silent_padding=_switch(data, "pad_with_silence", False, path),
        windows_s=_windows(data, path),
        stream_beams=_beams(data, path),
    )


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


def _alignment_heads(data: dict[str, Any], dims: ModelDimensions, path: Path, name: str) -> Heads:
    heads = data.get("alignment_heads")
    if not heads:
        return known_heads(dims, name)
    if not isinstance(heads, list):
        raise ModelError(f"{path} has alignment_heads {heads!r:.60}: expected a list of [layer, head]; fetch it again")
    for pair in heads:
        if not (isinstance(pair, list) and len(pair) == 2 and all(_is_index(index, MAX_HEAD_INDEX) for index in pair)):
            raise ModelError(
                f"{path} has the alignment head {pair!r:.60}: expected [layer, head] below [{dims.n_text_layer},"
                f" {dims.n_text_head}]; fetch it again from the model's own place"
            )
    if any(layer >= dims.n_text_layer or head >= dims.n_text_head for layer, head in heads):
        # Some distilled models are published with the list of their teacher.
        logger.warning("%s lists alignment heads that this model does not have: words are timed by other heads", path)
        return known_heads(dims, name)
    return tuple(dict.fromkeys((layer, head) for layer, head in heads))


def _tokens(data: dict[str, Any], key: str, dims: ModelDimensions, path: Path) -> tuple[int, ...]:
    tokens = data.get(key)
    if tokens is None:
        return ()
    if not isinstance(tokens, list) or not all(_is_index(token, dims.n_vocab) for token in tokens):
        raise ModelError(
            f"{path} has {key} {tokens!r:.60}: expected token numbers below {dims.n_vocab}; fetch it again"
        )
    return tuple(tokens)


def _windows(data: dict[str, Any], path: Path) -> tuple[int, ...]:
    windows = data.get("stream_windows_s")
    if windows is None:
        return ()
    allowed = range(MIN_WINDOW_S, CHUNK_LENGTH_S + 1)
    if not isinstance(windows, list) or not all(type(length) is int and length in allowed for length in windows):
        raise ModelError(
            f"{path} has stream_windows_s {windows!r:.60}: expected a list of whole numbers from {MIN_WINDOW_S} to"
            f" {CHUNK_LENGTH_S}; fetch it again"
        )
    return tuple(windows)


def _beams(data: dict[str, Any], path: Path) -> int:
    beams = data.get("stream_beams", 1)
    if type(beams) is not int or not 1 <= beams <= MAX_BEAMS:
        raise ModelError(
            f"{path} has stream_beams {beams!r:.60}: expected a whole number from 1 to {MAX_BEAMS}; fetch it again"
        )
    return beams


def _switch(data: dict[str, Any], key: str, default: bool, path: Path) -> bool:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelError(f"{path} has {key} {value!r:.60}: expected true or false; fetch it again")
    return value


def _is_index(value: object, length: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < length
