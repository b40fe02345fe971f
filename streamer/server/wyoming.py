"""The TCP port of Wyoming, Home Assistant's protocol (see `streamer.protocols.wyoming`)."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from streamer.errors import ConfigError, MissingExtraError, PortInUseError
from streamer.extras import requires
from streamer.outside import host_port, is_loopback
from streamer.protocols.wyoming import Wyoming, describe, error_line
from streamer.server.context import Context
from streamer.server.runtime import serve
from streamer.server.sockets import listen, reachable
from streamer.server.ws import ClientGoneError, Close

logger = logging.getLogger(__name__)

READ_BYTES = 2**16

MAX_UNSENT_BYTES = 2**20  # for a client: Home Assistant reads only after it has sent all its audio
CLOSE_TIMEOUT_S = 2.0  # for a client to read the last words


class WyomingServer:
    """Serves Wyoming's clients, which have no tokens: on this machine, unless the settings name another address."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.Server] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self._info = ""  # the answer to `describe`
        self._announcing: asyncio.Task[None] | None = None

    async def listen(self) -> int:
        """Open the port, and return it; clients wait until `serve`. Raises ConfigError if that is not possible."""
        host, port = self._context.settings.wyoming_host.strip("[]"), self._context.settings.wyoming_port
        try:
            self._sockets = await listen(host, port, "server.wyoming_")
        except PortInUseError:
            text = "is already in use (server.wyoming_port): stop the program that holds it, or choose another port"
            raise ConfigError(f"port {port} on {host} {text}") from None
        return int(self._sockets[0].getsockname()[1])

    async def serve(self, model: str, languages: Sequence[str]) -> None:
        """Serve clients from now on; announce the port if other machines can reach it."""
        self._info = describe(model, languages)
        for sock in self._sockets:
            self._listeners.append(await asyncio.start_server(self._accept, sock=sock, limit=READ_BYTES))
        host, port = self._context.settings.wyoming_host.strip("[]"), self._sockets[0].getsockname()[1]
        logger.info("listening on tcp://%s for Wyoming", host_port(host, port))
        if not is_loopback(host):
            logger.warning("Wyoming has no tokens: every client that reaches %s port %d is served", host, port)
            address = self._sockets[0].getsockname()[0]
            self._announcing = asyncio.create_task(announce("_wyoming._tcp.local.", address, port))

    def close(self) -> None:
        """Stop accepting connections."""
        for listener in self._listeners:
            listener.close()
        for sock in self._sockets:
            sock.close()

    async def stop(self, timeout_s: float) -> None:
        """Stop accepting connections, and return when the open ones are gone; abort them after `timeout_s`."""
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
            pass  # by `stop`
        except Exception:
            logger.exception("serving a client of Wyoming failed")
        finally:
            if full is None:
                self._context.limits.leave(address)
            writer.transport.abort()
            self._handlers.discard(task)


class _Connection:
    """A TCP connection as a `streamer.server.ws.Line`."""

    close_code: int | None = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: Context) -> None:
        self.gone = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._complete = False  # whether the client has sent all
        self._metrics = context.metrics
        writer.transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)

    def note_session(self, name: str) -> None:
        """Do nothing: these connections have no access log."""

    async def receive(self) -> bytes:
        """Return the next bytes, split anywhere; none once, when the client has sent all. Raises ClientGoneError.

        It may have shut down its sending half only, and still read. If it is gone, that shows when something is sent.
        """
        with contextlib.suppress(OSError):
            if not self._complete:
                data = await self._reader.read(READ_BYTES)
                self._complete = not data
                self._metrics.received_bytes.inc(len(data))
                return data
            await asyncio.shield(self._writer.wait_closed())  # which others wait for, too
        raise ClientGoneError

    async def send_text(self, text: str) -> None:
        """Send a line, waiting while too much is unsent. Raises ClientGoneError."""
        data = text.encode("utf-8")
        self._writer.write(data)
        self._metrics.sent_bytes.inc(len(data))
        try:
            await self._writer.drain()
        except OSError:
            raise ClientGoneError from None

    async def close(self, close: Close) -> None:
        """Close, and read for a while: else a reset would overtake the last words."""
        with contextlib.suppress(OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                self._writer.write_eof()
                while await self._reader.read(READ_BYTES):
                    pass
                self._writer.close()  # once all is sent
                await self._writer.wait_closed()


async def announce(kind: str, host: str, port: int) -> None:
    """Announce a service, such as `_wyoming._tcp.local.`, by mDNS (RFC 6762, RFC 6763) until cancelled."""
    try:
        requires("zeroconf", extra="discovery", purpose="mDNS")
    except MissingExtraError as error:
        logger.warning("port %d is not announced: %s", port, error)
        return
    # Late: it takes 10 MB, and is needed only if the port is open to a network.
    from zeroconf import Error
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    name = f"streamer-{socket.gethostname().partition('.')[0][:40]}"
    try:
        addresses = reachable(host)
        found = AsyncServiceInfo(kind, f"{name}.{kind}", port=port, parsed_addresses=addresses, server=f"{name}.local.")
        zeroconf = AsyncZeroconf(interfaces=addresses)
        try:
            await zeroconf.async_register_service(found, allow_name_change=True)
            await asyncio.Event().wait()
        finally:
            await zeroconf.async_close()
    except (OSError, RuntimeError, Error) as error:  # no network, for one
        logger.warning("port %d is not announced by mDNS (%s): give clients its address by hand", port, error)
