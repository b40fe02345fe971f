"""Text frames of clients of `/v1/stream` (docs/protocol.md): reading and checking."""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import msgspec

from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, PcmFormat
from streamer.errors import ProtocolError
from streamer.languages import code_of, codes_of
from streamer.protocols.text import prompt
from streamer.settings.setting import Setting
from streamer.settings.table import CLIENT_OPTIONS
from streamer.settings.values import expected

StreamTask = Literal["transcribe", "translate", "both"]
Command = Literal["flush", "pause", "resume", "clear"]
Kind = Literal["start", "set", "finish"] | Command


def _whole_number(low: int, high: int) -> msgspec.Meta:
    return msgspec.Meta(ge=low, le=high, description=f"a whole number from {low} to {high}")


def _text(description: str, most: int | None = None, least: int = 0) -> msgspec.Meta:
    """Text without control characters, and without half a surrogate pair, which nothing could write as UTF-8."""
    pattern = r"\A[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z"
    return msgspec.Meta(min_length=least, max_length=most, pattern=pattern, description=description)


def _list_of(item: msgspec.Meta) -> Any:  # noqa: ANN401 - a type
    """A list of text, at most 100 items, as many as Whisper knows languages."""
    limit = msgspec.Meta(max_length=100, description=f"a list of at most 100, each {item.description}")
    return Annotated[tuple[Annotated[str, item], ...], limit]


_TRUE_OR_FALSE = msgspec.Meta(description="true or false")
_LANGUAGE = _text("a language's name or code such as 'en'", 32)


def _type_of(setting: Setting) -> Any:  # noqa: ANN401 - a type
    """Return what a client may send for a setting: what the setting may be, but only one line of bounded length."""
    if setting.name == "decoding.language":
        return Annotated[str, _LANGUAGE]
    if setting.kind is str and not setting.choices:
        return Annotated[str, _text("one line")]
    if setting.kind == tuple[str, ...]:
        return _list_of(_text("one line of 1 to 100 characters", 100, 1))
    return Annotated[setting.type, msgspec.Meta(description=expected(setting))]


# What a client may choose for its session, by the names of the options: settings, and two that are only a session's.
OPTIONS: dict[str, Any] = {
    **{name: _type_of(setting) for name, setting in CLIENT_OPTIONS.items()},
    # Languages that `auto` may find; empty: all.
    "languages": _list_of(_LANGUAGE),
    # Whether partials and finals carry their words one by one.
    "words": Annotated[bool, _TRUE_OR_FALSE],
}


def _normalise(options: "SessionOptions") -> None:
    """Replace languages by their codes, and a prompt by its end. Raises ConfigError for an unknown language."""
    msgspec.structs.force_setattr(options, "language", code_of(options.language) if options.language else None)
    msgspec.structs.force_setattr(options, "languages", options.languages and codes_of(options.languages))
    msgspec.structs.force_setattr(options, "initial_prompt", prompt(options.initial_prompt))


if TYPE_CHECKING:

    class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
        """What a client chooses for its session, and changes in mid-stream. None: what the daemon is set to."""

        def __init__(self, **options: object) -> None: ...

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401 - of any type

else:
    SessionOptions = msgspec.defstruct(
        "SessionOptions",
        [(name, type | None, None) for name, type in OPTIONS.items()],
        module=__name__,
        namespace={"__post_init__": _normalise},
        frozen=True,
        kw_only=True,
    )


class StreamStart(SessionOptions, frozen=True, kw_only=True):
    """How a client's audio is written, and what it chooses: its first text frame, all of it optional."""

    # Sample format: 16-bit integers or 32-bit floats (-1 to 1), little-endian, channels interleaved.
    format: Annotated[PcmFormat, msgspec.Meta(description=" or ".join(get_args(PcmFormat)))] = "s16le"

    # Samples a second and channel.
    sample_rate: Annotated[int, _whole_number(MIN_SAMPLE_RATE, MAX_SAMPLE_RATE)] = 16_000

    # They are mixed to one.
    channels: Annotated[int, _whole_number(1, MAX_CHANNELS)] = 1

    # Whether what is final goes into the daemon's history.
    keep: Annotated[bool, _TRUE_OR_FALSE] = False

    if TYPE_CHECKING:

        def __init__(self, **options: object) -> None: ...


class StreamResume(msgspec.Struct, frozen=True, kw_only=True):
    """The stream that a client resumes: its first text frame, instead of `start`."""

    # Name of the session; only the client that opened it knows it.
    session: Annotated[str, _text("the session of the events, up to 200 characters", 200, 1)]

    # Number of the last event that the client has received; 0: none.
    after: Annotated[int, _whole_number(0, 10**15 - 1)] = 0


def _keys(message: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(message)}


# The keys of each type of message, and what their values may be.
_KEYS: dict[str, dict[str, Any]] = {
    "start": _keys(StreamStart),
    "set": _keys(SessionOptions),
    **{kind: {} for kind in (*get_args(Command), "finish")},
}
_KEYS_OF_RESUME = _keys(StreamResume)


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
            " send audio in binary frames"
        ) from None
    if not isinstance(data, dict):
        raise ProtocolError(f"text frame is a JSON {type(data).__name__}: expected an object with a 'type'")
    return data


def _expected(annotation: Any) -> str:  # noqa: ANN401 - any type
    """Return the description of a field's type."""
    first, *others = get_args(annotation)
    return f"{_expected(first)}, or null" if others == [type(None)] else str(others[-1].description)
