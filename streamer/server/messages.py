"""What a client of `/v1/stream` may say in text frames (docs/protocol.md): read and checked."""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from streamer.audio.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from streamer.errors import ProtocolError

StreamFormat = Literal["s16le", "f32le"]
StreamTask = Literal["transcribe", "translate"]
Command = Literal["flush", "pause", "resume", "clear"]

MAX_PROMPT_CHARACTERS = 2_000  # a model sees about 200 tokens of it
MAX_HOTWORDS = 100
MAX_HOTWORD_CHARACTERS = 100
MAX_LANGUAGES = 100  # as many as Whisper knows
MAX_LANGUAGE_CHARACTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a client may choose for its session, and change in mid-stream. None: what the daemon is set to."""

    # Language code such as `en`, or `auto`.
    language: str | None = None

    # Languages that `auto` may find; empty: all.
    languages: tuple[str, ...] | None = None

    # Whether to write what is said or its English translation.
    task: StreamTask | None = None

    # Text shown to the model before the first window, as if it had been said.
    initial_prompt: str | None = None

    # Words and phrases that are likely to be said.
    hotwords: tuple[str, ...] | None = None

    # Beams that the decoder follows, as many as the daemon has at most.
    beam_size: int | None = None

    # Whether partials and finals carry their words one by one.
    words: bool | None = None

    # Probability at which speech begins.
    vad_threshold: float | None = None

    # Seconds of silence that end speech.
    min_silence_s: float | None = None

    # Least seconds of new audio from one pass to the next.
    pace_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart(SessionOptions):
    """How a client's audio is written, and what it chooses: its first text frame, all of it optional."""

    # Sample format: 16-bit integers or 32-bit floats (-1 to 1), little-endian, channels interleaved.
    format: StreamFormat = "s16le"

    # Samples a second and channel, 4000 to 384000.
    sample_rate: int = 16_000

    # Channels, 1 to 32; they are mixed to one.
    channels: int = 1


def parse_message(text: str) -> tuple[str, dict[str, Any]]:
    """Read a message: its type, and what else it says as fields of StreamStart (`start`) or SessionOptions (`set`).

    Raises ProtocolError where it is not one, has a key that is not known, or a value out of range.
    """
    data = _parse_object(text)
    kind = data.pop("type", None)
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ProtocolError(f"message type is {kind!r:.60}: expected one of {', '.join(_KEYS)}")
    known = _KEYS[kind]
    unknown = [repr(key) for key in data if key not in known]
    if unknown:
        raise ProtocolError(
            f"{kind} message has unknown {'keys' if len(unknown) > 1 else 'key'} {', '.join(unknown):.120}:"
            f" expected only {', '.join(('type', *known))}"
        )
    for key, value in data.items():
        rule = _RULES[key]
        if not rule.accepts(value):
            raise ProtocolError(f"{kind} message has {key} {value!r:.60}: expected {rule.expected}")
    return kind, {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the value of a key may be."""

    expected: str
    accepts: Callable[[object], bool]


def _parse_object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError(
            f'text frame {text!r:.60} is not JSON: expected {{"type":"start",...}} or {{"type":"finish"}};'
            " audio goes into binary frames"
        ) from None
    if not isinstance(data, dict):
        raise ProtocolError(f"text frame is a JSON {type(data).__name__}: expected an object with a 'type'")
    return data


def _one_of(choices: object) -> _Rule:
    names = get_args(choices)
    return _Rule(" or ".join(names), lambda value: isinstance(value, str) and value in names)


def _whole_number(low: int, high: int) -> _Rule:
    return _Rule(
        f"a whole number from {low} to {high}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
    )


def _number(low: float, high: float) -> _Rule:
    # NaN is in no range.
    return _Rule(
        f"a number from {low:g} to {high:g}",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
    )


def _text(what: str, most: int, least: int = 0) -> _Rule:
    def accepts(value: object) -> bool:
        # JSON can spell half a surrogate pair (Cs), which is no text: nothing could write it as UTF-8.
        return (
            isinstance(value, str)
            and least <= len(value) <= most
            and not any(unicodedata.category(char) in ("Cc", "Cs") for char in value)
        )

    return _Rule(what, accepts)


def _list_of(item: _Rule, most: int) -> _Rule:
    return _Rule(
        f"a list of at most {most}, each {item.expected}",
        lambda value: isinstance(value, list) and len(value) <= most and all(item.accepts(each) for each in value),
    )


def _or_null(rule: _Rule) -> _Rule:
    return _Rule(f"{rule.expected}, or null", lambda value: value is None or rule.accepts(value))


_LANGUAGE = _text("a language code such as 'en'", MAX_LANGUAGE_CHARACTERS, 1)
_ONE_LANGUAGE = _Rule(_LANGUAGE.expected, lambda value: value != "auto" and _LANGUAGE.accepts(value))
_HOTWORD = _text(f"one line of 1 to {MAX_HOTWORD_CHARACTERS} characters", MAX_HOTWORD_CHARACTERS, 1)

# The ranges are those of the daemon's settings.
_RULES = {
    "format": _one_of(StreamFormat),
    "sample_rate": _whole_number(MIN_SAMPLE_RATE, MAX_SAMPLE_RATE),
    "channels": _whole_number(1, MAX_CHANNELS),
    "language": _or_null(_LANGUAGE),
    "languages": _or_null(_list_of(_ONE_LANGUAGE, MAX_LANGUAGES)),
    "task": _or_null(_one_of(StreamTask)),
    "initial_prompt": _or_null(_text(f"one line of at most {MAX_PROMPT_CHARACTERS} characters", MAX_PROMPT_CHARACTERS)),
    "hotwords": _or_null(_list_of(_HOTWORD, MAX_HOTWORDS)),
    "beam_size": _or_null(_whole_number(1, 16)),
    "words": _or_null(_Rule("true or false", lambda value: isinstance(value, bool))),
    "vad_threshold": _or_null(_number(0.01, 0.99)),
    "min_silence_s": _or_null(_number(0.1, 10.0)),
    "pace_s": _or_null(_number(0.1, 10.0)),
}

# The keys of each type of message.
_KEYS: dict[str, tuple[str, ...]] = {
    "start": tuple(_RULES),
    "set": tuple(field.name for field in fields(SessionOptions)),
    **dict.fromkeys(get_args(Command), ()),
    "finish": (),
}
