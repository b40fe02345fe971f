"""Text frames of clients of `/v1/stream` (docs/protocol.md): reading and checking."""

import json
import re
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec

from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, PcmEncoding, PcmFormat
from streamer.errors import ProtocolError
from streamer.settings.options import SessionOptions, line
from streamer.settings.setting import values_of, within
from streamer.settings.values import expected

Command = Literal["flush", "pause", "resume", "clear"]
Kind = Literal["start", "set", "finish"] | Command

# The name of a room, or of a token.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ROOM_NAME = "up to 64 letters, digits, dots, dashes and underscores"
Room = Annotated[str, msgspec.Meta(pattern=rf"\A({NAME.pattern})?\Z", description=ROOM_NAME)]


def is_room(name: str) -> bool:
    """Return whether a room, or none if it is empty, may be called so."""
    return not name or NAME.fullmatch(name) is not None


class StreamStart(SessionOptions, frozen=True, kw_only=True):
    """How a client's audio is written, and what it chooses: its first text frame, all of it optional."""

    # Sample format, channels interleaved. Only clients of other protocols have those that are no PcmFormat.
    format: PcmEncoding = "s16le"

    # Samples a second and channel.
    sample_rate: Annotated[int, within(MIN_SAMPLE_RATE, MAX_SAMPLE_RATE)] = 16_000

    # They are mixed to one.
    channels: Annotated[int, within(1, MAX_CHANNELS)] = 1

    # Whether what is final goes into the daemon's history.
    keep: bool = False

    # Where others may read what is said; empty: nowhere.
    room: Room = ""


class StreamResume(msgspec.Struct, frozen=True, kw_only=True):
    """The stream that a client resumes: its first text frame, instead of `start`."""

    # Name of the session; only the client that opened it knows it.
    session: Annotated[str, line("the session of the events, up to 200 characters", 200, 1)]

    # Number of the last event that the client has received; 0: none.
    after: Annotated[int, within(0, 10**15 - 1)] = 0


def _keys(message: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(message)}


# The keys of each type of message, and what their values may be.
_KEYS: dict[str, dict[str, Any]] = {
    "start": _keys(StreamStart)
    | {"format": Annotated[PcmFormat, msgspec.Meta(description=" or ".join(get_args(PcmFormat)))]},
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
    """Return what a key's value may be, in a few words."""
    parts = get_args(annotation)
    if NoneType in parts:
        return f"{_expected(parts[0])}, or null"
    limits = parts[-1] if get_origin(annotation) is Annotated else msgspec.Meta()
    return limits.description or expected(*values_of(annotation))
