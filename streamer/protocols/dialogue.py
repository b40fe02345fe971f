"""What a protocol of others is to the server: a dialogue. Messages, events and the time go in, actions come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from streamer.errors import StreamerError
from streamer.events import Event
from streamer.protocols.native import Command, SessionOptions, StreamStart

# A flush stands at most so many seconds before the audio that was sent until then: a resampler holds some back, and the
# detector hears 32 ms at a time.
FLUSH_SKEW_S = 0.09


@dataclass(frozen=True, slots=True)
class Say:
    """Send a text frame."""

    text: str


@dataclass(frozen=True, slots=True)
class Open:
    """Open a session; what goes to one comes later. Another one may be opened when the last has ended."""

    start: StreamStart


@dataclass(frozen=True, slots=True)
class Hear:
    """Let the session hear audio, in the format that it was opened with, cut anywhere."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class Do:
    """Give the session a command, at the end of the audio so far."""

    command: Command


@dataclass(frozen=True, slots=True)
class Change:
    """Let the session go on with other options; all of them are replaced."""

    options: SessionOptions


@dataclass(frozen=True, slots=True)
class Finish:
    """Say that no more audio comes: what was said becomes final, then comes `End`."""


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the connection when everything before was sent; a session that has not ended is given up."""

    code: int = 1000
    reason: str = ""


def say_json(message: object) -> Say:
    """Return a message as a text frame of JSON."""
    return Say(msgspec.json.encode(message).decode("utf-8"))


Action = Say | Open | Hear | Do | Change | Finish | Hangup


class Query(Protocol):
    """The query of an address, as Starlette reads it."""

    def get(self, key: str, default: str) -> str:
        """Return the last value of a key."""

    def getlist(self, key: str) -> list[str]:
        """Return all values of a key."""


class Dialogue(Protocol):
    """One client's connection. `now_s` is of a clock that only goes forward.

    What one call says is sent at once and in order; the other actions are then done in order, and wait where the
    session has no room. Meanwhile no further message is read, but events may come.
    """

    @property
    def wake_s(self) -> float | None:
        """When `wake` is to be called, unless something comes before; None: never."""
        return None

    def begin(self, now_s: float) -> Sequence[Action]:
        """The connection is open. Most protocols say nothing before the client has."""
        return []

    def receive(self, message: str | bytes, now_s: float) -> Sequence[Action]:
        """The client has sent a text or a binary frame. Nothing it holds makes this raise."""

    def on_event(self, event: Event, now_s: float) -> Sequence[Action]:
        """The session tells something; `End` is the last of it. A newer partial may stand for older ones."""

    def refused(self, error: StreamerError, now_s: float) -> Sequence[Action]:
        """A session cannot be opened, or go on with the options that were asked for."""

    def wake(self, now_s: float) -> Sequence[Action]:
        """The time has come that `wake_s` named."""
        return []
