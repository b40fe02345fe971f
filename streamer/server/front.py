"""The server: one port for the captions page, health, metrics and the WebSockets."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket
from websockets.frames import CloseCode

from streamer.errors import UsageError
from streamer.server.access import Access, Refusal, chosen_subprotocol
from streamer.server.app import Prepare, Serve, make_app
from streamer.server.connection import HttpProtocol, State, WebSocketProtocol
from streamer.server.history import History
from streamer.server.http import Pages
from streamer.server.interfaces import Context, Input, Recordings, Streams
from streamer.server.limits import Limits
from streamer.server.listener import TlsListener
from streamer.server.metrics import ServerMetrics
from streamer.server.rest import Rest
from streamer.server.runtime import serve
from streamer.server.sockets import BACKLOG, listen, url
from streamer.server.tokens import Token
from streamer.server.transcripts import Transcripts
from streamer.server.unix import UnixSocket
from streamer.server.uploads import Uploads
from streamer.server.wires import CAPTIONS_PATH, WIRES, Wire, wires
from streamer.server.ws import Close, Connection
from streamer.server.wyoming import WyomingServer
from streamer.settings.table import ServerSettings
from streamer.stream.eventlog import EventLog

if TYPE_CHECKING:
    from streamer.server.tls import Tls

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 2**20  # 5.5 s of stereo float audio at 24 kHz, far more than a live client sends at a time
ANSWER_TIMEOUT_S = 1.0  # for requests that are being answered when the daemon stops
ABORT_TIMEOUT_S = 2.0  # for a connection that was cut to be gone
TOKENS_S = 1.0  # from one look for revoked tokens to the next


@dataclass(frozen=True, slots=True)
class _Handler:
    """What serves a WebSocket that is open."""

    path: str
    caller: Token
    connection: Connection


class Server:
    """Serves the events of the daemon's own input and clients' streams.

    Everything it serves comes in as an argument; nothing of it is read before a client asks.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        feed: EventLog | None,
        input_now: Callable[[], Input | None],
        streams: Streams,
        recordings: Recordings | None = None,
        health: Callable[[], Mapping[str, object]],
        registry: CollectorRegistry,
        is_live: Callable[[], bool] = lambda: True,
        history_file: History | None = None,
        default_token_file: Path | None = None,
    ) -> None:
        """Prepare a server.

        `feed` has the events of the daemon's own input, None where it has none; `input_now` returns what commands to
        it go to, None while it has not begun. `health` returns what `/healthz` shows, with a `status` that is `ok` or
        something else; `is_live` says for `/livez` whether the program makes progress. `default_token_file` is read
        where the settings name none, and it is there. `history_file` is what is kept of earlier, None where nothing is.

        Raises ConfigError where it would be open to a network without a token, or an origin is not one.
        """
        self._default_token_file = default_token_file
        self._access = Access.of(settings, default_token_file)
        self._metrics = ServerMetrics(registry)
        self._context = Context(settings, self._metrics, streams, feed, history_file)
        self._uploads = Uploads(round(settings.max_upload_mb * 1e6), settings.max_recordings)
        limits = Limits(settings.max_connections, settings.max_connections_per_address)
        self._state = State(
            limits,
            header_timeout_s=settings.header_timeout_s,
            count_refusal=self._metrics.refused,
            is_proxy=lambda address: self._access.proxies.trust(address),
            max_message_bytes={path: wire.max_message_bytes for path, wire in WIRES.items()},
        )
        app = make_app(
            lambda: self._access,
            Pages(health, is_live, registry, input_now if feed is not None else None, kept=history_file is not None),
            {path: (wire.needs, self._prepare(wire)) for path, wire in wires(settings).items()},
            self._refusal,
            self._serve,
            self._metrics,
            limits,
            Transcripts(history_file),
            Rest(recordings, self._uploads).endpoints() if recordings is not None else [],
            lambda: self._uploads.max_bytes,
        )
        self._config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=MAX_MESSAGE_BYTES,
            # Captions are short and must not wait for a compressor; and each connection would hold its memory.
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        # One a listening socket: `localhost` has an IPv4 and an IPv6 address.
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._handlers: dict[asyncio.Task[None], _Handler] = {}
        # The certificate; None where the port speaks plain HTTP.
        self._tls: Tls | None = None
        self._unix: UnixSocket | None = None
        # Wyoming's own port; None where it is off.
        self._wyoming = WyomingServer(self._context, limits) if settings.wyoming_port else None
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
        host = self._access.host
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

        for sock in sockets:
            if self._tls is not None:
                self._listeners.append(TlsListener(sock, self._tls.context, self._state, make_protocol))
            else:
                self._listeners.append(await loop.create_server(make_protocol, sock=sock, backlog=BACKLOG))
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
        return self._state.limits.n_open

    def reload(self, settings: ServerSettings) -> None:
        """Take up other origins, tokens and limits. Raises ConfigError, and changes nothing, where they cannot be."""
        self._access = Access.of(settings, self._default_token_file, self._access.guesses)
        self._context.settings = settings
        self._state.limits.max_connections = settings.max_connections
        self._state.limits.max_per_address = settings.max_connections_per_address
        self._state.header_timeout_s = settings.header_timeout_s

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
        if self._handlers:
            _, late = await asyncio.wait(list(self._handlers), timeout=timeout_s)
            for task in late:
                task.cancel()
        await asyncio.gather(*stopping)
        if self._state.tasks:  # answers that are on their way
            await asyncio.wait(list(self._state.tasks), timeout=ANSWER_TIMEOUT_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                while self._state.connections or self._state.tasks:
                    await asyncio.sleep(0.01)
        self._listeners.clear()

    def _close_unix(self) -> None:
        if self._unix is not None:
            self._unix.close()

    def _refusal(self, opening: HTTPConnection) -> Refusal | None:
        """Why a request for a WebSocket's address cannot be met; None where it can."""
        if opening.url.path == CAPTIONS_PATH and self._context.feed is None:
            text = (
                "the daemon runs without an input of its own, there are no captions: send audio to /v1/stream,"
                " or start it with --input mic or a file"
            )
            return Refusal(HTTPStatus.NOT_FOUND, text, "path")
        if self._context.draining.is_set():
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the daemon stops: try again in a moment", "stopping")
        if opening.scope["type"] == "http":
            text = f"{opening.url.path} speaks WebSocket: connect with ws://; recordings go to /v1/audio/transcriptions"
            return Refusal(HTTPStatus.UPGRADE_REQUIRED, text, "upgrade")
        return None

    async def _serve(self, websocket: WebSocket, endpoint: Serve) -> None:
        """Serve a WebSocket, from before it is accepted to its end."""
        await websocket.accept(subprotocol=chosen_subprotocol(websocket.scope["subprotocols"]))
        path = websocket.url.path
        handler = _Handler(path, websocket.state.caller, Connection(websocket))
        connection = handler.connection
        if sum(other.path == path for other in self._handlers.values()) >= self._context.settings.max_subscribers:
            self._metrics.refused("subscribers")
            reason = f"no room: {self._context.settings.max_subscribers} clients are connected, try again later"
            await connection.close(Close(CloseCode.TRY_AGAIN_LATER, reason))
            return
        task = asyncio.current_task()
        assert task is not None
        self._handlers[task] = handler
        logger.debug("%s connects to %s", websocket.client, path)
        try:
            await endpoint(connection)
        except asyncio.CancelledError:
            logger.debug("%s on %s is cut off", websocket.client, path)  # `stop` cuts the connection next
        except Exception:
            logger.exception("serving a client on %s failed", path)
            await connection.close(Close(CloseCode.INTERNAL_ERROR, "internal"))
        finally:
            del self._handlers[task]
            logger.debug("%s left %s", websocket.client, path)

    async def _watch_tokens(self) -> None:
        """Close connections whose token was revoked, changed or expired, abandon their streams, and log guesses."""
        while True:
            await asyncio.sleep(TOKENS_S)
            try:
                now = time.time()
                tokens = self._access.tokens
                tokens.refresh()
                self._access.report(now)
                revoked = [handler for handler in self._handlers.values() if not tokens.holds(handler.caller, now)]
                for handler in revoked:
                    await handler.connection.shut(Close(CloseCode.POLICY_VIOLATION, "the token counts no more"))
                requests = [each for each in self._state.connections if isinstance(each, HttpProtocol)]
                for request in requests:
                    if request.caller is not None and not tokens.holds(request.caller, now):
                        request.revoke()
                self._context.streams.abandon_unreachable(tokens.names("stream", now))
            except Exception:  # a token that is revoked tomorrow must not stay
                logger.exception("looking for revoked tokens failed")

    def _prepare(self, wire: Wire) -> Prepare:
        def prepare(websocket: WebSocket) -> Serve:
            caller: Token = websocket.state.caller
            adapter = wire.make(websocket.query_params, websocket.headers)
            return partial(serve, adapter=adapter, context=self._context, tenant=caller.name)

        return prepare
