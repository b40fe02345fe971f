"""A protocol adapter: messages and events go in, actions come out. One instance serves one connection."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import inspect

from streamer.errors import ConfigError, IdleError, ProtocolError, RoomTakenError, StreamerError
from streamer.events import Error, Event
from streamer.outside import one_line
from streamer.protocols.native import Command, StreamResume, StreamStart

# A `flushed` event may be this many seconds before the end of the audio that was sent until then: a resampler holds
# some back, and the speech detector takes 32 ms at a time.
FLUSH_SKEW_S = 0.09

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Say:
    """Send a text frame."""

    text: str


@dataclass(frozen=True, slots=True)
class Open:
    """Open a session; all later actions are for it. After its end another one may be opened."""

    start: StreamStart


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue the session of an earlier connection."""

    request: StreamResume


@dataclass(frozen=True, slots=True)
class Follow:
    """Subscribe to what is said in a room, or to the daemon's own input.

    after, session : the last event that the client has, see `EventLog.subscribe`
    room : empty for the daemon's own input
    """

    after: int | None
    session: str | None
    room: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """Write audio to the session in the format that it was opened with; it may be cut within a sample."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class Do:
    """Give the session a command, at the end of the audio so far."""

    command: Command


@dataclass(frozen=True, slots=True)
class Change:
    """Change these options of the session, named as in `SessionOptions`."""

    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """Publish an `error` event in the session."""

    error: Error


@dataclass(frozen=True, slots=True)
class Finish:
    """End the session's audio; finals of the remaining speech follow, then `End`."""


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the connection once all earlier messages are sent; a session that has not ended is abandoned."""

    code: int = 1000
    reason: str = ""
    after_s: float = 0.0


# When the daemon stops.
STOPPED = Hangup(1001, "the daemon stops: reconnect in a moment")


def read_json(text: str | bytes, type: type[T], what: str, *, strict: bool = True) -> T:
    """Decode a client's message. Raises ProtocolError, whose message begins with `what`."""
    try:
        return msgspec.json.decode(text, type=type, strict=strict)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested thousands deep
        raise ProtocolError(f"{what}: {plain(error)}") from None


# What msgspec calls types.
_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "bytes": "a string of base64",
}
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: of length)?(?: (>=|<=) (\S+?))?(?:, got `(\w+)`)?")


def parted(text: str) -> tuple[str, str]:
    """Split a sentence of msgspec into the fact and where in the message that is; empty if it is all of it."""
    what, at, place = text.rpartition(" - at `$")
    return (what, place.strip(".`")) if at else (place, "")


def plain(error: Exception, within: str = "") -> str:
    """Return in plain words what msgspec says of a message, or of the part `within` it."""
    what, place = parted(one_line(str(error)[:200]))
    parts = [part for part in (within, place) if part]
    field = ".".join(parts) or "it"
    if found := _EXPECTED.fullmatch(what):
        kinds, sign, limit, given = found.groups()
        expected = " or ".join(_KINDS.get(kind, kind) for kind in kinds.split(" | "))
        fact = f"is {_KINDS.get(given, given)}" if given else "is out of range"
        if limit and kinds == "str":
            fact, unit = "has the wrong length", "character" if limit == "1" else "characters"
            expected += f" of at {'least' if sign == '>=' else 'most'} {limit} {unit}"
        elif limit:
            expected += f" of at {'least' if sign == '>=' else 'most'} {limit.removesuffix('.0')}"
        return f"{field} {fact}: expected {expected}"
    if found := re.fullmatch(r"Object missing required field `(\w+)`", what):
        return f"{'.'.join((*parts, found[1]))} is missing"
    if found := re.fullmatch(r"Invalid (?:enum )?value (.+)", what):
        return f"{field} is {found[1]}, which is unknown"
    if what.startswith(("JSON is malformed", "Input data was truncated")):
        return "it is not JSON"
    if what == "Number out of range":
        return f"{field} is out of range"
    return f"{field}: {what[:1].lower()}{what[1:]}"


def _expected(type: inspect.Type) -> str:
    """Return in plain words what a field of a query may be."""
    match type:
        case inspect.UnionType(types=types):
            return ", ".join(_expected(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
            kind = "a whole number" if isinstance(type, inspect.IntType) else "a number"
            return f"{kind} {f'of at least {low:.0f}' if high is None else f'from {low:.0f} to {high:.0f}'}"
        case inspect.ListType(item_type=item):
            return _expected(item)
        case inspect.StrType(max_length=most):
            return f"one line of at most {most} characters"
    return "another value"


def say_json(message: object) -> Say:
    """Return a message as a text frame of JSON."""
    return Say(msgspec.json.encode(message).decode("utf-8"))


Action = Say | Open | Resume | Follow | Write | Do | Change | Report | Finish | Hangup


class Query(Protocol):
    """The query parameters of an address, or the fields of a form, as Starlette reads them."""

    def get(self, key: str, default: str) -> str:
        """Return the last value of a key."""

    def getlist(self, key: str) -> list[str]:
        """Return all values of a key."""


def read_query(query: Query, type: type[S]) -> S:
    """Convert the fields of a query or of a form to a struct; unknown and empty fields are ignored.

    Raises ConfigError, which names the field, for an invalid value.
    """
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(type):
        name = field.encode_name
        if found := [value for value in query.getlist(name) or query.getlist(name.removesuffix("[]")) if value]:
            # If one value is expected, the last one counts.
            value = found if field.default_factory is list else found[-1]
            try:
                values[field.name] = msgspec.convert(value, field.type, strict=False)
            except msgspec.ValidationError:
                expected = _expected(inspect.type_info(field.type))
                raise ConfigError(f"{name} is {found[-1]!r:.60}: expected {expected}") from None
    return type(**values)


class Adapter(Protocol):
    """One client's connection.

    The messages of one call (`Say`) are sent at once and in order. Its other actions are performed in order and wait
    while the session has no room; meanwhile no further message is read, but events may arrive.
    """

    # Whether a client may continue its session over another connection.
    resumable: ClassVar[bool] = False

    # How the connection is closed when the session has ended.
    hangup: Hangup = Hangup()

    # Seconds within which the client must send something; None: only the session's own idle timeout applies.
    timeout_s: float | None = None

    def begin(self) -> Sequence[Action]:
        """Handle an open connection. Most protocols wait for the client's first message."""
        return []

    def receive(self, message: str | bytes) -> Sequence[Action]:
        """Handle a text or binary frame. A StreamerError that this raises is passed to `refused`."""

    def on_event(self, event: Event) -> Sequence[Action]:
        """Handle an event of the session; the last one is `End`. Partials may be skipped for a newer one."""

    def refused(self, error: StreamerError) -> Sequence[Action]:
        """Handle the failure to open a session, the timeout of a silent client, or a stop without a session."""
        return [Hangup(error.close_code, one_line(str(error)))]

    def unchanged(self, error: StreamerError) -> Sequence[Action]:
        """Handle the refusal of a `Change`: the session keeps its options."""
        return []

    def stop(self, session: str, n_heard: int) -> Sequence[Action]:
        """Handle a stop of the daemon in mid-session: what was said becomes final, and `hangup` says why it ends.

        n_heard : of a client that may continue elsewhere, how many samples of each channel are in the session
        """
        self.hangup = STOPPED
        return [Finish()]

    def fail(self, error: Error) -> None:
        """Set `hangup` for a session that ends with a fatal error."""
        ended = {each.code: each.close_code for each in (IdleError, RoomTakenError)}
        code = ended.get(error.code, StreamerError.close_code)
        self.hangup = Hangup(code, one_line(f"{error.code}: {error.message}"))
