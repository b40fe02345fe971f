"""Our own protocol, version 1, which sends events as they are: `/v1/captions` to read, `/v1/stream` to send audio.

It is described in docs/protocol.md; `native` reads the messages.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from streamer.errors import BusyError, ProtocolError, StoppingError, StreamerError
from streamer.events import End, Error, Event
from streamer.protocols.adapter import (
    Action,
    Adapter,
    Change,
    Do,
    Finish,
    Follow,
    Hangup,
    Open,
    Query,
    Report,
    Resume,
    Say,
    Write,
)
from streamer.protocols.native import ROOM_NAME, Kind, StreamResume, StreamStart, is_room, parse_message

MAX_BAD_MESSAGES = 100  # on one connection; then the stream ends
MAX_IGNORED_BYTES = 4096  # of a subscriber's message, which is ignored

# A sequence number in a query.
_SEQ = re.compile(r"\d{1,15}", re.ASCII)


class _Events(Adapter):
    """Sends a session's events as they are."""

    def on_event(self, event: Event) -> Sequence[Action]:
        if isinstance(event, Error) and event.fatal:
            self.fail(event)
            self.hangup = Hangup(1003 if event.code == ProtocolError.code else self.hangup.code, event.code)
        said = Say(event.to_json())
        return [said, self.hangup] if isinstance(event, End) else [said]


class Captions(_Events):
    """A subscriber of the daemon's own captions, or of a room's."""

    def __init__(self, query: Query) -> None:
        """Follow what the address names, from the event that it names. Raises ProtocolError."""
        self._following = _following(query)

    def begin(self) -> Sequence[Action]:
        return [self._following]

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if len(message) > MAX_IGNORED_BYTES:
            return [Hangup(1009, "subscribers only read: send audio to /v1/stream")]
        return []


class Stream(_Events):
    """A client's audio in, its session's events out; the session may continue over another connection."""

    resumable = True

    def __init__(self) -> None:
        # Whether a session was requested, and whether its audio is complete.
        self._opened = self._finished = False
        self._n_bad = 0

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if self._finished:
            return []
        try:
            kind, values = parse_message(message) if isinstance(message, str) else (None, {})
            if not self._opened:
                return self._open(message, kind, values)
            return [Write(message)] if isinstance(message, bytes) else self._command(kind, values)
        except ProtocolError as error:
            if not self._opened:
                raise
            return self.unchanged(error)

    def refused(self, error: StreamerError) -> Sequence[Action]:
        again = isinstance(error, BusyError | StoppingError)  # the reason says when the client may try again
        event = Error(seq=1, code=error.code, message=str(error), fatal=True)
        return [Say(event.to_json()), Hangup(error.close_code, f"{error.code}: {error}" if again else error.code)]

    def stop(self, session: str, n_heard: int) -> Sequence[Action]:
        text = f"the daemon stops: the first {n_heard} samples are made final; send the rest as a new stream"
        error = Error(code=StoppingError.code, message=text, fatal=False, heard_samples=n_heard)
        self.hangup = Hangup(1001, f"the daemon stops: {n_heard} samples of session {session} were heard")
        return [Report(error), Finish()]

    def unchanged(self, error: StreamerError) -> Sequence[Action]:
        self._n_bad += 1
        if self._n_bad < MAX_BAD_MESSAGES:
            return [Report(Error(code=error.code, message=str(error), fatal=False))]
        self._finished = True
        text = f"{error} (bad message number {self._n_bad}: the stream ends)"
        return [Report(Error(code=ProtocolError.code, message=text, fatal=True)), Finish()]

    def _open(self, message: str | bytes, kind: Kind | None, values: Mapping[str, Any]) -> Sequence[Action]:
        self._opened = True
        if kind == "start":
            return [Open(StreamStart(**values))]
        if kind == "resume" and values:
            return [Resume(StreamResume(**values))]
        first = [Write(message)] if isinstance(message, bytes) else self._command(kind, values)
        return [Open(StreamStart()), *first]

    def _command(self, kind: Kind | None, values: Mapping[str, Any]) -> Sequence[Action]:
        match kind:
            case "finish":
                self._finished = True
                return [Finish()]
            case "start":
                raise ProtocolError("start message in mid-stream: expected it first; send set to change options")
            case "resume" if values:
                raise ProtocolError("resume message with a session in mid-stream: expected it first, instead of start")
            case "set":
                return [Change(values)]
            case None:
                return []
        return [Do(kind)]


def _following(query: Query) -> Follow:
    """Return what a client asks for in its address. Raises ProtocolError."""
    after = query.getlist("after")[-1:]
    if after and _SEQ.fullmatch(after[0]) is None:
        raise ProtocolError(
            f"after is {after[0]!r:.60}: expected the seq of the last event received, a whole number, 0 for all"
        )
    room = query.get("room", "")
    if not is_room(room):
        raise ProtocolError(f"room is {room!r:.80}: expected {ROOM_NAME}")
    return Follow(int(after[0]) if after else None, query.get("session", "") or None, room)
