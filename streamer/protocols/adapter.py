"""A protocol adapter: messages and events go in, actions come out. One instance serves one connection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from streamer.errors import ConfigError, IdleError, ProtocolError, StreamerError
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
    """Open a session, which all later actions are for. Another one may be opened when it has ended."""

    start: StreamStart


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with the session of an earlier connection."""

    request: StreamResume


@dataclass(frozen=True, slots=True)
class Follow:
    """Pass on the events of the daemon's own input behind event `after` of a session (see `EventLog.subscribe`)."""

    after: int | None
    session: str | None


@dataclass(frozen=True, slots=True)
class Write:
    """Write audio to the session, in the format that it was opened with, cut anywhere."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class Do:
    """Give the session a command, at the end of the audio so far."""

    command: Command


@dataclass(frozen=True, slots=True)
class Change:
    """Change options of the session, by their names in `SessionOptions`; the others stay."""

    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """Publish an `error` event in the session."""

    error: Error


@dataclass(frozen=True, slots=True)
class Finish:
    """End the session's audio: all its speech becomes final, then comes `End`."""


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the connection after everything before was sent; a session that has not ended is abandoned."""

    code: int = 1000
    reason: str = ""
    after_s: float = 0.0


def read_json(text: str | bytes, type: type[T], what: str, *, strict: bool = True) -> T:
    """Read a client's message. Raises ProtocolError, which names `what` it is not."""
    try:
        return msgspec.json.decode(text, type=type, strict=strict)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested thousands deep
        raise ProtocolError(f"{what}: {one_line(str(error)[:200])}") from None


def say_json(message: object) -> Say:
    """Return a message as a text frame of JSON."""
    return Say(msgspec.json.encode(message).decode("utf-8"))


Action = Say | Open | Resume | Follow | Write | Do | Change | Report | Finish | Hangup


class Query(Protocol):
    """The query of an address, as Starlette reads it."""

    def get(self, key: str, default: str) -> str:
        """Return the last value of a key."""

    def getlist(self, key: str) -> list[str]:
        """Return all values of a key."""


def read_query(query: Query, type: type[S]) -> S:
    """Read the fields of a query, or of a form, into a struct; unknown and empty ones are ignored.

    Raises ConfigError, which names a field with a value that it cannot have.
    """
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(type):
        name = field.encode_name
        if found := [value for value in query.getlist(name) or query.getlist(name.removesuffix("[]")) if value]:
            # Where one value is expected, the last counts. True and False is how older SDKs write booleans.
            value = found if field.default_factory is list else found[-1]
            try:
                values[field.name] = msgspec.convert(value, field.type, strict=False)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{name} is {found[-1]!r:.60}: {one_line(error)}") from None
    return type(**values)


class Adapter(Protocol):
    """One client's connection.

    What one call says is sent at once and in order; its other actions are done in order, and wait while the session
    has no room. Meanwhile no further message is read, but events may come.
    """

    # Whether a client whose connection broke may go on with its session over another one.
    resumable: ClassVar[bool] = False

    # How the connection is closed when the session has ended.
    hangup: Hangup = Hangup()

    # Seconds in which the client must send something; None: it may be silent for as long as the session takes that.
    timeout_s: float | None = None

    def begin(self) -> Sequence[Action]:
        """Handle an open connection. Most protocols wait for the client's first message."""
        return []

    def receive(self, message: str | bytes) -> Sequence[Action]:
        """Handle a text or a binary frame. A StreamerError that this raises is passed to `refused`."""

    def on_event(self, event: Event) -> Sequence[Action]:
        """Handle an event of the session; `End` is the last of it. A newer partial may stand for older ones."""

    def refused(self, error: StreamerError) -> Sequence[Action]:
        """Handle that there is no session: it cannot be opened, the client says nothing, or the daemon stops."""
        return [Hangup(error.close_code, one_line(str(error)))]

    def unchanged(self, error: StreamerError) -> Sequence[Action]:
        """Handle that the session goes on with the options that it had."""
        return []

    def fail(self, error: Error) -> None:
        """Note how the connection is closed when the session has ended with a fatal error."""
        code = IdleError.close_code if error.code == IdleError.code else StreamerError.close_code
        self.hangup = Hangup(code, one_line(f"{error.code}: {error.message}"))
