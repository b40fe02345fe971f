"""Text frames of clients of `/v1/stream` (docs/protocol.md): reading and checking."""

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, cast, get_args

import msgspec

from streamer.audio.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, PcmFormat
from streamer.errors import ProtocolError

StreamTask = Literal["transcribe", "translate", "both"]
Command = Literal["flush", "pause", "resume", "clear"]
Kind = Literal["start", "set", "finish"] | Command


def _one_of(choices: object) -> msgspec.Meta:
    return msgspec.Meta(description=" or ".join(get_args(choices)))


def _whole_number(low: int, high: int) -> msgspec.Meta:
    return msgspec.Meta(ge=low, le=high, description=f"a whole number from {low} to {high}")


def _number(low: float, high: float) -> msgspec.Meta:
    return msgspec.Meta(ge=low, le=high, description=f"a number from {low:g} to {high:g}")


def _text(description: str, most: int, least: int = 0, but: str = "") -> msgspec.Meta:
    """Text without control characters, and without half a surrogate pair, which nothing could write as UTF-8."""
    pattern = rf"\A{but}[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z"
    return msgspec.Meta(min_length=least, max_length=most, pattern=pattern, description=description)


def _list_of(item: msgspec.Meta, most: int) -> msgspec.Meta:
    return msgspec.Meta(max_length=most, description=f"a list of at most {most}, each {item.description}")


_LANGUAGE = _text("a language code such as 'en'", 32, 1)
_LANGUAGE_FOUND = _text("a language code such as 'en'", 32, 1, but=r"(?!auto\Z)")
_PROMPT = _text("one line of at most 2000 characters", 2_000)  # a model sees about 200 tokens of it
_HOTWORD = _text("one line of 1 to 100 characters", 100, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a client may choose for its session, and change in mid-stream. None: what the daemon is set to.

    Each field says what its value may be; the ranges are those of the daemon's settings.
    """

    # Language code such as `en`, or `auto`.
    language: Annotated[str, _LANGUAGE] | None = None

    # Languages that `auto` may find, at most as many as Whisper knows; empty: all.
    languages: Annotated[tuple[Annotated[str, _LANGUAGE_FOUND], ...], _list_of(_LANGUAGE_FOUND, 100)] | None = None

    # Whether to write what is said, its English translation, or the one with the other beside it.
    task: Annotated[StreamTask, _one_of(StreamTask)] | None = None

    # Text shown to the model before the first window, as if it had been said.
    initial_prompt: Annotated[str, _PROMPT] | None = None

    # Words and phrases that are likely to be said.
    hotwords: Annotated[tuple[Annotated[str, _HOTWORD], ...], _list_of(_HOTWORD, 100)] | None = None

    # Beams that the decoder follows, as many as the daemon has at most.
    beam_size: Annotated[int, _whole_number(1, 16)] | None = None

    # Whether partials and finals carry their words one by one.
    words: Annotated[bool, msgspec.Meta(description="true or false")] | None = None

    # Probability at which speech begins.
    vad_threshold: Annotated[float, _number(0.01, 0.99)] | None = None

    # Seconds of silence that end speech.
    min_silence_s: Annotated[float, _number(0.1, 10.0)] | None = None

    # Least seconds of new audio from one pass to the next.
    pace_s: Annotated[float, _number(0.1, 10.0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart(SessionOptions):
    """How a client's audio is written, and what it chooses: its first text frame, all of it optional."""

    # Sample format: 16-bit integers or 32-bit floats (-1 to 1), little-endian, channels interleaved.
    format: Annotated[PcmFormat, _one_of(PcmFormat)] = "s16le"

    # Samples a second and channel.
    sample_rate: Annotated[int, _whole_number(MIN_SAMPLE_RATE, MAX_SAMPLE_RATE)] = 16_000

    # They are mixed to one.
    channels: Annotated[int, _whole_number(1, MAX_CHANNELS)] = 1

    # Whether what is final goes into the daemon's history.
    keep: Annotated[bool, msgspec.Meta(description="true or false")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResume:
    """The stream that a client resumes: its first text frame, instead of `start`."""

    # Name of the session; only the client that opened it knows it.
    session: Annotated[str, _text("the session of the events, up to 200 characters", 200, 1)]

    # Number of the last event that the client has received; 0: none.
    after: Annotated[int, _whole_number(0, 10**15 - 1)] = 0


# The keys of each type of message, and what their values may be.
_KEYS: dict[str, dict[str, Any]] = {
    "start": {field.name: field.type for field in fields(StreamStart)},
    "set": {field.name: field.type for field in fields(SessionOptions)},
    **{kind: {} for kind in (*get_args(Command), "finish")},
}
_KEYS_OF_RESUME: dict[str, Any] = {field.name: field.type for field in fields(StreamResume)}


def parse_message(text: str) -> tuple[Kind, dict[str, Any]]:
    """Return the type of a message and its other fields: of StreamStart (`start`) or SessionOptions (`set`).

    `resume` with a `session` has the fields of StreamResume; without one it is the command.

    Raises ProtocolError for an invalid message, an unknown key, or a value out of range.
    """
    data = _parse_object(text)
    kind = data.pop("type", None)
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ProtocolError(f"message type is {kind!r:.60}: expected one of {', '.join(_KEYS)}")
    known = _KEYS_OF_RESUME if kind == "resume" and "session" in data else _KEYS[kind]
    unknown = [repr(key) for key in data if key not in known]
    if unknown:
        raise ProtocolError(
            f"{kind} message has unknown {'keys' if len(unknown) > 1 else 'key'} {', '.join(unknown):.120}:"
            f" expected only {', '.join(('type', *known))}"
        )
    for key, value in data.items():
        try:
            data[key] = msgspec.convert(value, known[key])
        except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: half a surrogate pair
            raise ProtocolError(f"{kind} message has {key} {value!r:.60}: expected {_expected(known[key])}") from None
    return cast(Kind, kind), data


def _parse_object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)  # msgspec refuses NaN and lone surrogates as JSON, without the key that has them
    except (ValueError, RecursionError):
        raise ProtocolError(
            f'text frame {text!r:.60} is not JSON: expected {{"type":"start",...}} or {{"type":"finish"}};'
            " audio goes into binary frames"
        ) from None
    if not isinstance(data, dict):
        raise ProtocolError(f"text frame is a JSON {type(data).__name__}: expected an object with a 'type'")
    return data


def _expected(annotation: Any) -> str:  # noqa: ANN401 - any type
    """Return the description of a field's type."""
    first, *others = get_args(annotation)
    return f"{_expected(first)}, or null" if others == [type(None)] else str(others[0].description)
