"""The WebSocket half of the port: what all connections need, and the subscribers of the daemon's own captions."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from streamer.events import End, Error, Event
from streamer.server.metrics import ServerMetrics
from streamer.server.outbox import Outbox
from streamer.stream.eventlog import EventLog

logger = logging.getLogger(__name__)

KEEPALIVE_S = 20.0  # silence after which the peer is asked whether it is there, and then for its answer
CLOSE_TIMEOUT_S = 5.0  # for the closing handshake; then the connection is cut
MAX_IGNORED_BYTES = 4096  # of a message from a subscriber, which has nothing to say
MAX_REASON_BYTES = 123  # of a close frame


@dataclass(frozen=True, slots=True)
class Close:
    """How a connection ends."""

    code: int
    reason: str = ""


GONE = Close(CloseCode.ABNORMAL_CLOSURE)  # the client closed it already
STOPPED = Close(CloseCode.GOING_AWAY, "the daemon stops")

T = TypeVar("T")


class Run(Protocol):
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


class Sender:
    """Sends the events of a feed to one client, as fast as that client reads, from one task."""

    def __init__(
        self,
        connection: ServerConnection,
        context: Context,
        feed: EventLog,
        *,
        after: int | None = None,
        session: str | None = None,
        greeting: Event | None = None,
    ) -> None:
        """Follow `feed` from `after` of `session` on (see `EventLog.subscribe`); `greeting` is sent before all else."""
        self._connection = connection
        self._context = context
        self._loop = asyncio.get_running_loop()
        # Set when there may be something to send.
        self._wakeup = asyncio.Event()
        # Set while everything there was has been handed to the connection.
        self.idle = asyncio.Event()
        # Set when the client fell too far behind.
        self.overflowed = asyncio.Event()
        self._greeting = greeting
        # Whether a fatal `error` was sent.
        self.failed = False
        # Whether `end` was sent.
        self.ended = False
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
        if self._greeting is not None:
            await self._send(self._greeting)
        while not self.ended:
            event = self._outbox.take()
            self._count_superseded()
            if event is None:
                self.idle.set()
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            await self._send(event)
            self.failed = self.failed or (isinstance(event, Error) and event.fatal)
            self.ended = isinstance(event, End)
            await asyncio.sleep(0)  # a long replay must not keep the others waiting

    def close(self) -> None:
        """Stop listening to the feed."""
        self._subscription.cancel()

    async def _send(self, event: Event) -> None:
        await self._connection.send(event.to_json())
        self._context.metrics.events_sent.labels(event.type).inc()

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
    connection: ServerConnection, context: Context, feed: EventLog, *, after: int | None, session: str | None
) -> None:
    """Serve one subscriber until it leaves, the feed ends, the server stops, or it falls too far behind."""
    sender = Sender(connection, context, feed, after=after, session=session)
    try:
        async with tasks() as run:
            sending = run(sender.run())
            ignoring = run(ignore_messages(connection))
            overflowed = run(sender.overflowed.wait())
            await first_of(sending, ignoring, overflowed, run(context.stopping.wait()))
            if context.stopping.is_set():
                await first_of(sending, ignoring, overflowed, run(sender.idle.wait()))
            if overflowed.done():
                context.metrics.too_slow.inc()
                close = sender.overflow
            elif sending.done():
                close = ended(sending, sender)
            elif ignoring.done():
                close = _result(ignoring) or GONE
            else:
                close = STOPPED
    finally:
        sender.close()
    await close_connection(connection, close)


async def close_connection(connection: ServerConnection, close: Close) -> None:
    """Close with a code, and cut the connection where the client does not take part."""
    if close is GONE:
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await connection.close(close.code, close.reason)
    except TimeoutError:
        connection.transport.abort()


def shortened(reason: str) -> str:
    """Return as much of a reason as a close frame holds (RFC 6455, 5.5)."""
    return reason.encode("utf-8")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


async def receive(connection: ServerConnection) -> str | bytes:
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


async def ignore_messages(connection: ServerConnection, max_bytes: int | None = MAX_IGNORED_BYTES) -> Close:
    """Read and drop what the client says; return how to close the connection where it says too much at once.

    Raises ConnectionClosed where the client leaves.
    """
    while True:
        message = await receive(connection) if max_bytes is None else await connection.recv()
        if max_bytes is not None and len(message) > max_bytes:
            return Close(CloseCode.MESSAGE_TOO_BIG, "subscribers only read; audio goes to /v1/stream")
        await asyncio.sleep(0)  # a flood of messages must not keep the others waiting


def ended(sending: "asyncio.Task[None]", sender: Sender) -> Close:
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


@contextlib.asynccontextmanager
async def tasks() -> "AsyncIterator[Run]":
    """Give a function that starts tasks; on leaving, those still running are cancelled."""
    started: list[asyncio.Task[Any]] = []

    def run(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(coroutine)
        started.append(task)
        return task

    try:
        yield run
    finally:
        await cancel(*started)


async def first_of(*tasks: "asyncio.Task[Any]") -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
