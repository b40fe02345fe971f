"""One TCP connection: uvicorn's HTTP and WebSocket protocols, hardened for a hostile network.

Each override names the attack of `tools/attack.py` that succeeds without it, or the promise to clients.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState
from websockets.frames import Frame

from streamer.outside import one_line
from streamer.server.context import Context
from streamer.server.tokens import AccessToken
from streamer.server.ws import GONE_EVENT

logger = logging.getLogger(__name__)

KEEPALIVE_S = 20.0  # between two pings, and for the answer to one
CLOSE_TIMEOUT_S = 5.0  # for the closing handshake; then the connection is aborted
SEND_BUFFER_BYTES = 64 * 1024  # in the kernel: events in it can no longer be superseded
WRITE_BUFFER_BYTES = 32 * 1024  # in the process, in addition
READ_BYTES = 16 * 1024  # read at a time: its frames are parsed in one step, while other clients wait
BODY_BYTES = 16 * 1024  # of a request's body must arrive in `server.header_timeout_s`
MAX_MESSAGE_BYTES = 4096  # at an address without WebSockets


class State(ServerState):
    """State that the connections of a server share."""

    def __init__(self, context: Context, max_message_bytes: Mapping[str, int]) -> None:
        """`max_message_bytes` has the limit for each path of WebSockets."""
        super().__init__()
        self.context = context
        self.max_message_bytes = max_message_bytes

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode("ascii")), (b"server", b"streamer")]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Ignore the base class's initial value."""


