"""What the server's connections share: the parts of the program that it serves, and its own state."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from streamer.daemon.backend import RecordingQueue
from streamer.daemon.clients import ClientStreams
from streamer.history.writer import History
from streamer.server.access import Access
from streamer.server.limits import Limits
from streamer.server.metrics import ServerMetrics
from streamer.server.tokens import AccessToken
from streamer.server.ws import Close, Connection
from streamer.settings.table import ServerSettings

if TYPE_CHECKING:  # it loads the model's code, which a gateway does not need
    from streamer.daemon.own_input import OwnInput


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """An open WebSocket."""

    path: str
    caller: AccessToken
    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of the program that a server serves."""

    streams: ClientStreams

    # Returns what `/healthz` shows, with a `status` that is `ok` or not; and whether the program makes progress.
    health: Callable[[], Mapping[str, object]]
    is_live: Callable[[], bool] = lambda: True

    input: "OwnInput | None" = None
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

    # By the name of its session, how the newest connection of a client that sends audio is closed, once that is known.
    streaming: dict[str, asyncio.Future[Close]] = field(default_factory=dict)

    # Open WebSockets.
    sockets: dict["asyncio.Task[None]", OpenSocket] = field(default_factory=dict)
