"""The WebSocket half of the port: one connection of a subscriber, one of a client with its own audio."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from streamer.errors import BusyError, ProtocolError, StreamerError, UsageError
from streamer.events import End, Error, Event
from streamer.server.interfaces import ClientStream, Feed, Streams, StreamStart, parse_object
from streamer.server.metrics import ServerMetrics
from streamer.server.outbox import Outbox

logger = logging.getLogger(__name__)

KEEPALIVE_S = 20.0  # silence after which the peer is asked whether it is there, and then for its answer
CLOSE_TIMEOUT_S = 5.0  # for the closing handshake; then the connection is cut
MAX_IGNORED_BYTES = 4096  # of a message from a subscriber, which has nothing to say
MAX_REASON_BYTES = 123  # of a close frame
ENCODED_EVENTS = 64  # events kept in their written form, for the next subscriber

# What the library closes a connection with when the client breaks the framing: protocol, encoding, size.
_FRAMING_CODES = (CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_DATA, CloseCode.MESSAGE_TOO_BIG)


@dataclass(frozen=True, slots=True)
class Close:
    """How a connection ends."""

    code: int
    reason: str = ""


class EventWriter:
    """Writes events as JSON, once for all subscribers that get the same event at about the same time."""

    def __init__(self) -> None:
        # The last events that were written, and what came of it.
        self._written: OrderedDict[tuple[str, int], tuple[Event, bytes]] = OrderedDict()

    def write(self, event: Event) -> bytes:
        """Return the event as UTF-8 JSON."""
        key = (event.session, event.seq)
        known = self._written.get(key)
        if known is not None and known[0] is event:
            return known[1]
        data = event.to_json().encode("utf-8")
        self._written[key] = (event, data)
        if len(self._written) > ENCODED_EVENTS:
            self._written.popitem(last=False)
        return data


GONE = Close(CloseCode.ABNORMAL_CLOSURE)  # the client closed it already
STOPPED = Close(CloseCode.GOING_AWAY, "the daemon stops")

T = TypeVar("T")


class _Run(Protocol):
    """Starts a task."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> "asyncio.Task[T]": ...


@dataclass(frozen=True, slots=True)
class Context:
    """What all connections of a server share."""

    # Events that may wait for one client.
    queue_events: int

    # Set when the server stops.
    stopping: asyncio.Event

    metrics: ServerMetrics
    writer: EventWriter


class Sender:
    """Sends the events of a feed to one client, as fast as that client reads, from one task."""

    def __init__(
        self,
        connection: ServerConnection,
        context: Context,
        feed: Feed,
        *,
        after: int | None = None,
        session: str | None = None,
    ) -> None:
        self._connection = connection
        self._context = context
        self._loop = asyncio.get_running_loop()
        # Set when there may be something to send.
        self._wakeup = asyncio.Event()
        # Set while everything there was has been handed to the connection.
        self.idle = asyncio.Event()
        # Set when the client fell too far behind.
        self.overflowed = asyncio.Event()
        # Whether a fatal `error` was sent.
        self.failed = False
        # From here on events come in, by way of the loop's queue: none before this method has returned.
        self._subscription = feed.subscribe(self._on_event, after=after, session=session)
        self._outbox = Outbox(context.queue_events, self._subscription.backlog)
        # Of its dropped partials, how many the metrics have.
        self._n_superseded = 0

    @property
    def overflow(self) -> Close:
        """How to close the connection of a client that fell too far behind."""
        return Close(CloseCode.TRY_AGAIN_LATER, self._outbox.overflow_reason)

    async def run(self) -> None:
        """Send until `end` was sent. Raises ConnectionClosed where the client left first."""
        while True:
            event = self._outbox.take()
            self._count_superseded()
            if event is None:
                self.idle.set()
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            await self._connection.send(self._context.writer.write(event), text=True)
            self._context.metrics.events_sent.labels(event.type).inc()
            self.failed = self.failed or (isinstance(event, Error) and event.fatal)
            if isinstance(event, End):
                return
            await asyncio.sleep(0)  # a long replay must not keep the others waiting

    def close(self) -> None:
        """Stop listening to the feed."""
        self._subscription.cancel()

    def _on_event(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event) -> None:
        self._outbox.put(event)
        self._count_superseded()
        if self._outbox.overflowed:
            self.overflowed.set()
        self.idle.clear()
        self._wakeup.set()

    def _count_superseded(self) -> None:
        """Count the partials that the outbox has dropped since the last time."""
        self._context.metrics.partials_superseded.inc(self._outbox.n_superseded - self._n_superseded)
        self._n_superseded = self._outbox.n_superseded


