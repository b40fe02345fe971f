"""The server: one port for the captions page, health, metrics and both WebSocket endpoints."""

import asyncio
import contextlib
import errno
import logging
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import State

from streamer.errors import ConfigError, PortInUseError
from streamer.server.access import Access, is_wildcard
from streamer.server.http import HttpFront, check_upgrade, query_value, respond_error
from streamer.server.interfaces import Input, Streams
from streamer.server.metrics import ServerMetrics
from streamer.server.stream import StreamEndpoint
from streamer.server.ws import (
    CLOSE_TIMEOUT_S,
    KEEPALIVE_S,
    Close,
    Context,
    close_connection,
    serve_captions,
)
from streamer.stream.eventlog import EventLog

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 2**20  # of one frame; 5.5 s of stereo float audio at 24 kHz, far more than a live client sends
MAX_QUEUED_FRAMES = 8  # received but not handled yet; then the network is held back
SEND_BUFFER_BYTES = 64 * 1024  # in the kernel: what is in there can no longer be replaced by something newer
ABORT_TIMEOUT_S = 2.0  # for a connection that was cut to be gone

CAPTIONS_PATH = "/v1/captions"
STREAM_PATH = "/v1/stream"

# A sequence number as `after` may give it.
_SEQ = re.compile(r"\d{1,15}", re.ASCII)


