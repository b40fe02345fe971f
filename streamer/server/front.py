"""The server: one port for the captions page, health, metrics and the WebSockets."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CollectorRegistry
from websockets.frames import CloseCode

from streamer.errors import UsageError
from streamer.server import connection
from streamer.server.access import Access
from streamer.server.connection import CLOSE_TIMEOUT_S, HttpProtocol, State, WebSocketProtocol
from streamer.server.interfaces import Context, Services
from streamer.server.limits import Limits
from streamer.server.metrics import ServerMetrics
from streamer.server.routes import SOCKETS, make_app
from streamer.server.sockets import BACKLOG, listen, url
from streamer.server.unix import UnixSocket
from streamer.server.ws import Close
from streamer.server.wyoming import WyomingServer
from streamer.settings.table import ServerSettings

if TYPE_CHECKING:
    from streamer.server.tls import Tls

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 1.0  # for requests that are being answered when the daemon stops
ABORT_TIMEOUT_S = 2.0  # for a connection that was cut to be gone
TOKENS_S = 1.0  # from one look for revoked tokens to the next


class Server:
    """Serves the events of the daemon's own input, clients' streams, and recordings."""

    def __init__(
        self,
        settings: ServerSettings,
        services: Services,
        registry: CollectorRegistry,
        default_token_file: Path | None = None,
    ) -> None:
        """Prepare a server. `default_token_file` is read if the settings name none, and it exists.

        Raises ConfigError if it would be open to a network without a token, or an origin is not one.
        """
        self._default_token_file = default_token_file
        metrics = ServerMetrics(registry)
        context = self._context = Context(
            services=services,
            registry=registry,
            metrics=metrics,
            limits=Limits(settings.max_connections, settings.max_connections_per_address),
            settings=settings,
            access=Access.of(settings, default_token_file),
        )
        self._state = State(context, {path: socket.max_message_bytes for path, socket in SOCKETS.items()})
        self._config = uvicorn.Config(
            make_app(context),
            http=HttpProtocol,
            ws=WebSocketProtocol,
            # Captions are short and must not wait for a compressor; and each connection would hold its memory.
            ws_per_message_deflate=False,
            ws_ping_interval=connection.KEEPALIVE_S,
            ws_ping_timeout=connection.KEEPALIVE_S,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        # One a listening socket: `localhost` has an IPv4 and an IPv6 address.
        self._listeners: list[asyncio.Server] = []
        # The certificate; None for plain HTTP.
        self._tls: Tls | None = None
        self._unix: UnixSocket | None = None
        # Wyoming's own port; None if it is off.
        self._wyoming = WyomingServer(context) if settings.wyoming_port else None
        # What closes the connections of tokens that are revoked, and what exchanges the certificate.
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Listen; return the address of the captions page, such as `http://127.0.0.1:8765/`.

        Raises PortInUseError where the port is taken, ConfigError where the host, the Unix socket or Wyoming's port
        cannot be listened on, or there is no certificate.
        """
        settings = self._context.settings
        self._config.load()
        # A visitor's mistake, such as a port scanner's, is none of ours.
        mistakes = ("Invalid", "Unsupported upgrade")
        logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith(mistakes))
        host = self._context.access.host
        if settings.tls not in ("auto", "off") or settings.tls_certificate or settings.tls_key:
            # Late: what reads and makes certificates takes 9 MB.
            from streamer.server.tls import make_tls

            self._tls = await asyncio.to_thread(make_tls, settings)
        if settings.unix_socket:
            self._unix = UnixSocket(Path(settings.unix_socket).expanduser())
        try:
            if self._wyoming is not None:
                await self._wyoming.listen()
            sockets = await listen(host, settings.port)
        except UsageError:
            self._close_unix()
            if self._wyoming is not None:
                self._wyoming.close()
            raise
        loop = asyncio.get_running_loop()

        def make_protocol() -> HttpProtocol:
            return HttpProtocol(self._config, self._state, {})

        tls: dict[str, Any] = {}
        if self._tls is not None:
            timeouts = {"ssl_handshake_timeout": settings.header_timeout_s, "ssl_shutdown_timeout": CLOSE_TIMEOUT_S}
            tls = {"ssl": self._tls.context, **timeouts}
        for sock in sockets:
            self._listeners.append(await loop.create_server(make_protocol, sock=sock, backlog=BACKLOG, **tls))
        if self._unix is not None:
            self._listeners.append(await loop.create_unix_server(make_protocol, sock=self._unix.sock, backlog=BACKLOG))
            logger.info("listening on unix://%s", settings.unix_socket)
        port = sockets[0].getsockname()[1]
        self._watching.append(asyncio.create_task(self._watch_tokens()))
        if self._tls is not None:
            self._watching.append(asyncio.create_task(self._tls.watch(host, port)))
        return url("http" if self._tls is None else "https", host, port)

    async def serve_model(self, model: str, languages: Sequence[str]) -> None:
        """Serve the clients that ask first what transcribes: a model that is ready, and what it knows."""
        if self._wyoming is not None:
            await self._wyoming.serve(model, languages)

    @property
    def n_connections(self) -> int:
        return self._context.limits.n_open

    def reload(self, settings: ServerSettings) -> None:
        """Take up other origins, tokens and limits. Raises ConfigError, and changes nothing, where they cannot be."""
        context = self._context
        context.access = Access.of(settings, self._default_token_file, context.access.guesses)
        context.settings = settings
        context.limits.max_connections = settings.max_connections
        context.limits.max_per_address = settings.max_connections_per_address

    def drain(self) -> None:
        """Begin to stop: take no new WebSockets, and let clients' streams end. Subscribers still get what comes."""
        self._context.draining.set()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Take no more connections, flush the open ones, close them with code 1001, and return when all are gone.

        A client's stream is finished first. What is not done after `timeout_s` is cut off.
        """
        self.drain()
        self._context.stopping.set()
        for task in self._watching:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        self._close_unix()
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

    def _close_unix(self) -> None:
        if self._unix is not None:
            self._unix.close()

    async def _watch_tokens(self) -> None:
        """Close connections whose token was revoked, changed or expired, abandon their streams."""
        while True:
            await asyncio.sleep(TOKENS_S)
            try:
                now = time.time()
                tokens = self._context.access.tokens
                tokens.refresh()
                sockets = [each for each in self._context.sockets.values() if not tokens.holds(each.caller, now)]
                for socket in sockets:
                    await socket.connection.shut(Close(CloseCode.POLICY_VIOLATION, "token revoked or expired"))
                requests = [each for each in self._state.connections if isinstance(each, HttpProtocol)]
                for request in requests:
                    if request.caller is not None and not tokens.holds(request.caller, now):
                        request.revoke()
                self._context.services.streams.abandon_unreachable(tokens.names("stream", now))
            except Exception:  # a token that is revoked tomorrow must not stay
                logger.exception("looking for revoked tokens failed")
