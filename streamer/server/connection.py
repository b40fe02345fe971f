"""One TCP connection, which stands between asyncio and uvicorn, of which nothing is overridden.

    asyncio ──> Connection ──> uvicorn's protocol ──> `answering` (ASGI) ──> the application

uvicorn gets the connection as its transport, and the application's requests come with it. What is done here names the
attack of `tools/attack.py` that succeeds without it, or the promise to clients.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.frames import CloseCode

from streamer.outside import one_line
from streamer.server.context import Context
from streamer.server.tokens import Tokens
from streamer.server.ws import GONE_EVENT

logger = logging.getLogger(__name__)

KEEPALIVE_S = 20.0  # between two pings of uvicorn's; and for an answer
CLOSE_TIMEOUT_S = 5.0  # for the client to close, too; then the connection is aborted
SEND_BUFFER_BYTES = 64 * 1024  # in the kernel: events in it can no longer be superseded
MOST_UNREAD_BYTES = 1024 * 1024  # in the process: nothing waits before answers to pings
READ_BYTES = 16 * 1024  # read at a time: its frames are parsed in one step, while other clients wait
BODY_BYTES = 16 * 1024  # of a request's body must arrive in `server.header_timeout_s`
MAX_MESSAGE_BYTES = 4096  # at an address without WebSockets
MAX_PARTS = 8192  # of a message


class Deadline:
    """A time by which something has to come, and the bytes that have come since it was set."""

    def __init__(self) -> None:
        # None: nothing is expected.
        self._timer: asyncio.TimerHandle | None = None
        self.n_bytes = 0

    def __bool__(self) -> bool:
        return self._timer is not None

    def set(self, timeout_s: float, otherwise: Callable[[], None]) -> None:
        """Expect something within some seconds, in the place of what was expected before."""
        self.clear()
        self._timer = asyncio.get_running_loop().call_later(timeout_s, otherwise)
        self.n_bytes = 0

    def clear(self) -> None:
        """Expect nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connection(asyncio.Protocol, asyncio.Transport):
    """A connection of HTTP, which may become a WebSocket."""

    def __init__(self, config: Config, state: ServerState, context: Context, max_bytes: Mapping[str, int]) -> None:
        """`max_bytes` has the limit of a message for each path of WebSockets."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._state = state
        self._context = context
        self._max_bytes = max_bytes
        self._transport: asyncio.Transport
        # uvicorn's protocol: for HTTP, and behind an upgrade for WebSockets. None: the connection is refused, or gone.
        self._protocol: Any = None
        # The address that the connection is counted for; None if it is not counted.
        self._counted: str | None = None
        # Whether it is being closed, so that nothing is read or written any longer; and set once it is gone, even if
        # messages of it are still to be received.
        self._closing = False
        self.gone = asyncio.Event()
        # Ends it if a request, or the client's side of a close, does not come in time; when anything came last.
        self._deadline = Deadline()
        self._heard_at = 0.0
        # The request that is being answered; whether the answer has begun; whether there was one before.
        self._request: Scope | None = None
        self._has_begun = self._has_answered = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection (one-address-full, upgrade-crowd), and expect a request in time (silent-connections)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        # A proxy's clients are counted by `Guard`, once the head of a request has their address.
        address = "" if self._context.access.proxies.trust(host) else host
        full = self._context.limits.enter(address)
        if full is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, full.message, full.reason)
            return
        self._counted = address
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if hasattr(transport, "max_size"):  # of asyncio's sockets on a selector (tiny-frames)
            transport.max_size = READ_BYTES
        make: Any = self._config.http_protocol_class
        self._protocol = make(config=self._config, server_state=self._state, app_state={"connection": self})
        self._protocol.connection_made(self)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Pass data on; restart the clock with each part of a body (slow-bodies)."""
        if self._closing:
            return
        self._deadline.n_bytes += len(data)
        self._heard_at = self._loop.time()
        try:
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 - uvicorn did not expect what the client sent (bad-utf8)
            logger.debug("a connection is closed: %s", one_line(error))
            self.close()
        if self._request is not None and self._deadline and self._deadline.n_bytes >= BODY_BYTES:
            self._expect_request()
        parts = getattr(self._protocol, "frames", None)  # of a message; None for HTTP
        if parts is not None and self._transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            self._transport.pause_reading()  # until the client reads answers to its pings (unread-pongs)
        if (
            parts is not None and len(parts) > MAX_PARTS
        ):  # no limit of uvicorn's counts empty ones (empty-continuations)
            self.abort()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
        if not getattr(self._protocol, "read_paused", True):  # uvicorn has not paused it
            self.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._deadline.clear()
        self.gone.set()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
            self._protocol = None
        if self._counted is not None:
            self._context.limits.leave(self._counted)

    # What uvicorn calls: the connection is its transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as asyncio's
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._heard_at = self._loop.time()  # nothing could be received until now
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Become a WebSocket, unless data follows the request (pipelined-upgrade) or it cannot be read (odd-offers)."""
        behind, _ = self._protocol.conn.trailing_data
        self._protocol = protocol
        self._deadline.clear()
        if behind or not self._protocol.handshake_initiated:
            text = "the request for a WebSocket has headers that are not valid, or data behind it: expected neither"
            self._refuse(HTTPStatus.BAD_REQUEST, text, "http")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what was written, and wait up to CLOSE_TIMEOUT_S for the client to close (too-long).

        To close at once, with unread data, would be a reset, which may overtake what was written.
        """
        if self._closing:
            return
        self._closing = True
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
                self._transport.resume_reading()
            else:
                self._transport.close()
        except OSError:  # the client has reset it since the last write
            self.abort()
            return
        self._deadline.set(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        self._transport.abort()

    # Time, and refusals.

    def _expect_request(self) -> None:
        self._deadline.set(self._context.settings.header_timeout_s, self._refuse_slow)

    def _refuse_slow(self) -> None:
        if (
            self._request is None and self._has_answered
        ):  # between two requests, or in the rest of a body (endless-bodies)
            self.close()
            return
        timeout_s = self._context.settings.header_timeout_s
        message = f"the request was not complete within {timeout_s:g} s (server.header_timeout_s)"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "header_timeout")

    def check_token(self, tokens: Tokens, now: float) -> None:
        """End the request, if any, whose token was revoked: with an error, or in the middle of the response."""
        caller = self._request["state"].get("caller") if self._request is not None else None
        if caller is not None and not tokens.holds(caller, now):
            self._refuse(HTTPStatus.UNAUTHORIZED, "the token was revoked or has expired", "token")

    def _refuse(self, status: HTTPStatus, message: str, reason: str) -> None:
        """Send an error, unless an answer has begun, and close."""
        self._context.metrics.refused(reason)
        logger.debug("a connection is refused: %s", one_line(message))
        if not self._has_begun:
            body = b'{"error":"%s"}\n' % message.encode("ascii", "replace").replace(b'"', b"'")
            head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/json\r\n"
            self.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode("ascii") + body)
        self.close()

    # What the application is called through.

    async def answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered, whose body has its time, and then the next request."""
        self._request = scope
        if {name for name, _ in scope["headers"]}.isdisjoint((b"content-length", b"transfer-encoding")):
            self._deadline.clear()
        else:
            self._expect_request()

        async def receiving() -> Message:
            message = await receive()
            if self._request is scope and not message.get("more_body") and not self._closing:
                self._deadline.clear()
            return message

        async def sending(message: Message) -> None:
            if self._closing:
                return
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if message["type"] == "http.response.start":
                self._has_begun = True
                ours = [(b"date", formatdate(usegmt=True).encode("ascii")), (b"server", b"streamer")]
                message = {**message, "headers": [*ours, *message.get("headers", ())]}
            elif is_last:
                self._request, self._has_begun, self._has_answered = None, False, True
            await send(message)
            if is_last and not self._closing:
                self._expect_request()

        await app(scope, receiving, sending)

    async def converse(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a WebSocket served while the client lives, and close it in time."""
        conn = self._protocol.conn
        conn.max_message_size = self._max_bytes.get(scope["path"], MAX_MESSAGE_BYTES)
        scope["extensions"][GONE_EVENT] = self.gone
        accepted = closed = False

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                if closed:  # uvicorn does not wait for the client's answer; one that does not answer may resume
                    await self.gone.wait()
                if closed or message["code"] == CloseCode.NO_STATUS_RCVD:
                    frame = conn.close_rcvd
                    message = {**message, "code": CloseCode.ABNORMAL_CLOSURE if frame is None else frame.code}
            return message

        async def sending(message: Message) -> None:
            nonlocal accepted, closed
            if message["type"] == "websocket.close" and accepted:
                closed = True
                # In time, also if the client does not read (deaf-subscribers) or answer (unanswered-close).
                self._deadline.set(CLOSE_TIMEOUT_S, self.abort)
            await send(message)
            if message["type"] == "websocket.accept":
                accepted, self._heard_at = True, self._loop.time()

        async def keep_alive() -> None:
            """Close if nothing has come for two pings, unless an answer may wait behind audio that is not read yet."""
            lasts = 2 * KEEPALIVE_S
            while not accepted or not self._transport.is_reading() or self._loop.time() < self._heard_at + lasts:
                await asyncio.sleep(KEEPALIVE_S / 2)
            with contextlib.suppress(OSError, RuntimeError):  # it is gone, or being closed
                reason = "no answer to a ping"
                await sending({"type": "websocket.close", "code": CloseCode.INTERNAL_ERROR, "reason": reason})

        alive = asyncio.create_task(keep_alive())
        try:
            await app(scope, receiving, sending)
        finally:
            alive.cancel()


def answering(app: ASGIApp) -> ASGIApp:
    """Return an application whose requests go through their connections."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"].pop("connection")
        serve = connection.answer if scope["type"] == "http" else connection.converse
        if not connection.is_closing():
            await serve(app, scope, receive, send)
        if connection.is_closing():
            await connection.gone.wait()  # before that uvicorn would log that an answer is missing

    return answer
