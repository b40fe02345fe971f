"""The server: one port for the pages, health, metrics, recordings and WebSockets."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState
from websockets.frames import CloseCode

from streamer.outside import is_loopback
from streamer.server import connection
from streamer.server.access import Access
from streamer.server.connection import CLOSE_TIMEOUT_S, MAX_MESSAGE_BYTES, Connection, answering
from streamer.server.context import Context, Services
from streamer.server.limits import Limits
from streamer.server.metrics import ServerMetrics
from streamer.server.routes import all_sockets, make_app
from streamer.server.sockets import BACKLOG, UnixSocket, listen, url
from streamer.server.ws import Close
from streamer.server.wyoming import WyomingServer
from streamer.settings.table import ServerSettings

if TYPE_CHECKING:
    from streamer.server.tls import Tls

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 1.0  # for requests that are being answered when the daemon stops
ABORT_TIMEOUT_S = 2.0  # for a connection that was cut to be gone
TOKENS_S = 1.0  # between two checks for revoked tokens


class Server:
    """Serves the events of the daemon's own input, clients' streams, and recordings."""

    def __init__(
        self,
        settings: ServerSettings,
        services: Services,
        registry: CollectorRegistry,
        default_token_file: Path | None = None,
        passed: Sequence[socket.socket] = (),
    ) -> None:
        """Prepare a server.

        default_token_file : read if the settings name none, and it exists
        passed : listening sockets, instead of an address in the settings

        Raises ConfigError if it would be open to a network without a token, or an origin is malformed.
        """
        self._default_token_file = default_token_file
        self._passed = passed
        settings = self._as_passed(settings)
        context = self._context = Context(
            services=services,
            registry=registry,
            metrics=ServerMetrics(registry),
            limits=Limits(settings.max_connections, settings.max_connections_per_address),
            settings=settings,
            access=Access.of(settings, default_token_file),
        )
        self._state = ServerState()
        self._config = uvicorn.Config(
            answering(make_app(context)),
            http="h11",
            ws="websockets-sansio",  # it waits while a client does not read, and does not read while one waits
            # Captions are short and must not wait for a compressor; and each connection would need its memory.
            ws_per_message_deflate=False,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=connection.KEEPALIVE_S,
            ws_ping_timeout=None,  # the connection knows whether it could read
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        # One for each listening socket: `localhost` has an IPv4 and an IPv6 address.
        self._listeners: list[asyncio.Server] = []
        self._tls: Tls | None = None  # None for plain HTTP
        self._unix: UnixSocket | None = None
        self._wyoming = WyomingServer(context) if settings.wyoming_port else None
        # Tasks that close the connections of revoked tokens, and replace the certificate.
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Listen; return the address of the captions page, such as `http://127.0.0.1:8765/`.

        Raises PortInUseError if the port is taken, ConfigError if the server cannot listen on the host, the Unix socket
        or Wyoming's port, or there is no certificate.
        """
        settings = self._context.settings
        self._config.load()
        # Mistakes of clients, such as port scanners, are not logged.
        mistakes = ("Invalid", "Unsupported upgrade", "ASGI callable returned without completing handshake")
        logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith(mistakes))
        if settings.tls not in ("auto", "off") or settings.tls_certificate or settings.tls_key:
            from streamer.server.tls import make_tls  # late: it takes 9 MB

            self._tls = await asyncio.to_thread(make_tls, settings)
        host = self._context.access.host
        with contextlib.ExitStack() as stack:
            if settings.unix_socket:
                self._unix = stack.enter_context(
                    contextlib.closing(UnixSocket(Path(settings.unix_socket).expanduser()))
                )
            if self._wyoming is not None:
                stack.callback(self._wyoming.close)
                await self._wyoming.listen()
            sockets = self._passed or await listen(host, settings.port)
            stack.pop_all()
        await self._serve(sockets)
        port = settings.port or sockets[0].getsockname()[1]
        self._watching.append(asyncio.create_task(self._watch_tokens()))
        if self._tls is not None:
            self._watching.append(asyncio.create_task(self._tls.watch(host, port)))
        return url("http" if self._tls is None else "https", host, port)

    async def _serve(self, sockets: Sequence[socket.socket]) -> None:
        loop, settings = asyncio.get_running_loop(), self._context.settings
        max_bytes = {path: socket.max_message_bytes for path, socket in all_sockets().items()}

        def make_protocol() -> Connection:
            return Connection(self._config, self._state, self._context, max_bytes)

        tls: dict[str, Any] = {}
        if self._tls is not None:
            timeouts = {"ssl_handshake_timeout": settings.header_timeout_s, "ssl_shutdown_timeout": CLOSE_TIMEOUT_S}
            tls = {"ssl": self._tls.context, **timeouts}
        for sock in sockets:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                self._listeners.append(await loop.create_server(make_protocol, sock=sock, backlog=BACKLOG, **tls))
            else:
                self._listeners.append(await loop.create_unix_server(make_protocol, sock=sock, backlog=BACKLOG))
        if self._unix is not None:
            self._listeners.append(await loop.create_unix_server(make_protocol, sock=self._unix.sock, backlog=BACKLOG))
            logger.info("listening on unix://%s", settings.unix_socket)

    async def serve_model(self, model: str, languages: Sequence[str]) -> None:
        """Serve clients that ask first for the model and its languages, now that it is loaded."""
        if self._wyoming is not None:
            await self._wyoming.serve(model, languages)

    @property
    def activated(self) -> bool:
        """Whether another program listens, and starts this one again when a client connects."""
        return bool(self._passed)

    @property
    def n_connections(self) -> int:
        return self._context.limits.n_open

    def close_listeners(self) -> None:
        """Stop accepting connections; clients wait at sockets that were passed."""
        for listener in self._listeners:
            listener.close()
        if self._unix is not None:
            self._unix.close()

    def _as_passed(self, settings: ServerSettings) -> ServerSettings:
        """Return the settings with the address of the sockets that were passed; of several, the most open one."""
        addresses = [sock.getsockname() for sock in self._passed if sock.family in (socket.AF_INET, socket.AF_INET6)]
        if not addresses:
            return settings
        host, port, *_ = max(addresses, key=lambda address: not is_loopback(address[0]))
        return msgspec.structs.replace(settings, host=host, port=port)

    def reload(self, settings: ServerSettings) -> None:
        """Use other origins, proxies, tokens and limits. Raises ConfigError, and changes nothing, if they are wrong."""
        context, settings = self._context, self._as_passed(settings)
        context.access = Access.of(settings, self._default_token_file, context.access.guesses)
        context.settings = settings
        context.limits.max_connections = settings.max_connections
        context.limits.max_per_address = settings.max_connections_per_address

    def drain(self) -> None:
        """Begin to stop: accept no WebSockets, and end clients' streams. Subscribers still get events."""
        self._context.draining.set()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Accept no connections, flush the open ones, close them with code 1001, and return when all are gone.

        Clients' streams are finished first. Connections that take longer than `timeout_s` are aborted.
        """
        self.drain()
        self._context.stopping.set()
        for task in self._watching:
            task.cancel()
        self.close_listeners()
        stopping = [asyncio.create_task(self._wyoming.stop(timeout_s))] if self._wyoming is not None else []
        if self._context.sockets:
            _, late = await asyncio.wait(list(self._context.sockets), timeout=timeout_s)
            for task in late:
                task.cancel()
        await asyncio.gather(*stopping)
        if self._state.tasks:  # answers that are on their way
            await asyncio.wait(list(self._state.tasks), timeout=ANSWER_TIMEOUT_S)
        for each in list(self._state.connections):
            each.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                while self._state.connections or self._state.tasks:
                    await asyncio.sleep(0.01)
        self._listeners.clear()

    async def _watch_tokens(self) -> None:
        """Close connections whose token was revoked, changed or expired, and abandon their streams."""
        while True:
            await asyncio.sleep(TOKENS_S)
            try:
                now = time.time()
                tokens = self._context.access.tokens
                tokens.refresh()
                close = Close(CloseCode.POLICY_VIOLATION, "token revoked or expired")
                revoked = [each for each in self._context.sockets.values() if not tokens.holds(each.caller, now)]
                await asyncio.gather(*(each.connection.shut(close) for each in revoked))
                for each in list(self._state.connections):
                    cast(Connection, each.transport).check_token(tokens, now)
                self._context.services.streams.abandon_unreachable(tokens.names("stream", now))
            except Exception:  # the next check must not fail with this one
                logger.exception("checking for revoked tokens failed")
