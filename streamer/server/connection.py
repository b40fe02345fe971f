"""One TCP connection: uvicorn's HTTP and WebSocket protocols, with the limits that a hostile network asks for.

uvicorn reads and writes the protocols (h11, and `websockets` without its I/O); what is here is what it leaves open: how
long a request may take to come, how many connections there are, pings that nobody reads the answers to, messages of
countless fragments, peers that vanish while they are held back, and closings that a peer does not take part in.
"""

import asyncio
import logging
import re
import select
import socket
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame

from streamer.outside import one_line
from streamer.server.access import Refusal
from streamer.server.interfaces import Context
from streamer.server.tokens import Token
from streamer.server.ws import GONE_EVENT

logger = logging.getLogger(__name__)

KEEPALIVE_S = 20.0  # silence after which the peer is asked whether it is there, and then for its answer
CLOSE_TIMEOUT_S = 5.0  # for the closing handshake; then the connection is cut
LOOK_S = 2.0  # how often a connection is looked at: whether its peer is still there
SEND_BUFFER_BYTES = 64 * 1024  # in the kernel: what is in there can no longer be replaced by something newer
WRITE_BUFFER_BYTES = 32 * 1024  # in the process, above that
READ_BYTES = 16 * 1024  # read at a time: frames in it are parsed in one go, while all others wait
# One read holds 50 to 200 frames of audio, but 2,700 empty ones, and all other clients wait while those are parsed. So
# after a read of more than FREE_FRAMES nothing is read from that client for FRAME_S a frame, about ten times what they
# cost: a flood of small frames gets a tenth of the event loop.
FREE_FRAMES = 200
FRAME_S = 0.0002
MAX_MESSAGE_BYTES = 4096  # at an address that is no WebSocket's, where none comes
BODY_BYTES = 16 * 1024  # of a request's body must come in the time that its head may take


class State(ServerState):
    """What the connections of a server share."""

    def __init__(self, context: Context, max_message_bytes: Mapping[str, int]) -> None:
        """`max_message_bytes` has the paths of WebSockets, and how long a message may be there."""
        self._headers = [(b"server", b"streamer")]
        super().__init__()
        self.context = context
        self.max_message_bytes = max_message_bytes

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode("ascii")), *self._headers]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Do nothing: the base class begins with none."""


class _Requests(h11.Connection):
    """Reads requests as h11 does, but turns a target that is a whole address into its path.

    Clients of proxies send such targets, and a server must accept them (RFC 9112, 3.2.2). One whose host differs from
    the Host header, which no honest client sends, stays as it is: that path does not exist.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if not isinstance(event, h11.Request) or event.target.startswith(b"/"):
            return event
        host = next((value for name, value in event.headers if name == b"host"), b"")
        found = re.fullmatch(rb"https?://%s(/.*|\?.*|)" % re.escape(host), event.target, re.IGNORECASE)
        if not host or found is None:
            return event
        target = found[1] if found[1].startswith(b"/") else b"/" + found[1]
        return h11.Request(
            method=event.method, target=target, headers=list(event.headers), http_version=event.http_version
        )