class HttpProtocol(H11Protocol):
    """An HTTP connection, which may become a WebSocket."""

    def __init__(self, config: Config, server_state: State, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._context = server_state.context
        # Ends the connection of a client whose request takes too long; and bytes received since it was set.
        self._deadline: asyncio.TimerHandle | None = None
        self._n_bytes = 0
        # The address that the connection is counted for; None if it is not counted.
        self._counted: str | None = None
        # Whether the connection was refused, and is no longer read.
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection (one-address-full, upgrade-crowd), and expect a request in time (silent-connections)."""
        super().connection_made(cast(asyncio.Transport, transport))
        # A proxy's clients are counted by `Guard`, once the head of a request has their address.
        peer = self.client[0] if self.client else ""
        address = "" if self._context.access.proxies.trust(peer) else peer
        full = self._context.limits.enter(address)
        if full is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, full.message, full.reason)
            return
        self._counted = address
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if hasattr(self.transport, "max_size"):  # of asyncio's sockets on a selector (tiny-frames)
            self.transport.max_size = READ_BYTES
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect_nothing()
        if self._counted is not None:
            self._context.limits.leave(self._counted)

    @property
    def caller(self) -> AccessToken | None:
        """The token of the request that is being answered, if any."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return self.scope.get("state", {}).get("caller") if is_answering else None

    def revoke(self) -> None:
        """End the request whose token was revoked: with an error, or in the middle of the response."""
        self._refuse(HTTPStatus.UNAUTHORIZED, "the token was revoked or has expired", "token")

    def data_received(self, data: bytes) -> None:
        """Restart the clock with each part of a body (slow-bodies), and stop it when the request is complete."""
        if self._refused:
            return
        self._n_bytes += len(data)
        super().data_received(data)
        if self._refused:
            return
        state = self.conn.their_state
        if self.transport.get_protocol() is not self or state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED):
            self._expect_nothing()
        elif state is h11.SEND_BODY and self._n_bytes >= BODY_BYTES and not self.cycle.response_complete:
            self._expect_request()

    def on_response_complete(self) -> None:
        """Expect the next request in time, or the rest of a body that was answered early (endless-bodies)."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._expect_request()
        elif self.conn.their_state is h11.SEND_BODY:
            self._expect_nothing()
            self._deadline = self.loop.call_later(self._context.settings.header_timeout_s, finish, self.transport)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Become a WebSocket, unless data follows the request (pipelined-upgrade, bodies-unasked)."""
        behind, _ = self.conn.trailing_data
        named = {name for name, _ in self.headers}
        if behind or named & {b"content-length", b"transfer-encoding"}:
            text = "data follows the request for a WebSocket: expected none before its answer"
            self._refuse(HTTPStatus.BAD_REQUEST, text, "http")
            return
        self._expect_nothing()
        super().handle_websocket_upgrade(event)
        protocol = cast(WebSocketProtocol, self.transport.get_protocol())
        protocol.counted, self._counted = self._counted, None

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, f"the request is not valid HTTP/1.1 ({msg.rstrip('.').lower()})", "http")

    def _expect_request(self) -> None:
        self._expect_nothing()
        self._n_bytes = 0
        self._deadline = self.loop.call_later(self._context.settings.header_timeout_s, self._refuse_slow)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_slow(self) -> None:
        if not self._n_bytes and self.cycle is not None:  # between two requests (odd-lines)
            self.transport.close()
            return
        timeout_s = self._context.settings.header_timeout_s
        message = f"the request was not complete within {timeout_s:g} s (server.header_timeout_s)"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "header_timeout")

    def _refuse(self, status: HTTPStatus, message: str, reason: str) -> None:
        """Send an error and close: without h11, whose state may not allow it."""
        self._expect_nothing()
        self._refused = True
        self._context.metrics.refused(reason)
        logger.debug("a connection is refused: %s", one_line(message))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(raw_response(status, message))
        finish(self.transport)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket connection.

    This implementation of uvicorn's has flow control in both directions: `send` waits while the client does not read,
    and the client is not read while a message waits for the application.
    """

    def __init__(self, config: Config, server_state: State, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._state = server_state
        self.close_timeout = CLOSE_TIMEOUT_S
        # The address that the connection is counted for; None if it is not counted.
        self.counted: str | None = None
        self._gone = asyncio.Event()
        # Whether the client violated the protocol, and is no longer read.
        self._broken = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._gone.set()
        super().connection_lost(exc)
        if self.counted is not None:
            self._state.context.limits.leave(self.counted)

    async def run_asgi(self) -> None:
        """Provide the application with `GONE_EVENT`, and set the path's limit of a message."""
        cast(dict[str, Any], self.scope["extensions"])[GONE_EVENT] = self._gone
        self.conn.max_message_size = self._state.max_message_bytes.get(self.scope["path"], MAX_MESSAGE_BYTES)
        await super().run_asgi()

    def shutdown(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read frames until the client violates the protocol: in a frame (too-long) or its request (odd-offers)."""
        if self._broken:
            return
        self.conn.receive_data(data)
        self.handle_events()
        if not self._broken and (self.conn.parser_exc or (self.conn.handshake_exc and not self.handshake_initiated)):
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Queue a message; a close frame may have been read after text that is not UTF-8 (bad-utf8)."""
        try:
            super().send_receive_event_to_app()
        except InvalidState:
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Answer, unless the client does not read answers, which would accumulate (unread-pongs)."""
        closing = self.conn.close_sent is not None and not self.close_sent  # the data after the ping was wrong
        if (self.writable.is_set() or closing) and not self._broken:
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        """Drop empty parts of a message, which no limit counts (empty-continuations)."""
        if event.data or event.fin:
            super().handle_cont(event)

    def handle_close(self, event: Frame) -> None:
        """Pass the client's answer to the application that closed: a client that did not answer may resume."""
        assert self.conn.close_rcvd is not None
        if self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": self.conn.close_rcvd.code})
        super().handle_close(event)
        self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def handle_parser_exception(self) -> None:
        """Close so that the client can read the reason (too-long)."""
        self._broken = True
        code = self.conn.close_sent.code if self.conn.close_sent is not None else 1006
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code})
        answer = b"".join(self.conn.data_to_send())
        self.transport.write(answer if self.handshake_initiated else raw_response(HTTPStatus.BAD_REQUEST))
        self.handshake_complete = self.close_sent = True
        finish(self.transport)

    async def send(self, message: Any) -> None:  # noqa: ANN401 - any ASGI message
        """Send as uvicorn does, but close at once, also if the client does not read (deaf-subscribers)."""
        if message["type"] != "websocket.close" or not self.handshake_complete:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
                self.handshake_complete = True  # else uvicorn logs an error (wrong-origins)
        elif not (self.close_sent or self.transport.is_closing()):
            self.conn.send_close(message.get("code", 1000), message.get("reason") or "")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            self.close_timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """Close, unless the client is not being read: its pong waits behind its audio."""
        if self.read_paused:
            self.pending_ping_payload = self.pong_timer = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()
            self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)


def raw_response(status: HTTPStatus, message: str = "") -> bytes:
    """Return an error as the last response of a connection."""
    body = b'{"error":"%s"}\n' % message.encode("ascii", "replace").replace(b'"', b"'")
    head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode("ascii") + body


def finish(transport: asyncio.Transport) -> None:
    """Send what was written, and wait up to CLOSE_TIMEOUT_S for the peer to close.

    To close at once, with unread data, would be a reset, which may overtake what was written.
    """
    if transport.can_write_eof():
        transport.write_eof()
        transport.resume_reading()
    else:
        transport.close()
    asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, transport.abort)
