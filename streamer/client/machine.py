"""The protocol machine of our clients: what a client does next, over one connection after another.

TRANSITIONS is the table in docs/protocol.md, *Writing a client*. `server/static/client.js` follows the same one.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Literal

from websockets.asyncio.client import ClientConnection

from streamer import errors
from streamer.client.connection import KEEPALIVE_S, DaemonAddress, GoneError, open_connection, receive
from streamer.errors import StreamerError
from streamer.events import End, Error, Event, Resumed
from streamer.outside import one_line

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.25  # before the first attempt to reconnect; doubled after each failure
MAX_DELAY_S = 10.0

State = Literal["connecting", "starting", "resuming", "open", "waiting", "ended", "failed", "closed"]
Input = (
    Literal["opened", "start", "resume", "resumed", "event", "end", "stopped", "forgotten"]
    | Literal["gone", "refused", "retry", "stop"]
)

_LEAVE: Mapping[Input, State] = {"gone": "waiting", "refused": "failed", "stop": "closed"}
_READ: Mapping[Input, State] = {**_LEAVE, "event": "open", "end": "ended", "stopped": "waiting"}

# The next state, by the present one and what happens.
TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    "connecting": {**_LEAVE, "opened": "open", "start": "starting", "resume": "resuming"},
    "starting": _READ,
    "resuming": {**_READ, "event": "resuming", "resumed": "open", "forgotten": "connecting"},
    "open": {**_READ, "resumed": "open"},
    "waiting": {"retry": "connecting", "stop": "closed"},
    "ended": {"retry": "connecting"},
    "failed": {"retry": "connecting"},
    "closed": {},
}
_CONNECTED = ("starting", "resuming", "open")

# Errors that a program may want to distinguish, by their codes.
_ERRORS = {
    cls.code: cls
    for cls in (
        *(errors.BusyError, errors.StoppingError, errors.IdleError),
        *(errors.ConfigError, errors.ProtocolError, errors.UnknownSessionError),
    )
}


class Client:
    """A client that reads the captions of a daemon's own input. A subclass sends audio, too."""

    # Seconds within which a daemon must answer a ping.
    answer_s = KEEPALIVE_S

    def __init__(self, address: DaemonAddress, on_notice: Callable[[str], None], wait_s: float | None = None) -> None:
        """Prepare; `events` connects.

        on_notice : called with a line when the daemon goes away, and when it is back
        wait_s : how long it may be away, at the start as well; None: not at all at the start, later without limit
        """
        self.address = address
        self.on_notice = on_notice
        self.state: State = "connecting"
        # Why it failed, or why its program stopped it; None: there is no error.
        self.error: Exception | None = None
        # Session and number of the newest event.
        self.session, self.seq = "", 0
        self._wait_s = wait_s
        self._delay_s = FIRST_DELAY_S
        # Whether it ever was open; when the daemon went away (monotonic), None while it is there.
        self._known = False
        self._away_since_s: float | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield each event once, until the end. Raises the error with which the client fails."""
        try:
            while "stop" in TRANSITIONS[self.state]:
                if self.state == "waiting":
                    await asyncio.sleep(self.pause_s())
                    self.move("retry")
                connection = await open_connection(self.address, self.query(), self.answer_s)
                if isinstance(connection, StreamerError):
                    self.lose(connection)
                    continue
                try:
                    self.greet(connection)
                    while self.state in _CONNECTED:
                        found = await receive(self.address, connection)
                        if self.state == "closed":
                            break
                        if isinstance(found, StreamerError):
                            self.lose(found)
                        elif self.is_new(found) and (event := self.take(found)) is not None:
                            yield event
                finally:
                    await self.leave(connection)
        finally:
            self.stop()
        if self.error is not None:
            raise self.error

    def move(self, input: Input) -> None:
        """Go to the next state. What the present one does not know, such as a misplaced `resumed`, changes nothing."""
        after = TRANSITIONS[self.state].get(input)
        if after is None:
            return
        logger.debug("%s: %s, %s: %s", self.address, self.state, input, after)
        self.state = after
        if input in ("event", "resumed"):  # a connection alone may still be refused
            self._delay_s = FIRST_DELAY_S
        if self.state == "open":
            if self._away_since_s is not None:
                self.on_notice(f"{self.address} is back")
            self._known, self._away_since_s = True, None

    def stop(self, error: Exception | None = None) -> None:
        """Leave before the end: because the program does, or its audio has failed."""
        if "stop" in TRANSITIONS[self.state]:
            self.error = error
            self.move("stop")

    def is_new(self, event: Event) -> bool:
        """Advance to an event of the session; return whether it was not there before."""
        if isinstance(event, Resumed) or not event.session:
            return True
        if event.session == self.session and event.seq <= self.seq:
            # A gateway's errors about a session have no number of their own.
            return isinstance(event, Error) and not event.fatal and event.seq == self.seq
        self.session, self.seq = event.session, event.seq
        return True

    def take(self, event: Event) -> Event | None:
        """Move on a new event. Returns it if it is for the program."""
        if isinstance(event, Resumed):
            self.move("resumed")
        elif isinstance(event, Error) and not event.session:
            self.lose(error_of(event))
        else:
            self.move("end" if isinstance(event, End) else "event")
            return event
        return None

    def lose(self, error: Exception, input: Literal["gone", "stopped"] = "gone") -> None:
        """Move on the loss of the connection, and report it; a refusal, or a wait for too long, is the end."""
        if self.error is None and isinstance(error, GoneError | errors.BusyError | errors.StoppingError):
            reported, now_s = self._away_since_s is not None, time.monotonic()
            self._away_since_s = self._away_since_s or now_s
            patience_s = self._wait_s if self._wait_s is not None else math.inf if self._known else 0.0
            if now_s - self._away_since_s < patience_s:
                if not reported:
                    how = "went away" if self._known else "is not there"
                    reason = error.reason if isinstance(error, GoneError) else error
                    self.on_notice(f"{self.address} {how} ({reason}): waiting for it to come back")
                self.move(input)
                return
        self.error = self.error or error
        self.move("refused")

    def pause_s(self) -> float:
        """Return how long to wait before the next attempt to connect."""
        delay_s, self._delay_s = self._delay_s, min(MAX_DELAY_S, 2 * self._delay_s)
        # Jitter, so that clients of one daemon do not all reconnect at the same moment.
        return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def query(self) -> dict[str, Any]:
        """Return the query of the next connection's address."""
        return {"after": self.seq, "session": self.session} if self.seq else {}

    def greet(self, connection: ClientConnection) -> None:
        """Begin to use a new connection."""
        self.move("opened")

    async def leave(self, connection: ClientConnection) -> None:
        """Close a connection, if it is still open, with the code that gives up a stream."""
        await connection.close()


def error_of(event: Error) -> StreamerError:
    """Return the error that a daemon's `error` is for a program."""
    return _ERRORS.get(event.code, errors.PeerError)(f"{one_line(event.message):.500}")