async def serve_captions(
    connection: ServerConnection, context: Context, feed: Feed, *, after: int | None, session: str | None
) -> None:
    """Serve one subscriber until it leaves, the feed ends, the server stops, or it falls too far behind."""
    sender = Sender(connection, context, feed, after=after, session=session)
    try:
        async with _tasks() as run:
            sending = run(sender.run())
            ignoring = run(_ignore_messages(connection))
            overflowed = run(sender.overflowed.wait())
            await _first(sending, ignoring, overflowed, run(context.stopping.wait()))
            if context.stopping.is_set():
                await _first(sending, ignoring, overflowed, run(sender.idle.wait()))
            if overflowed.done():
                context.metrics.too_slow.inc()
                close = sender.overflow
            elif sending.done():
                close = _ended(sending, sender)
            elif ignoring.done():
                close = _result(ignoring) or GONE
            else:
                close = STOPPED
    finally:
        sender.close()
    await close_connection(connection, close)


async def serve_stream(connection: ServerConnection, context: Context, streams: Streams) -> None:
    """Serve one client with its own audio: read its first message, open a session for it, and see that through."""
    try:
        first = await _receive(connection)
    except ConnectionClosed:
        return
    try:
        start, rest = _parse_first(first)
        stream = streams.open(start)
    except StreamerError as error:
        busy = isinstance(error, BusyError)
        event = Error(seq=1, code=error.code, message=str(error), fatal=True)
        with contextlib.suppress(ConnectionClosed):
            await connection.send(event.to_json())
            context.metrics.events_sent.labels(event.type).inc()
        close = (
            Close(CloseCode.TRY_AGAIN_LATER, _shortened(f"{error.code}: {error}"))
            if busy
            else Close(CloseCode.POLICY_VIOLATION, error.code)
        )
        await close_connection(connection, close)
        return
    with context.metrics.streams.track_inprogress():
        await _StreamConnection(connection, context, stream).run(rest)


class _StreamConnection:
    """A client's audio in, its session's events out."""

    def __init__(self, connection: ServerConnection, context: Context, stream: ClientStream) -> None:
        self._connection = connection
        self._context = context
        self._stream = stream
        self._sender = Sender(connection, context, stream.feed)
        # Whether the session was seen to its end.
        self._finished = False

    async def run(self, first: str | bytes | None) -> None:
        """Talk with the client, whose first message has been read, until the session is over."""
        try:
            close = await self._converse(first)
        finally:
            if not self._finished:
                self._stream.abandon()
            self._sender.close()
        await close_connection(self._connection, close)

    async def _converse(self, first: str | bytes | None) -> Close:
        async with _tasks() as run:
            sending = run(self._sender.run())
            overflowed = run(self._sender.overflowed.wait())
            reading = run(self._take_audio(first))
            await _first(sending, reading, overflowed, run(self._context.stopping.wait()))
            if overflowed.done():
                return self._too_slow()
            if sending.done():  # the session ended by itself, or the client is gone
                return _ended(sending, self._sender)
            if not reading.done():
                await _cancel(reading)
                close = STOPPED
            else:
                close = _result(reading) or GONE
                if close is GONE and not _broke_framing(reading.exception()):
                    return GONE

            # The client may still leave, or stop to read, while its last words are transcribed and sent.
            ignoring = None if close is GONE else run(_ignore_messages(self._connection, max_bytes=None))
            finishing = run(self._finish())
            await _first(finishing, overflowed, *([ignoring] if ignoring else []))
            if finishing.done():
                close = finishing.result() or close
                await _first(sending, overflowed, *([ignoring] if ignoring else []))
            return self._too_slow() if overflowed.done() else close

    def _too_slow(self) -> Close:
        self._context.metrics.too_slow.inc()
        return self._sender.overflow

    async def _take_audio(self, message: str | bytes | None) -> Close:
        """Hand frames on until the client finishes or errs. Raises ConnectionClosed where it leaves."""
        try:
            while True:
                if message is None:
                    message = await _receive(self._connection)
                if isinstance(message, bytes):
                    await self._stream.write(message)
                elif parse_object(message).get("type") == "finish":
                    return Close(CloseCode.NORMAL_CLOSURE)
                else:
                    raise ProtocolError(
                        f"text frame {message!r:.60} is out of place: expected binary audio frames"
                        ' or {"type":"finish"}; start is only the first frame'
                    )
                message = None
        except StreamerError as error:
            self._stream.report(error.code, str(error), fatal=True)
            wrong = isinstance(error, UsageError)
            return Close(CloseCode.UNSUPPORTED_DATA if wrong else CloseCode.INTERNAL_ERROR, error.code)
        except ConnectionClosed:
            raise
        except Exception:
            logger.exception("a client's stream failed")
            return self._report_bug()

    async def _finish(self) -> Close | None:
        """See the session to its end; return how to close the connection where that went wrong."""
        try:
            await self._stream.finish()
        except StreamerError as error:
            self._stream.report(error.code, str(error), fatal=True)
            self._stream.abandon()
            return Close(CloseCode.INTERNAL_ERROR, error.code)
        except Exception:
            logger.exception("a client's stream failed at its end")
            close = self._report_bug()
            self._stream.abandon()
            return close
        self._finished = True
        return None

    def _report_bug(self) -> Close:
        self._stream.report("internal", "the daemon failed: see its log, and report it as a bug", fatal=True)
        return Close(CloseCode.INTERNAL_ERROR, "internal")


