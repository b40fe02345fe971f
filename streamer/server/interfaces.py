"""What the server needs from the rest of the program."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from prometheus_client import CollectorRegistry

from streamer.events import Error
from streamer.protocols.native import Command, SessionOptions, StreamStart
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.server.access import Access
from streamer.server.history import History
from streamer.server.limits import Limits
from streamer.server.metrics import ServerMetrics
from streamer.server.tokens import Token
from streamer.server.ws import Connection
from streamer.settings.table import ServerSettings
from streamer.stream.eventlog import EventLog


class Input(Protocol):
    """The daemon's own input, as far as clients command it. Nothing here waits, or minds being said twice."""

    @property
    def paused(self) -> bool:
        """Whether what is heard is left out."""

    def flush(self) -> None:
        """Make final what was said so far."""

    def pause(self) -> None:
        """Leave out what is heard from now on."""

    def resume(self) -> None:
        """Transcribe what is heard from now on."""

    def clear(self) -> None:
        """Forget what was said and is not final."""


class ClientStream(Protocol):
    """One client's audio on its way to text.

    Audio and commands take effect in the order in which they come, also those of which the waiting was cancelled.
    """

    @property
    def feed(self) -> EventLog:
        """The session's events, `ready` first."""

    @property
    def options(self) -> SessionOptions:
        """What the client has chosen."""

    async def write(self, data: bytes) -> None:
        """Take audio in, waiting while the buffer is full. Nothing happens where the audio is complete."""

    async def command(self, command: Command) -> None:
        """Do what the client says, at the end of the audio so far."""

    async def change(self, options: SessionOptions) -> None:
        """Go on with other options from the end of the audio so far.

        Raises UsageError, and changes nothing, where the model cannot do what they ask for.
        """

    async def finish(self) -> None:
        """Say that no more audio comes; return when everything final, and `end`, was published."""

    def report(self, error: Error) -> None:
        """Publish an `error` event in the session."""

    @property
    def outlives(self) -> bool:
        """Whether another daemon can go on with the session when this one stops."""

    def go_on(self) -> int:
        """Forget what was not taken in yet; return how many samples of the audio, of all channels together one, at the
        client's own rate, were. The client sends the rest again, over another connection.
        """

    def keep(self) -> None:
        """Say that the connection broke: the client may come back for a while, then the stream is abandoned."""

    def abandon(self) -> None:
        """Say that the client is gone: stop, publish nothing more that matters. Harmless the second time."""


class Streams(Protocol):
    """Where clients' streams are opened."""

    async def open(self, start: StreamStart, *, tenant: str = "") -> ClientStream:
        """Open a session for one client, who showed the token of a name (empty: none).

        Raises BusyError where there is no room, UsageError where it asks for what the model cannot do.
        """

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> ClientStream:
        """Return the stream of that session, which is kept no more, to a client that has events up to a number.

        Raises UnknownSessionError if there is none that was opened with the token of that name, BusyError if it cannot
        be gone on with for now.
        """

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """Abandon the streams that are kept for clients with tokens of other names: these clients cannot come back."""


class Transcription(Protocol):
    """A recording on its way to text. As a context it is closed at the end."""

    @property
    def model(self) -> str:
        """Name of the model that is used."""

    @property
    def duration_s(self) -> float:
        """Length of the audio in seconds: known with the first segment, and at the end; 0 before."""

    @property
    def language(self) -> str:
        """Language code: known with the first segment, and at the end, unless nobody speaks; empty before."""

    @property
    def work_s(self) -> float:
        """Seconds that computing has taken, without the queue, loading the model, and giving way to live sessions."""

    def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        """Yield segments as they become final; once.

        Raises AudioFileError where there is no audio, ConfigError where the model cannot do what the options say,
        BusyError where there is no memory for the model, InferenceError, or StoppingError.
        """

    def close(self) -> None:
        """End it where it is not over; harmless the second time."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Recordings(Protocol):
    """Transcribes whole recordings, one after another, beside the live sessions, which go first."""

    def models(self) -> Sequence[ModelInfo]:
        """Return the models that a request may name, the daemon's own first. It reads directories, as `find` does."""

    def find(self, model: str) -> ModelInfo:
        """Return a model by a name that a request gives; empty, or one of OpenAI's, is the daemon's own.

        Raises UnknownModelError.
        """

    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> Transcription:
        """Put a file of audio into the queue; it must stay until the transcription is over or closed.

        Raises BusyError where the queue is full or the daemon's model still loads, StoppingError, UnknownModelError.
        """


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """A WebSocket that is served."""

    path: str
    caller: Token
    connection: Connection


class Holder(Protocol):
    """A connection that has a session."""

    async def give_way(self) -> None:
        """Leave the session to another connection; return when it is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a server serves. Nothing of it is read before a client asks."""

    streams: Streams

    # What `/healthz` shows, with a `status` that is `ok` or something else; whether the program makes progress.
    health: Callable[[], Mapping[str, object]]
    is_live: Callable[[], bool] = lambda: True

    # The events of the daemon's own input, None without one; and what commands to it go to, None before it begins.
    feed: EventLog | None = None
    input_now: Callable[[], Input | None] = lambda: None

    # None: no recordings are transcribed; nothing is kept.
    recordings: Recordings | None = None
    history: History | None = None


@dataclass(slots=True, kw_only=True)
class Context:
    """What all connections of a server share."""

    services: Services
    registry: CollectorRegistry
    metrics: ServerMetrics
    limits: Limits

    # What `Server.reload` replaces.
    settings: ServerSettings
    access: Access

    # Set when streams are to end, since the server will stop; and when it stops.
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    # The newest connection of each session that has one, by the session's name.
    connections: dict[str, Holder] = field(default_factory=dict)

    # WebSockets that are open.
    sockets: dict["asyncio.Task[None]", OpenSocket] = field(default_factory=dict)
