"""Wyoming's own TCP port (see `streamer.protocols.wyoming`), and how Home Assistant finds it."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from streamer.errors import ConfigError, PortInUseError
from streamer.outside import is_loopback
from streamer.protocols.wyoming import Wyoming, describe, error_line
from streamer.server.announce import announce
from streamer.server.interfaces import Context
from streamer.server.runtime import serve
from streamer.server.sockets import listen
from streamer.server.ws import Close, GoneError

logger = logging.getLogger(__name__)

READ_BYTES = 2**16

# Text that waits for a client: Home Assistant reads only when it has sent all its audio.
MAX_UNSENT_BYTES = 2**20

CLOSE_TIMEOUT_S = 2.0  # for a client to read the last words


class WyomingServer:
    """Serves Wyoming's clients, who show no token: on this machine, unless the settings name another address."""

    def __init__(self, context: Context) -> None:
        """Prepare to serve; connections count among those of the server."""
        self._context = context
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.Server] = []
        self._handlers: set[asyncio.Task[None]] = set()
        # What answers to `describe`.
        self._info = ""
        self._announcing: asyncio.Task[None] | None = None

    async def listen(self) -> int:
        """Take the port, and return it; clients wait until `serve`. Raises ConfigError where it cannot be had."""
        host, port = self._context.settings.wyoming_host.strip("[]"), self._context.settings.wyoming_port
        try:
            self._sockets = await listen(host, port, "server.wyoming_")
        except PortInUseError:
            text = "is already in use (server.wyoming_port): stop the program that holds it, or choose another port"
            raise ConfigError(f"port {port} on {host} {text}") from None
        return int(self._sockets[0].getsockname()[1])

    async def serve(self, model: str, languages: Sequence[str]) -> None:
        """Serve clients from now on; those elsewhere find it by mDNS."""
        self._info = describe(model, languages)
        for sock in self._sockets:
            self._listeners.append(await asyncio.start_server(self._accept, sock=sock, limit=READ_BYTES))
        host, port = self._context.settings.wyoming_host.strip("[]"), self._sockets[0].getsockname()[1]
        logger.info("listening on tcp://%s:%d for Wyoming", host, port)
        if not is_loopback(host):
            logger.warning("Wyoming knows no tokens: whoever reaches %s port %d is served", host, port)
            address = self._sockets[0].getsockname()[0]
            self._announcing = asyncio.create_task(announce("_wyoming._tcp.local.", address, port))

    def close(self) -> None:
        """Take no more connections."""
        for listener in self._listeners:
            listener.close()
        for sock in self._sockets:
            sock.close()

    async def stop(self, timeout_s: float) -> None:
        """Take no more connections, and return when the open ones are gone; cut them off after `timeout_s`."""
        self.close()
        if self._announcing is not None:
            self._announcing.cancel()
            await asyncio.gather(self._announcing, return_exceptions=True)
        if self._handlers:
            _, late = await asyncio.wait(self._handlers, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        address = str((writer.get_extra_info("peername") or [""])[0])
        full = self._context.limits.enter(address)
        try:
            if full is None:
                await serve(_Connection(reader, writer, self._context), Wyoming(self._info), self._context)
            else:
                self._context.metrics.refused(full.reason)
                writer.write(error_line(full.message, full.reason).encode("utf-8"))
        except asyncio.CancelledError:
            pass  # `stop` cuts it off
        except Exception:
            logger.exception("serving a client of Wyoming failed")
        finally:
            if full is None:
                self._context.limits.leave(address)
            writer.transport.abort()
            self._handlers.discard(task)


class _Connection:
    """A TCP connection, as the runtime uses it."""

    close_code: int | None = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: Context) -> None:
        self.gone = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._metrics = context.metrics
        writer.transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)

    def note_session(self, name: str) -> None:
        """There is no access log of these connections."""

    async def receive(self) -> bytes:
        """Return the next bytes, cut anywhere. Raises GoneError where there are none."""
        data = b""
        with contextlib.suppress(OSError):
            data = await self._reader.read(READ_BYTES)
        if not data:
            self.gone.set()
            raise GoneError
        self._metrics.received_bytes.inc(len(data))
        return data

    async def send_text(self, text: str) -> None:
        """Send a line, waiting while the client has too much to read. Raises GoneError."""
        data = text.encode("utf-8")
        self._writer.write(data)
        self._metrics.sent_bytes.inc(len(data))
        try:
            await self._writer.drain()
        except OSError:
            raise GoneError from None

    async def close(self, close: Close) -> None:
        """Close, and read what still comes, for a while: else the client would see an error before the last words."""
        with contextlib.suppress(OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                self._writer.write_eof()
                while await self._reader.read(READ_BYTES):
                    pass
