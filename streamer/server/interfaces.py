"""What the server needs from the rest of the program, and the message that opens a client's stream."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

from streamer.errors import ProtocolError
from streamer.events import Event

StreamFormat = Literal["s16le", "f32le"]
StreamTask = Literal["transcribe", "translate"]

MIN_SAMPLE_RATE = 4_000  # samples a second; below it there is no speech to hear
MAX_SAMPLE_RATE = 384_000  # samples a second; the fastest sound cards
MAX_CHANNELS = 32  # as many as large audio interfaces have


class Subscription(Protocol):
    """What a new subscriber missed, oldest first, and how it leaves (`cancel` may be called again)."""

    @property
    def backlog(self) -> Sequence[Event]: ...

    @property
    def cancel(self) -> Callable[[], None]: ...


class Feed(Protocol):
    """The events of one session."""

    def subscribe(
        self, listener: Callable[[Event], None], *, after: int | None = None, session: str | None = None
    ) -> Subscription:
        """Call `listener`, from any thread, with every event later than the backlog that is returned."""
        ...


class ClientStream(Protocol):
    """One client's audio on its way to text."""

    @property
    def feed(self) -> Feed:
        """The session's events, `ready` first."""
        ...

    async def write(self, data: bytes) -> None:
        """Take audio in, waiting while the buffer is full.

        Raises ProtocolError where the bytes are not whole samples or not numbers.
        """
        ...

    async def finish(self) -> None:
        """Say that no more audio comes; return when everything final, and `end`, was published."""
        ...

    def report(self, code: str, message: str, fatal: bool) -> None:
        """Publish an `error` event in the session."""
        ...

    def abandon(self) -> None:
        """Say that the client is gone: stop, publish nothing more that matters. Harmless the second time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """How a client's audio is written; its first text frame, `{"type": "start", ...}`, all of it optional."""

    type: ClassVar[str] = "start"

    # Sample format: 16-bit integers or 32-bit floats (-1 to 1), little-endian, channels interleaved.
    format: StreamFormat = "s16le"

    # Samples a second and channel, 4000 to 384000.
    sample_rate: int = 16_000

    # Channels, 1 to 32; they are mixed to one.
    channels: int = 1

    # Language code such as `en`; None: what the daemon is set to.
    language: str | None = None

    # Whether to write what is said or its English translation; None: what the daemon is set to.
    task: StreamTask | None = None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the message.

        Raises ProtocolError where it is not one, has a key that is not known, or a value out of range.
        """
        data = parse_object(text)
        if data.get("type") != cls.type:
            raise ProtocolError(
                f"message type is {data.get('type')!r:.60}: expected 'start' before any audio, or binary audio frames"
            )
        known = ("type", *cls.__dataclass_fields__)
        unknown = [key for key in data if key not in known]
        if unknown:
            raise ProtocolError(
                f"start message has unknown {'keys' if len(unknown) > 1 else 'key'} {', '.join(unknown):.120}:"
                f" expected only {', '.join(known)}"
            )
        start = cls(**{key: value for key, value in data.items() if key != "type"})
        start._check()
        return start

    def _check(self) -> None:
        if self.format not in get_args(StreamFormat):
            raise _bad("format", self.format, " or ".join(get_args(StreamFormat)))
        _check_range("sample_rate", self.sample_rate, MIN_SAMPLE_RATE, MAX_SAMPLE_RATE)
        _check_range("channels", self.channels, 1, MAX_CHANNELS)
        if self.language is not None and not (isinstance(self.language, str) and 0 < len(self.language) <= 32):
            raise _bad("language", self.language, "a language code such as 'en', or none at all")
        if self.task is not None and self.task not in get_args(StreamTask):
            raise _bad("task", self.task, " or ".join(get_args(StreamTask)))


class Streams(Protocol):
    """Where clients' streams are opened."""

    def open(self, start: StreamStart) -> ClientStream:
        """Open a session for one client.

        Raises BusyError where there is no room, UsageError where it asks for what the model cannot do.
        """
        ...


def parse_object(text: str) -> dict[str, Any]:
    """Read a JSON object. Raises ProtocolError where the text is anything else."""
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


def _check_range(key: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _bad(key, value, f"a whole number from {low} to {high}")


def _bad(key: str, value: object, expected: str) -> ProtocolError:
    return ProtocolError(f"start message has {key} {value!r:.60}: expected {expected}")
