"""The WebSocket half of the port: what all connections need, and the subscribers of the daemon's own captions."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import CloseCode

from streamer.errors import IdleError
from streamer.events import End, Error, Event
from streamer.server import connection
from streamer.server.metrics import ServerMetrics
from streamer.server.outbox import Outbox
from streamer.stream.eventlog import EventLog, Subscription

logger = logging.getLogger(__name__)

MAX_IGNORED_BYTES = 4096  # of a message from a subscriber, which has nothing to say
MAX_REASON_BYTES = 123  # of a close frame


@dataclass(frozen=True, slots=True)
class Close:
    """How a connection ends."""

    code: int
    reason: str = ""


GONE = Close(CloseCode.ABNORMAL_CLOSURE)  # the client closed it already


class GoneError(Exception):
    """The client is gone; its close code is the connection's `close_code`."""


class Connection:
    """A WebSocket that was accepted."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        # Set when the connection is gone; what came over it before can still be received.
        self.gone: asyncio.Event = websocket.scope["extensions"].get(connection.GONE, asyncio.Event())
        # How the client closed it: 1005 without a code, 1006 where it did not; None while it is open.
        self.close_code: int | None = None

    def note_session(self, name: str) -> None:
        self._websocket.scope.setdefault("state", {})["session"] = name

    async def send(self, event: Event) -> None:
        """Send an event, waiting while the client does not read. Raises GoneError."""
        await self.send_text(event.to_json())

    async def send_text(self, text: str) -> None:
        """Send a text frame, waiting while the client does not read. Raises GoneError."""
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: the client's close frame has been received
            raise GoneError from None

    async def receive(self) -> str | bytes:
        """Return the client's next message. Raises GoneError where there is none."""
        if self.close_code is None:
            message = await self._websocket.receive()
            if message["type"] == "websocket.receive":
                text: str | None = message.get("text")
                return text if text is not None else bytes(message["bytes"])
            self.close_code = message.get("code") or CloseCode.ABNORMAL_CLOSURE
        raise GoneError

    async def close(self, close: Close) -> None:
        """Close with a code, unless the client did already, and learn how the client answers; it is cut off in time."""
        await self.shut(close)
        with contextlib.suppress(GoneError):
            while True:
                await self.receive()

    async def shut(self, close: Close) -> None:
        """Close with a code, unless it is closed; who receives learns how the client answers."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            if close is not GONE and self.close_code is None:
                await self._websocket.close(close.code, close.reason)


T = TypeVar("T")


class Run(Protocol):
    """Starts a task."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> "asyncio.Task[T]": ...


@dataclass(frozen=True, slots=True)
class Context:
    """What all connections of a server share."""

    # Events that may wait for one client.
    queue_events: int

    # Set when streams are to end, since the server will stop; and when it stops.
    draining: asyncio.Event
    stopping: asyncio.Event

    metrics: ServerMetrics


class Reader(Protocol):
    """Who events are sent to: a connection, or what translates for one."""

    def note_session(self, name: str) -> None:
        """Let the access log say which session it was about."""

    async def send(self, event: Event) -> None:
        """Take an event, waiting while the client does not read. Raises GoneError."""


