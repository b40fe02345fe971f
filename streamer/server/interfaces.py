"""Interfaces between the server and the rest of the program, and what the server's connections share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from prometheus_client import CollectorRegistry

from streamer.engine.eventlog import EventLog
from streamer.events import Error
from streamer.history.history import History
from streamer.protocols.native import Command, SessionOptions, StreamStart
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.server.access import Access
from streamer.server.limits import Limits
from streamer.server.metrics import ServerMetrics
from streamer.server.tokens import AccessToken
from streamer.server.ws import Connection
from streamer.settings.table import ServerSettings


class InputControls(Protocol):
    """The daemon's own input, as clients control it. Nothing here waits; to repeat a command is harmless."""

    @property
    def paused(self) -> bool: ...

    def flush(self) -> None:
        """Make all speech so far final."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def clear(self) -> None:
        """Discard speech that is not final."""


class StreamSession(Protocol):
    """One client's session.

    Audio and commands take effect in the order of the calls, also if a caller's wait is cancelled.
    """

    @property
    def feed(self) -> EventLog:
        """The session's events, `ready` first."""

    @property
    def options(self) -> SessionOptions:
        """Options that the client has chosen."""

    async def write(self, data: bytes) -> None:
        """Write audio, waiting while the buffer is full; ignored after `finish`."""

    async def command(self, command: Command) -> None:
        """Execute a command at the end of the audio so far."""

    async def change(self, options: SessionOptions) -> None:
        """Use other options from the end of the audio so far.

        Raises UsageError, and changes nothing, if the model does not support them.
        """

    async def finish(self) -> None:
        """End the audio; return when everything final, and `end`, was published."""

    def report(self, error: Error) -> None:
        """Publish an `error` event in the session."""

    @property
    def outlives(self) -> bool:
        """Whether another daemon can continue the session when this one stops."""

    def go_on(self) -> int:
        """Discard audio that is not written yet; return the number of samples of each channel that are, at the
        client's rate. The client sends the rest again, over another connection.
        """

    def keep(self) -> None:
        """Keep the session for a client whose connection broke; abandon it if the client does not resume in time."""

    def abandon(self) -> None:
        """End the session without further text. Harmless the second time."""


class Streams(Protocol):
    """Opens clients' sessions. `tenant` is the name of the client's token, empty without one."""

    async def open(self, start: StreamStart, *, tenant: str = "") -> StreamSession:
        """Open a session. Raises BusyError if all slots are taken, UsageError if the model does not support it."""

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> StreamSession:
        """Return a kept session to its client, which has events up to number `after`.

        Raises UnknownSessionError if the tenant has no such session, BusyError if it cannot be resumed now.
        """

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """Abandon sessions that are kept for other tenants, whose tokens are no longer valid."""


class Transcription(Protocol):
    """The transcription of a recording. As a context it is closed at the end."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def duration_s(self) -> float:
        """Length of the audio in seconds; 0 before the first segment."""

    @property
    def language(self) -> str:
        """Language code; empty before the first segment, and without speech."""

    def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        """Yield segments as they become final; once.

        Raises AudioFileError without audio, ConfigError if the model does not support the options, BusyError without
        memory for the model, InferenceError, or StoppingError.
        """

    def close(self) -> None:
        """Cancel it unless it is over; harmless the second time."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class RecordingQueue(Protocol):
    """Transcribes whole recordings, one after another, with lower priority than live sessions."""

    def models(self) -> Sequence[ModelInfo]:
        """Return the models that a request may name, the daemon's own first. Reads directories, as `find` does."""

    def find(self, model: str) -> ModelInfo:
        """Return a model by name; empty, or a name of OpenAI's, is the daemon's own. Raises UnknownModelError."""

    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> Transcription:
        """Queue a file of audio, which must exist until the transcription is over or closed.

        Raises BusyError if the queue is full or the daemon's model is still loading, StoppingError, UnknownModelError.
        """


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """An open WebSocket."""

    path: str
    caller: AccessToken
    connection: Connection


class Holder(Protocol):
    """A connection that has a session."""

    async def give_way(self) -> None:
        """Leave the session to another connection; return when it is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of the program that a server serves."""

    streams: Streams

    # Returns what `/healthz` shows, with a `status` that is `ok` or not; and whether the program makes progress.
    health: Callable[[], Mapping[str, object]]
    is_live: Callable[[], bool] = lambda: True

    # Events of the daemon's own input, None without one; and the input, None before it begins.
    feed: EventLog | None = None
    input_now: Callable[[], InputControls | None] = lambda: None
    recordings: RecordingQueue | None = None
    history: History | None = None


@dataclass(slots=True, kw_only=True)
class Context:
    """State that all connections of a server share."""

    services: Services
    registry: CollectorRegistry
    metrics: ServerMetrics
    limits: Limits

    # What `Server.reload` replaces.
    settings: ServerSettings
    access: Access

    # Set when streams are to end, since the server will stop; set when it stops.
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    # The newest connection of each session that has one, by the session's name.
    connections: dict[str, Holder] = field(default_factory=dict)

    # Open WebSockets.
    sockets: dict["asyncio.Task[None]", OpenSocket] = field(default_factory=dict)