class HttpProtocol(H11Protocol):
    """A connection that speaks HTTP, and perhaps becomes a WebSocket."""

    def __init__(self, config: Config, server_state: State, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = _Requests(h11.SERVER)
        self._state = server_state
        # Ends the connection of a client that takes too long over its request.
        self._deadline: asyncio.TimerHandle | None = None
        # Bytes that came since it was set.
        self._n_bytes = 0
        # The address that the connection is counted for.
        self._counted: str | None = None
        # Whether the request was answered here, and no more is heard; whether the client says no more.
        self._refused = False
        self._eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the connection in, or say why not and close it."""
        super().connection_made(cast(asyncio.Transport, transport))
        refusal = self.count_in(self.client[0] if self.client else "")
        if refusal is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, refusal.message, refusal.reason)
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if hasattr(self.transport, "max_size"):  # of asyncio's sockets on a selector
            self.transport.max_size = READ_BYTES
        self._expect_request()

    @property
    def caller(self) -> Token | None:
        """The token of the request that is being answered; None while none is, or it needs no token."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return self.scope.get("state", {}).get("caller") if is_answering else None

    def revoke(self) -> None:
        """End the request whose token was revoked: the response is an error, or stops where it is."""
        self._refuse(HTTPStatus.UNAUTHORIZED, "the token was revoked or has expired", "token")

    def count_in(self, peer: str) -> Refusal | None:
        """Count the connection, once, also before its TLS handshake; return why not where there is no room."""
        if self._counted is not None:
            return None
        # A proxy's clients are counted one by one, once the head of their request says who they are.
        address = "" if self._state.context.access.proxies.trust(peer) else peer
        full = self._state.context.limits.enter(address)
        if full is None:
            self._counted = address
        return full

    def count_out(self) -> None:
        if self._counted is not None:
            self._state.context.limits.leave(self._counted)
            self._counted = None

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self._refused:
            return
        self._n_bytes += len(data)
        super().data_received(data)
        if self._refused:
            return
        if self.transport.get_protocol() is not self or self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED):
            self._expect_nothing()
        elif (
            self.conn.their_state is h11.SEND_BODY and self._n_bytes >= BODY_BYTES and not self.cycle.response_complete
        ):
            self._expect_request()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that says no more, as far as it has asked; one that was refused has been answered."""
        self._eof = True
        asked = self.cycle is not None and not self.cycle.response_complete
        # Who hangs up on a recording does not wait for its text; nothing else would say so before the answer.
        asked = asked and not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        return asked and not self._refused and self.scheme == "http"  # TLS has no half-open connections

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self._eof:
            self.transport.close()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect_nothing()
        self.count_out()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Go on as a WebSocket, unless something follows the request that no WebSocket client sends there."""
        behind, _ = self.conn.trailing_data
        named = {name for name, _ in self.headers}
        if behind or named & {b"content-length", b"transfer-encoding"}:
            self._refuse(
                HTTPStatus.BAD_REQUEST, "a WebSocket request has something behind it: expected nothing", "http"
            )
            return
        self._expect_nothing()
        super().handle_websocket_upgrade(event)
        protocol = cast(WebSocketProtocol, self.transport.get_protocol())
        protocol.counted, self._counted = self._counted, None

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, f"the request is no HTTP/1.1 ({msg.rstrip('.').lower()})", "http")

    def _expect_request(self) -> None:
        self._expect_nothing()
        self._n_bytes = 0
        timeout_s = self._state.context.settings.header_timeout_s
        self._deadline = self.loop.call_later(timeout_s, self._refuse_slow, timeout_s)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_slow(self, timeout_s: float) -> None:
        if not self._n_bytes and self.cycle is not None:  # between two requests: there is nothing to answer
            self.transport.close()
            return
        message = f"the request was not complete after {timeout_s:g} s (server.header_timeout_s)"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "header_timeout")

    def _refuse(self, status: HTTPStatus, message: str, reason: str) -> None:
        """Answer with an error and close: without h11, whose state may allow nothing more."""
        self._expect_nothing()
        self._refused = True
        self._state.context.metrics.refused(reason)
        logger.debug("a connection is refused: %s", one_line(message))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = b'{"error":"%s"}\n' % message.encode("ascii", "replace").replace(b'"', b"'")
            self.transport.write(raw_response(status, body, b"Content-Type: application/json\r\n"))
        finish(self.transport)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection that speaks WebSocket.

    Of uvicorn's implementations this one is taken since both directions hold back: `send` waits while the client
    does not read, and nothing is read from a client while a message waits for the application.
    """

    def __init__(self, config: Config, server_state: State, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._state = server_state
        # The address that the connection is counted for.
        self.counted: str | None = None
        self._gone = asyncio.Event()
        # When something came from the peer, and when a ping was sent that nothing has come after; seconds of the loop.
        self._heard_s = 0.0
        self._asked_s: float | None = None
        # Whether the client broke the protocol, so that it is heard no more.
        self._broken = False
        # Whether nothing is read for a while, because many frames came at once.
        self._resting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._heard_s = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._gone.set()
        super().connection_lost(exc)
        if self.counted is not None:
            self._state.context.limits.leave(self.counted)

    def data_received(self, data: bytes) -> None:
        """Take frames; any is a sign of life."""
        self._heard_s = self.loop.time()
        self._asked_s = None
        self.conn.receive_data(data)
        n_frames = len(self.conn.events)
        if n_frames > FREE_FRAMES:
            self._resting = True
            self.transport.pause_reading()
            self.loop.call_later(n_frames * FRAME_S, self._read_on)
        self.handle_events()
        if not self._broken and (self.conn.parser_exc or (self.conn.handshake_exc and not self.handshake_initiated)):
            self.handle_parser_exception()

    async def run_asgi(self) -> None:
        """Let the application know when the connection is gone."""
        cast(dict[str, Any], self.scope["extensions"])[GONE_EVENT] = self._gone
        self.conn.max_message_size = self._state.max_message_bytes.get(self.scope["path"], MAX_MESSAGE_BYTES)
        await super().run_asgi()

    def shutdown(self) -> None:
        """Cut the connection: whoever had to be told was told before."""
        self.transport.abort()

    def _read_on(self) -> None:
        self._resting = False
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> Any:  # noqa: ANN401 - any ASGI message
        """Return the next message, and read on when none waits, but not before a rest is over."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._resting:
                self.transport.resume_reading()
        return message

    # Fragments are joined as they come: one by one, each would be an object of its own, and empty ones would be free.

    def handle_text(self, event: Frame) -> None:
        self._begin(event, "text")

    def handle_bytes(self, event: Frame) -> None:
        self._begin(event, "bytes")

    def handle_cont(self, event: Frame) -> None:
        cast(bytearray, self.frames[0]).extend(event.data)
        if event.fin:
            self.send_receive_event_to_app()

    def _begin(self, event: Frame, kind: str) -> None:
        self.curr_msg_data_type = cast(Any, kind)
        self.frames = cast(Any, [event.data if event.fin else bytearray(event.data)])
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Queue a message, unless the daemon has closed; fail the connection if it is a text that is not UTF-8.

        Not as uvicorn does: it logs a traceback, and raises InvalidState if what came behind the text in the same read
        has closed the connection already.
        """
        data, self.frames = self.frames[0], []
        if self.close_sent:
            return
        message: dict[str, Any] = {"type": "websocket.receive", "bytes": data}
        if self.curr_msg_data_type == "text":
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError as error:
                self.conn.fail(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")
                self.handle_parser_exception()
                return
        self.queue.put_nowait(cast(Any, message))
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_ping(self) -> None:
        """Answer, unless the client does not read the answers: they would pile up."""
        frames = self.conn.data_to_send()
        # What came behind the ping may have been answered with a close frame, which goes out in any case.
        closing = self.conn.close_sent is not None and not self.close_sent
        if (self.writable.is_set() or closing) and not (self._broken or self.transport.is_closing()):
            self.transport.write(b"".join(frames))

    def handle_pong(self, event: Frame) -> None:
        """Do nothing: that it came is sign of life enough."""

    def handle_close(self, event: Frame) -> None:
        """Tell the application of the client's answer, too, where it was the application that closed."""
        assert self.conn.close_rcvd is not None
        if self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": self.conn.close_rcvd.code})
        super().handle_close(event)
        cut_later(self.transport)

    def handle_parser_exception(self) -> None:
        """Close the connection of a client that breaks the protocol; what it says from now on cannot be understood."""
        self._broken = True
        if self.handshake_initiated:
            code = self.conn.close_sent.code if self.conn.close_sent is not None else 1006
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code})
            self.transport.write(b"".join(self.conn.data_to_send()))
        else:
            self.transport.write(raw_response(HTTPStatus.BAD_REQUEST))
        self.handshake_complete = True
        self.close_sent = True
        finish(self.transport)

    async def send(self, message: Any) -> None:  # noqa: ANN401 - any ASGI message
        """Do as uvicorn does, but close at once, also where the client does not read, and cut it off after a while."""
        if message["type"] != "websocket.close" or not self.handshake_complete:
            if self._broken:
                raise ClientDisconnected
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
                self.handshake_complete = True  # or uvicorn complains that there was none
        elif not (self.close_sent or self.transport.is_closing()):
            self.conn.send_close(message.get("code", 1000), message.get("reason") or "")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            self.close_timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    # Keepalive: uvicorn's does not fit a client whose audio is taken in more slowly than it sends it, since the answer
    # to a ping waits behind that audio.

    def start_keepalive(self) -> None:
        """Begin to look whether the peer is there."""
        self.ping_timer = self.loop.call_later(min(LOOK_S, KEEPALIVE_S / 2), self._look)

    def _look(self) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        now_s = self.loop.time()
        if self.read_paused or self._resting:  # it is held back, so that nothing comes
            if hung_up(self.transport):
                self.transport.abort()
                return
            self._heard_s = now_s
            self._asked_s = None
        elif self._asked_s is not None and now_s - self._asked_s >= KEEPALIVE_S:
            self.conn.fail(1011, "keepalive ping timeout")
            self.handle_parser_exception()
            return
        elif self._asked_s is None and now_s - self._heard_s >= KEEPALIVE_S:
            self._asked_s = now_s
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.start_keepalive()


def raw_response(status: HTTPStatus, body: bytes = b"", headers: bytes = b"") -> bytes:
    """Return a connection's last response, where nothing else can write it; `headers` are lines with their ends."""
    line = b"HTTP/1.1 %d %s" % (status, status.phrase.encode("ascii"))
    return b"%s\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (line, headers, len(body), body)


def finish(transport: asyncio.Transport) -> None:
    """Say no more once what was written has gone out, and leave it to the peer to close; not for long.

    To close at once, with something unread, would be a reset: it overtakes what was written.
    """
    if transport.can_write_eof():
        transport.write_eof()
        transport.resume_reading()
    else:
        transport.close()
    cut_later(transport)


def cut_later(transport: asyncio.Transport) -> None:
    """Cut a connection off whose closing takes too long."""
    asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, transport.abort)


def hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed a connection that nothing is read from, where the system can tell (Linux)."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