async def close_connection(connection: ServerConnection, close: Close) -> None:
    """Close with a code, and cut the connection where the client does not take part."""
    if close is GONE:
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await connection.close(close.code, close.reason)
    except TimeoutError:
        connection.transport.abort()


def _shortened(reason: str) -> str:
    """Return as much of a reason as a close frame holds (RFC 6455, 5.5)."""
    return reason.encode("utf-8")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


def _parse_first(message: str | bytes) -> tuple[StreamStart, str | bytes | None]:
    """Return what the first message says of the audio, and what of it is still to be handled."""
    if isinstance(message, bytes):
        return StreamStart(), message
    if parse_object(message).get("type") == "finish":
        return StreamStart(), message
    return StreamStart.from_json(message), None


async def _receive(connection: ServerConnection) -> str | bytes:
    """Return the client's next message; where there is none for long, see whether the client still lives.

    The library's own keepalive does not fit a client whose audio is taken in more slowly than it sends it: the answer
    to a ping waits behind that audio. Here, any message counts as a sign of life.

    Raises ConnectionClosed where the client is gone.
    """
    pong: Awaitable[float] | None = None
    while True:
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                return await connection.recv()
        except TimeoutError:
            pass
        try:
            if isinstance(pong, asyncio.Future) and not pong.done():
                raise TimeoutError
            async with asyncio.timeout(KEEPALIVE_S):  # a client that reads nothing keeps even a ping waiting
                pong = await connection.ping()
        except TimeoutError:
            await close_connection(connection, Close(CloseCode.INTERNAL_ERROR, "keepalive ping timeout"))


async def _ignore_messages(connection: ServerConnection, max_bytes: int | None = MAX_IGNORED_BYTES) -> Close:
    """Read and drop what the client says; return how to close the connection where it says too much at once.

    Raises ConnectionClosed where the client leaves.
    """
    while True:
        message = await _receive(connection) if max_bytes is None else await connection.recv()
        if max_bytes is not None and len(message) > max_bytes:
            return Close(CloseCode.MESSAGE_TOO_BIG, "subscribers only read; audio goes to /v1/stream")
        await asyncio.sleep(0)  # a flood of messages must not keep the others waiting


def _ended(sending: "asyncio.Task[None]", sender: Sender) -> Close:
    try:
        sending.result()
    except ConnectionClosed:
        return GONE
    return Close(CloseCode.INTERNAL_ERROR if sender.failed else CloseCode.NORMAL_CLOSURE)


def _result(task: "asyncio.Task[Close]") -> Close | None:
    """Return the result of a task that is done, None where the client left."""
    try:
        return task.result()
    except ConnectionClosed:
        return None


def _broke_framing(lost: BaseException | None) -> bool:
    """Whether the library closed the connection for what the client sent.

    What such a client said before is transcribed to its end, for whatever else follows the session; one that just
    left is not waited for.
    """
    return isinstance(lost, ConnectionClosed) and lost.sent is not None and lost.sent.code in _FRAMING_CODES


@contextlib.asynccontextmanager
async def _tasks() -> "AsyncIterator[_Run]":
    """Give a function that starts tasks; on leaving, those still running are cancelled."""
    tasks: list[asyncio.Task[Any]] = []

    def run(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(coroutine)
        tasks.append(task)
        return task

    try:
        yield run
    finally:
        await _cancel(*tasks)


async def _first(*tasks: "asyncio.Task[Any]") -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
