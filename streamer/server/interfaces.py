"""What the server needs from the rest of the program."""

from typing import Protocol

from streamer.server.messages import Command, SessionOptions, StreamStart
from streamer.stream.eventlog import EventLog


class Input(Protocol):
    """The daemon's own input, as far as clients command it. Nothing here waits, or minds being said twice."""

    @property
    def paused(self) -> bool:
        """Whether what is heard is left out."""
        ...

    def flush(self) -> None:
        """Make final what was said so far."""
        ...

    def pause(self) -> None:
        """Leave out what is heard from now on."""
        ...

    def resume(self) -> None:
        """Transcribe what is heard from now on."""
        ...

    def clear(self) -> None:
        """Forget what was said and is not final."""
        ...


class ClientStream(Protocol):
    """One client's audio on its way to text.

    Audio and commands take effect in the order in which they come, also those of which the waiting was cancelled.
    """

    @property
    def feed(self) -> EventLog:
        """The session's events, `ready` first."""
        ...

    @property
    def options(self) -> SessionOptions:
        """What the client has chosen."""
        ...

    @property
    def complete(self) -> bool:
        """Whether `finish` was called."""
        ...

    async def write(self, data: bytes) -> None:
        """Take audio in, waiting while the buffer is full."""
        ...

    async def command(self, command: Command) -> None:
        """Do what the client says, at the end of the audio so far."""
        ...

    async def change(self, options: SessionOptions) -> None:
        """Go on with other options from the end of the audio so far.

        Raises UsageError, and changes nothing, where the model cannot do what they ask for.
        """
        ...

    async def finish(self) -> None:
        """Say that no more audio comes; return when everything final, and `end`, was published."""
        ...

    def report(self, code: str, message: str, fatal: bool) -> None:
        """Publish an `error` event in the session."""
        ...

    def go_on(self) -> int:
        """Say that the client sends over a new connection; return how many samples of its audio, of all channels
        together one, at its own rate, were taken in.
        """
        ...

    def keep(self) -> None:
        """Say that the connection broke: the client may come back for a while, then the stream is abandoned."""
        ...

    def abandon(self) -> None:
        """Say that the client is gone: stop, publish nothing more that matters. Harmless the second time."""
        ...


class Streams(Protocol):
    """Where clients' streams are opened."""

    def open(self, start: StreamStart) -> ClientStream:
        """Open a session for one client.

        Raises BusyError where there is no room, UsageError where it asks for what the model cannot do.
        """
        ...

    def resume(self, session: str) -> ClientStream:
        """Return the stream of that session, which is kept no more.

        Raises UnknownSessionError where there is none.
        """
        ...