class Server:
    """Serves the events of the daemon's own input and clients' streams.

    Everything it serves comes in as an argument; nothing of it is read before a client asks.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        token: str,
        origins: Collection[str],
        max_subscribers: int,
        queue_events: int,
        feed: EventLog | None,
        input_now: Callable[[], Input | None],
        streams: Streams,
        health: Callable[[], Mapping[str, object]],
        registry: CollectorRegistry,
    ) -> None:
        """Prepare a server for `host` and `port` (0: any free one).

        `feed` has the events of the daemon's own input, None where it has none; `input_now` returns what commands to
        it go to, None while it has not begun. `health` returns what `/healthz` shows, with a `status` that is `ok` or
        something else. `max_subscribers` holds for each endpoint.

        Raises ConfigError where it would be open to a network without a token, or an origin is not one.
        """
        self._access = Access(host=host.strip("[]"), token=token, origins=tuple(origins))
        self._access.check_settings()
        self._port = port
        self._max_subscribers = max_subscribers
        self._feed = feed
        self._context = Context(
            queue_events=queue_events,
            stopping=asyncio.Event(),
            metrics=ServerMetrics(registry),
        )
        # What serves the WebSockets, by their paths: here is the place for another protocol.
        self._endpoints: dict[str, Callable[..., Awaitable[None]]] = {
            CAPTIONS_PATH: self._serve_captions,
            STREAM_PATH: StreamEndpoint(self._context, streams).serve,
        }
        self._http = HttpFront(self._access, health, registry, input_now if feed is not None else None, self._endpoints)
        # One a listening socket: `localhost` has an IPv4 and an IPv6 address.
        self._servers: list[WebSocketServer] = []
        # All TCP connections, also those that have not said yet what they want.
        self._connections: set[ServerConnection] = set()
        # What serves the WebSockets that are open, and on which path.
        self._handlers: dict[asyncio.Task[None], str] = {}

    async def start(self) -> str:
        """Listen; return the address of the captions page, such as `http://127.0.0.1:8765/`.

        Raises PortInUseError where the port is taken, ConfigError where the host cannot be listened on.
        """
        host = self._access.host
        sockets = await _listen(host, self._port)
        for sock in sockets:
            self._servers.append(
                await serve(
                    self._handle,
                    sock=sock,
                    process_request=self._process_request,
                    create_connection=_tracked(self._connections),
                    # Captions are short and must not wait for a compressor; and each connection would hold its memory.
                    compression=None,
                    server_header="streamer",
                    ping_interval=KEEPALIVE_S,
                    ping_timeout=KEEPALIVE_S,
                    close_timeout=CLOSE_TIMEOUT_S,
                    max_size=MAX_MESSAGE_BYTES,
                    max_queue=MAX_QUEUED_FRAMES,
                    logger=_library_logger(),
                )
            )
        return _url(host, sockets[0].getsockname()[1])

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Take no more connections, flush the open ones, close them with code 1001, and return when all are gone.

        A client's stream is finished first. What is not done after `timeout_s` is cut off.
        """
        self._context.stopping.set()
        for server in self._servers:
            server.close(close_connections=False)
        if self._handlers:
            _, late = await asyncio.wait(list(self._handlers), timeout=timeout_s)
            for task in late:
                task.cancel()
        for connection in list(self._connections):
            if connection.state is not State.CLOSED:
                connection.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                for server in self._servers:
                    await server.wait_closed()
        self._servers.clear()

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        response = self._http.answer(request) or self._check_socket(request) or check_upgrade(request)
        if response is not None:
            return response
        sock = connection.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if urlsplit(request.path).path != CAPTIONS_PATH:
            connection.ping_interval = None  # who sends audio has a keepalive of its own, see ws.receive
        return None

    def _check_socket(self, request: Request) -> Response | None:
        url = urlsplit(request.path)
        if url.path == CAPTIONS_PATH and self._feed is None:
            return respond_error(
                HTTPStatus.NOT_FOUND,
                f"the daemon runs without an input of its own, there are no captions: send audio to {STREAM_PATH},"
                " or start it with --input mic or a file",
            )
        after = query_value(url.query, "after")
        if after is not None and _SEQ.fullmatch(after) is None:
            return respond_error(
                HTTPStatus.BAD_REQUEST,
                f"after is {after!r:.60}: expected the seq of the last event received, a whole number, 0 for all",
            )
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        url = urlsplit(connection.request.path)
        if sum(path == url.path for path in self._handlers.values()) >= self._max_subscribers:
            reason = f"no room: {self._max_subscribers} clients are connected, try again later"
            await close_connection(connection, Close(CloseCode.TRY_AGAIN_LATER, reason))
            return
        task = asyncio.current_task()
        assert task is not None
        self._handlers[task] = url.path
        logger.debug("%s connects to %s", connection.remote_address, url.path)
        text = query_value(url.query, "after")
        after = None if text is None else int(text)
        session = query_value(url.query, "session") or None
        try:
            await self._endpoints[url.path](connection, after=after, session=session)
        finally:
            del self._handlers[task]
            logger.debug("%s left %s", connection.remote_address, url.path)

    async def _serve_captions(self, connection: ServerConnection, *, after: int | None, session: str | None) -> None:
        assert self._feed is not None
        with self._context.metrics.subscribers.track_inprogress():
            await serve_captions(connection, self._context, self._feed, after=after, session=session)


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Bind every address of `host` to one port; the first decides which where `port` is 0."""
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"server.host {host!r:.100} cannot be resolved ({error}): expected a name or address of this machine,"
            " such as 127.0.0.1"
        ) from None
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in infos):
        wanted = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_bind(family, (address[0], wanted, *address[2:])))
        except OSError as error:
            logger.debug("not listening on %s: %s", address[0], error)
            refused = error
            absent = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # such as ::1 where there is no IPv6
            if absent or (sockets and port == 0):
                continue
            for sock in sockets:
                sock.close()
            sockets.clear()
            break
    if sockets:
        return sockets
    if refused is not None and refused.errno == errno.EADDRINUSE:
        raise PortInUseError(host, port)
    reason = refused.strerror if refused is not None else "it has no address"
    raise ConfigError(
        f"cannot listen on {host} port {port} ({reason}): expected an address of this machine in server.host"
        " and a port that programs may use, 1024 or above, in server.port"
    )


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(100)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _url(host: str, port: int) -> str:
    name = host
    if is_wildcard(host):
        name = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def _tracked(connections: set[ServerConnection]) -> type[ServerConnection]:
    """Return a connection class that keeps account of itself in `connections`, and that cannot linger."""
    # Those that will be cut off.
    closing: set[ServerConnection] = set()

    class TrackedConnection(ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connections.add(self)
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # The library closes a connection that breaks the framing, then waits for the client to hang up. One that
            # does not is cut off.
            if self.state is State.CLOSING and self not in closing:
                closing.add(self)
                self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(self)
            closing.discard(self)
            super().connection_lost(exc)

    return TrackedConnection


def _library_logger() -> logging.Logger:
    """Return the logger for the WebSocket library: its own trouble, not every visitor's."""
    library_logger = logging.getLogger("streamer.server.websockets")
    library_logger.setLevel(logging.WARNING)
    library_logger.addFilter(_is_our_trouble)
    return library_logger


def _is_our_trouble(record: logging.LogRecord) -> bool:
    if record.msg == "opening handshake failed":  # a port scanner, or a browser's idle connection
        logger.debug("a client did not complete a request: %s", record.exc_info[1] if record.exc_info else "")
        return False
    return True