class Sender:
    """Sends the events of a feed to one client, as fast as that client reads, from one task."""

    def __init__(
        self,
        connection: Reader,
        context: Context,
        feed: EventLog,
        *,
        after: int | None = None,
        session: str | None = None,
        greeting: Event | None = None,
        earlier: AsyncGenerator[Event, None] | None = None,
    ) -> None:
        """Follow `feed` from `after` of `session` on (see `EventLog.subscribe`); `greeting` is sent before all else.

        What `earlier` yields is sent before the feed is followed, from behind the last of it.
        """
        self._connection = connection
        self._context = context
        self._feed = feed
        # Session and number of the event that was taken last.
        self._place = (session or feed.session, after or 0)
        self._loop = asyncio.get_running_loop()
        # Set when there may be something to send.
        self._wakeup = asyncio.Event()
        # Set while everything there was has been handed to the connection.
        self.idle = asyncio.Event()
        # Set when the client fell too far behind.
        self.overflowed = asyncio.Event()
        self._greeting = greeting
        # Code of the fatal `error` that was sent; empty before.
        self.failure = ""
        # Whether `end` was sent.
        self.ended = False
        self._earlier = earlier
        # None before the feed is followed.
        self._subscription: Subscription | None = None
        self._outbox = Outbox(context.queue_events)
        # What is no event of the session and waits to be sent, the newest; see `EventLog.notify`.
        self._notice: Event | None = None
        # Of its dropped partials, how many the metrics have.
        self._n_superseded = 0
        if earlier is None:
            self._follow(after, session)
        else:
            self.idle.set()  # the client can ask for it again: a stop does not wait

    @property
    def session(self) -> str:
        return self._place[0]

    @property
    def last_sent(self) -> int:
        """Number of the event that was sent last; before the first, of the one that the client had."""
        return self._place[1]

    @property
    def overflow(self) -> Close:
        """How to close the connection of a client that fell too far behind."""
        return Close(CloseCode.TRY_AGAIN_LATER, self._outbox.overflow_reason)

    async def run(self) -> None:
        """Send until `end` was sent. Raises GoneError where the client left first."""
        if self._greeting is not None:
            await self._send(self._greeting)
        if self._earlier is not None:
            async with contextlib.aclosing(self._earlier) as earlier:
                async for old in earlier:
                    self._place = (old.session, old.seq)
                    await self._send(old)
                    await asyncio.sleep(0)
            self.idle.clear()
            self._follow(self._place[1], self._place[0])
        while not self.ended:
            notice, self._notice = self._notice, None
            if notice is not None:
                await self._send(notice.stamped(self.last_sent, self.session))
                continue
            event = self._outbox.take()
            self._count_superseded()
            if event is None:
                self.idle.set()
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            self._place = (event.session, event.seq)
            await self._send(event)
            if isinstance(event, Error) and event.fatal:
                self.failure = event.code
            self.ended = isinstance(event, End)
            await asyncio.sleep(0)  # a long replay must not keep the others waiting

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()

    def _follow(self, after: int | None, session: str | None) -> None:
        # From here on events come in, by way of the loop's queue: none before this method has returned.
        self._subscription = self._feed.subscribe(self._on_event, after=after, session=session)
        self._outbox = Outbox(self._context.queue_events, self._subscription.backlog)
        self._context.metrics.watch(self._outbox)
        self._connection.note_session(self._feed.session)

    async def _send(self, event: Event) -> None:
        await self._connection.send(event)
        self._context.metrics.events_sent.labels(event.type).inc()

    def _on_event(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event) -> None:
        if event.seq:
            self._outbox.put(event)
        else:
            self._notice = event
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
    connection: Connection,
    context: Context,
    feed: EventLog,
    *,
    after: int | None,
    session: str | None,
    earlier: AsyncGenerator[Event, None] | None = None,
) -> None:
    """Serve one subscriber until it leaves, the feed ends, the server stops, or it falls too far behind."""
    sender = Sender(connection, context, feed, after=after, session=session, earlier=earlier)
    try:
        async with tasks() as run:
            sending = run(sender.run())
            ignoring = run(ignore_messages(connection, MAX_IGNORED_BYTES))
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
                close = ignoring.result()
            else:
                close = stopped(sender)
    finally:
        sender.close()
    await connection.close(close)


def stopped(sender: Sender) -> Close:
    """How to close a connection when the server stops: with what the client needs to go on."""
    return Close(
        CloseCode.GOING_AWAY, f"the daemon stops: reconnect with ?after={sender.last_sent}&session={sender.session}"
    )


def shortened(reason: str) -> str:
    """Return as much of a reason as a close frame holds (RFC 6455, 5.5)."""
    return reason.encode("utf-8")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


async def ignore_messages(connection: Connection, max_bytes: int | None = None) -> Close:
    """Read and drop what the client says, until it leaves or says too much at once; return how to close."""
    try:
        while True:
            message = await connection.receive()
            if max_bytes is not None and len(message) > max_bytes:
                return Close(CloseCode.MESSAGE_TOO_BIG, "subscribers only read; audio goes to /v1/stream")
            await asyncio.sleep(0)  # a flood of messages must not keep the others waiting
    except GoneError:
        return GONE


def ended(sending: "asyncio.Task[None]", sender: Sender) -> Close:
    """How to close a connection over which all was sent, or that the client closed."""
    # Not `result`, which would raise: the traceback holds this frame, and so the task, and so the exception.
    error = sending.exception()
    if isinstance(error, GoneError):
        return GONE
    if error is not None:
        logger.error("sending to a client failed", exc_info=error, extra={"session": sender.session})
        return Close(CloseCode.INTERNAL_ERROR, "internal")
    if sender.failure == IdleError.code:
        return Close(CloseCode.POLICY_VIOLATION, sender.failure)
    return Close(CloseCode.INTERNAL_ERROR if sender.failure else CloseCode.NORMAL_CLOSURE)


@contextlib.asynccontextmanager
async def tasks() -> "AsyncIterator[Run]":
    """Give a function that starts tasks; on leaving, those still running are cancelled."""
    running: set[asyncio.Task[Any]] = set()

    def forget(task: "asyncio.Task[Any]") -> None:
        running.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio logs one that was never asked for, such as GoneError from a task nobody awaits

    def run(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(coroutine)
        running.add(task)
        task.add_done_callback(forget)
        return task

    try:
        yield run
    finally:
        await cancel(*running)


async def first_of(*tasks: "asyncio.Task[Any]") -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
