"""A socket whose connections speak TLS: accepted, counted, and only then allowed a handshake.

asyncio's own server tells of a connection once its handshake is done. Those that never finish it would be in no limit.
"""

import asyncio
import contextlib
import errno
import logging
import re
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from http import HTTPStatus

from streamer.outside import one_line
from streamer.server.connection import CLOSE_TIMEOUT_S, READ_BYTES, HttpProtocol, State, raw_response

logger = logging.getLogger(__name__)

MAX_REFUSALS = 32  # handshakes at once of connections for which there is no room, just to tell them
FULL_S = 1.0  # until another connection is accepted where the system had no room for one

TLS_HANDSHAKE = b"\x16"  # what a client that speaks TLS begins with (RFC 8446, 5.1)
MAX_PLAIN_BYTES = 8192  # of a request that comes without TLS

# Such a request, as browsers make it where somebody types an address without https.
_PLAIN_REQUEST = re.compile(
    rb"(?:GET|HEAD) (/[!-~]*) HTTP/1\.[01]\r\n(?:[^:\r\n]+:[^\r\n]*\r\n)*?host:[ \t]*([\w.:\[\]-]+)[ \t]*\r\n",
    re.IGNORECASE,
)

# Errors of a connection that was gone before it was accepted, after which the next may follow at once (accept(2)).
_ITS_OWN = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR)


class _SmallTls(sslproto.SSLProtocol):
    """TLS of one connection. asyncio's own takes 256 KiB for each at once."""

    max_size = READ_BYTES


class TlsListener:
    """Accepts connections until it is closed."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, state: State, make_protocol: Callable[[], HttpProtocol]
    ) -> None:
        """Begin to accept. A handshake has `server.header_timeout_s`."""
        self._sock = sock
        self._context = context
        self._state = state
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        # Handshakes under way, and how many of them are not counted.
        self._handshakes: set[asyncio.Task[None]] = set()
        self._n_uncounted = 0
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more, and give up the handshakes under way."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()
        with contextlib.suppress(NotImplementedError):  # Windows has none
            self._loop.remove_reader(self._sock)  # now: the next socket may get its number
        self._sock.close()

    async def _accept(self) -> None:
        while True:
            try:
                sock, peer = await self._loop.sock_accept(self._sock)
            except OSError as error:
                if error.errno not in _ITS_OWN:
                    # As asyncio's server does, so that whoever handles the loop's errors knows it.
                    message = "socket.accept() out of system resource"
                    self._loop.call_exception_handler({"message": message, "exception": error})
                    await asyncio.sleep(FULL_S)
                continue
            task = asyncio.create_task(self._shake_hands(sock, str(peer[0])))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, sock: socket.socket, address: str) -> None:
        """Let a connection in, or make room to tell it why not, which `HttpProtocol` does."""
        protocol = self._make_protocol()
        counted = protocol.count_in(address) is None
        if not counted and self._n_uncounted >= MAX_REFUSALS:
            self._state.context.metrics.refused("handshakes")
            sock.close()
            return
        self._n_uncounted += not counted
        timeout_s = self._state.context.settings.header_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                first = await self._first_byte(sock)
            if first != TLS_HANDSHAKE:
                _answer_plain(sock)
                raise ConnectionAbortedError("it does not speak TLS")
            shaken: asyncio.Future[None] = self._loop.create_future()
            tls = _SmallTls(
                self._loop,
                protocol,
                self._context,
                shaken,
                server_side=True,
                ssl_handshake_timeout=timeout_s,  # type: ignore[arg-type]
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
            )
            transport, _ = await self._loop.connect_accepted_socket(lambda: tls, sock)
            try:
                await shaken
            except BaseException:
                transport.close()
                raise
        except (OSError, EOFError) as error:  # TimeoutError and ssl.SSLError are OSErrors
            logger.debug("%s did not complete its handshake: %s", address, one_line(error))
            protocol.count_out()
            sock.close()
        except asyncio.CancelledError:
            protocol.count_out()
            sock.close()
            raise
        finally:
            self._n_uncounted -= not counted

    async def _first_byte(self, sock: socket.socket) -> bytes:
        """Wait for the first byte, and leave it there; on Windows, whose loop cannot wait for it, it counts as TLS."""
        ready = asyncio.Event()
        try:
            self._loop.add_reader(sock, ready.set)
        except NotImplementedError:
            return TLS_HANDSHAKE
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(sock)
        return sock.recv(1, socket.MSG_PEEK)


def _answer_plain(sock: socket.socket) -> None:
    """Send a browser to https, and tell all others what is spoken here. Raises OSError."""
    data = sock.recv(MAX_PLAIN_BYTES)
    request = _PLAIN_REQUEST.match(data)
    if request is not None and b"\r\nupgrade:" not in data.lower():
        path, host = request.groups()
        status, head, body = HTTPStatus.TEMPORARY_REDIRECT, b"Location: https://%s%s\r\n" % (host, path), b""
    else:
        status, head, body = HTTPStatus.BAD_REQUEST, b"", b'{"error":"this port speaks TLS: use https:// or wss://"}\n'
    sock.send(raw_response(status, body, head))
