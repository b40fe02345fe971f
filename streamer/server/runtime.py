"""The runtime of one connection in any protocol, over a WebSocket or TCP: it executes the actions of an adapter."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Protocol

import msgspec
from prometheus_client import Gauge
from websockets.frames import CloseCode

from streamer.daemon.streams import ClientStream
from streamer.engine.eventlog import EventLog
from streamer.errors import IdleError, StoppingError, StreamerError, UsageError
from streamer.events import End, Error, Event, Resumed
from streamer.protocols.adapter import (
    Action,
    Adapter,
    Change,
    Do,
    Finish,
    Follow,
    Hangup,
    Open,
    Report,
    Resume,
    Say,
    Write,
)
from streamer.server.context import Context
from streamer.server.follower import Follower
from streamer.server.replay import earlier_events
from streamer.server.ws import GONE, ClientGoneError, Close

logger = logging.getLogger(__name__)

FAILED = Close(CloseCode.INTERNAL_ERROR, "internal")
RESUMED_ELSEWHERE = Close(4000, "resumed elsewhere")
STOPPED = Close(CloseCode.GOING_AWAY, "the daemon stops: reconnect in a moment")

# Close codes of a client that will not resume; 1005: its close frame had no code.
_LEFT = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)


class Line(Protocol):
    """The transport of a connection, see `streamer.server.ws.Connection`."""

    gone: asyncio.Event
    close_code: int | None

    def note_session(self, name: str) -> None: ...

    async def receive(self) -> str | bytes: ...

    async def send_text(self, text: str) -> None: ...

    async def close(self, close: Close) -> None: ...


async def serve(line: Line, adapter: Adapter, context: Context, *, tenant: str = "") -> None:
    """Serve a connection to its end. `tenant` is the name of the client's token."""
    runtime = _Runtime(line, adapter, context, tenant)
    may_come_back = False
    try:
        close = await runtime.run()
        await line.close(close)
        may_come_back = runtime.may_come_back
    finally:
        runtime.leave(keep=may_come_back)


class _Runtime:
    """One connection, and its open session, if any."""

    def __init__(self, line: Line, adapter: Adapter, context: Context, tenant: str) -> None:
        self._line = line
        self._adapter = adapter
        self._context = context
        self._tenant = tenant
        self._tasks: set[asyncio.Task[None]] = set()
        # Actions for the session, in order. One task at a time executes them, and one sends.
        self._todo: deque[Action] = deque()
        self._working, self._sending = asyncio.Lock(), asyncio.Lock()
        # How to close the connection, once that is known; and how instead of normally, when the daemon stops.
        self._closing: asyncio.Future[Close] = asyncio.get_running_loop().create_future()
        self._stopped: Close | None = None
        self._stream: ClientStream | None = None
        self._follower: Follower | None = None
        self._following: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        # Ends the connection of a silent client; and the setting of how long it may be silent without a session.
        self._patience: asyncio.TimerHandle | None = None
        self._limit = "first_message_s"
        # Counts the connection.
        self._gauge: Gauge | None = None
        # Has the connection that had the session before leave it; set once this connection no longer uses the session.
        self._before: Callable[[], Awaitable[None]] | None = None
        self._detached = asyncio.Event()

    async def run(self) -> Close:
        """Exchange messages until one side ends; return how to close."""
        try:
            actions = self._adapter.begin()
            if any(isinstance(action, Say) for action in actions):  # the server speaks first
                self._limit = "idle_s"
            self._start(self._take(actions))
            self._start(self._read())
            self._start(self._stop())
            self._start(self._watch())
            return await self._closing
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._before is not None:
                await self._before()
            if not self._adapter.resumable:
                self._drop()
            if self._follower is not None:
                self._follower.close()
            self._expect_nothing()
            self._detached.set()

    @property
    def may_come_back(self) -> bool:
        """Whether the client may resume the session over another connection, now that this one is closed."""
        code = self._line.close_code or CloseCode.ABNORMAL_CLOSURE
        if self._follower is not None and self._follower.ended:  # it has all events, unless it did not answer the close
            return code == CloseCode.ABNORMAL_CLOSURE
        return self._closing.result() is not FAILED and code not in _LEFT

    def leave(self, *, keep: bool) -> None:
        """Keep the session for its client, or abandon it; nothing if another connection has it."""
        if self._gauge is not None:
            self._gauge.dec()
        stream, streams, connections = self._stream, self._context.services.streams, self._context.connections
        if stream is not None and connections.get(stream.feed.session) == self.give_way:
            del connections[stream.feed.session]
            streams.keep(stream) if keep else streams.abandon(stream)
        # Free the session now, not only at the next garbage collection.
        self._stream = self._follower = self._following = self._finishing = self._before = None

    async def give_way(self) -> None:
        """Leave the session to another connection; return when it is free."""
        self._close(RESUMED_ELSEWHERE)
        await self._detached.wait()

    # The client's messages.

    async def _read(self) -> None:
        while True:
            self._expect_message()
            message = await self._line.receive()
            self._expect_nothing()
            if self._stopped is not None or self._closing.done():
                continue
            self._limit = "idle_s"
            try:
                actions = self._adapter.receive(message)
            except StreamerError as error:
                actions = self._refusal(error)
            await self._send(self._queue(actions))
            await self._work()
            await asyncio.sleep(0)  # a flood of messages must not delay other clients

    def _expect_message(self) -> None:
        """End the connection if no message comes in time, and it has no session or its protocol requires messages."""
        self._expect_nothing()
        timeout_s = self._adapter.timeout_s
        if timeout_s is None and self._follower is None:
            timeout_s = getattr(self._context.settings, self._limit)
        if timeout_s is not None and not self._context.draining.is_set():
            error = IdleError(f"nothing came for {timeout_s:g} s (server.{self._limit})")
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(timeout_s, lambda: self._start(self._turn_away(error)))

    def _expect_nothing(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _turn_away(self, error: StreamerError) -> None:
        if self._follower is None or self._adapter.timeout_s is not None:  # none began just now
            await self._take([*self._refusal(error), Hangup(error.close_code, f"{error.code}: {error}")])

    def _refusal(self, error: StreamerError) -> Sequence[Action]:
        self._context.metrics.refused(error.code)
        return self._adapter.refused(error)

    # The adapter's actions.

    async def _take(self, actions: Sequence[Action]) -> None:
        """Send messages; actions for the session are executed meanwhile."""
        said = self._queue(actions)
        if self._todo and not self._working.locked():
            self._start(self._work())
        await self._send(said)

    def _queue(self, actions: Sequence[Action]) -> Sequence[Say | Hangup]:
        """Queue the actions for the session; return the others."""
        self._todo += [action for action in actions if not isinstance(action, Say | Hangup)]
        return [action for action in actions if isinstance(action, Say | Hangup)]

    async def _send(self, said: Sequence[Say | Hangup]) -> None:
        if not said:
            return
        async with self._sending:
            for action in said:
                if isinstance(action, Hangup):
                    await asyncio.sleep(action.after_s)
                    self._close(Close(action.code, action.reason))
                    return
                await self._line.send_text(action.text)

    async def _work(self) -> None:
        """Execute all queued actions."""
        async with self._working:
            while self._todo:
                action, stream = self._todo.popleft(), self._stream
                if isinstance(action, Open | Resume | Follow):
                    await self._begin(action)
                elif stream is not None and self._stopped is None:
                    try:
                        await self._perform(stream, action)
                    except ClientGoneError:
                        raise
                    except Exception as error:  # noqa: BLE001 - reported to the client and the log
                        self._fail(stream, error)

    async def _begin(self, action: Open | Resume | Follow) -> None:
        streams, tenant = self._context.services.streams, self._tenant
        match action:
            case Open(start):
                stream = await self._open(streams.open(start, tenant=tenant))
                if stream is not None:
                    self._follow(stream.feed, self._context.metrics.streams)
            case Resume(request):
                resuming = streams.resume(request.session, after=request.after, tenant=tenant)
                stream = await self._open(resuming)
                if stream is not None:
                    await self._resume(stream, request.after)
            case Follow(after, session):
                self._follow_input(after, session)

    async def _perform(self, stream: ClientStream, action: Action) -> None:
        match action:
            case Write(audio):
                await stream.write(audio)
            case Do(command):
                await stream.command(command)
            case Change(options):
                try:
                    await stream.change(msgspec.structs.replace(stream.options, **options))
                except UsageError as error:
                    await self._take(self._adapter.unchanged(error))
            case Report(error):
                stream.session.report(error)
            case Finish():
                self._finish(stream)

    # The session.

    async def _open(self, opening: Awaitable[ClientStream]) -> ClientStream | None:
        self._drop()
        try:
            stream = self._stream = await opening
        except StreamerError as error:
            await self._take(self._refusal(error))
            return None
        name = stream.feed.session
        self._before = self._context.connections.get(name)
        self._context.connections[name] = self.give_way
        if self._before is not None:
            await self._before()
        return stream

    async def _resume(self, stream: ClientStream, after: int) -> None:
        """Report how much of the client's audio arrived, and follow the session after the client's last event."""
        feed = stream.feed
        resumed = Resumed(heard_samples=stream.go_on())
        # A client with a later number than the last one gets all events: see `EventLog.subscribe`.
        await self._pass(resumed.stamped(after if after <= feed.last_seq else 0, feed.session))
        self._follow(feed, self._context.metrics.streams, after)

    def _follow_input(self, after: int | None, session: str | None) -> None:
        own, history, earlier = self._context.services.input, self._context.services.history, None
        assert own is not None
        feed = own.log
        if history is not None and after is not None and session is not None:
            earlier = earlier_events(history, feed, session, after)
        self._follow(feed, self._context.metrics.subscribers, after, session, earlier)

    def _follow(
        self,
        feed: EventLog,
        gauge: Gauge,
        after: int | None = None,
        session: str | None = None,
        earlier: AsyncGenerator[Event, None] | None = None,
    ) -> None:
        """Pass a session's events to the adapter until it ends, or the client falls too far behind."""
        if self._gauge is None:
            self._gauge = gauge
            gauge.inc()
        self._line.note_session(feed.session)
        if self._adapter.timeout_s is None:
            self._expect_nothing()
        follower = Follower(feed, self._context, self._overflow, after=after, session=session, earlier=earlier)
        self._follower = follower
        self._following = self._start(follower.run(self._pass))

    async def _pass(self, event: Event) -> None:
        metrics, is_over = self._context.metrics, isinstance(event, End)
        if isinstance(event, Error) and event.code == IdleError.code:
            metrics.refused(event.code)
        if is_over and not self._adapter.resumable:
            self._drop()  # its slot is free at once
        await self._take(self._adapter.on_event(event))
        metrics.events_sent.labels(event.type).inc()
        if is_over and self._context.draining.is_set():
            self._close(STOPPED)

    def _overflow(self, reason: str) -> None:
        if not self._closing.done():
            self._context.metrics.too_slow.inc()
            self._close(Close(CloseCode.TRY_AGAIN_LATER, reason))

    def _finish(self, stream: ClientStream) -> None:
        """Finish the session in a separate task: its last events are passed on meanwhile."""
        if self._finishing is None:
            self._finishing = self._start(stream.finish())

    def _fail(self, stream: ClientStream, error: Exception) -> None:
        """End the session with an error of the daemon."""
        code, text = "internal", "the daemon failed: see its log, and report it as a bug"
        if isinstance(error, StreamerError):
            code, text = error.code, str(error)
        else:
            logger.error("a client's session failed", exc_info=error, extra={"session": stream.feed.session})
        stream.session.report(Error(code=code, message=text, fatal=True))
        self._finish(stream)

    def _drop(self) -> None:
        """Abandon the session, if any; another may be opened."""
        for task in (self._following, self._finishing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if self._follower is not None:
            self._follower.close()
        stream = self._stream
        self._following = self._finishing = self._follower = self._stream = None
        if stream is not None:
            self._context.connections.pop(stream.feed.session, None)
            with contextlib.suppress(Exception):
                self._context.services.streams.abandon(stream)
            self._expect_message()

    # The end.

    async def _stop(self) -> None:
        """End the connection when the daemon stops; the reason says how the client continues."""
        await self._context.draining.wait()
        self._expect_nothing()
        stream, follower = self._stream, self._follower
        if stream is None and follower is not None:  # the daemon's own input has not ended yet
            await self._context.stopping.wait()
            await follower.idle.wait()
            again = f"reconnect with ?after={follower.last_sent}&session={follower.session}"
            self._close(Close(CloseCode.GOING_AWAY, f"the daemon stops: {again}"))
        elif stream is None:
            await self._turn_away(StoppingError("the daemon stops: it opens no sessions, reconnect in a moment"))
        elif self._adapter.resumable and stream.session.outlives:  # another daemon continues it, with all audio so far
            seq = follower.last_sent if follower is not None else 0
            again = f"resume with session={stream.feed.session}, after={seq}"
            self._close(Close(CloseCode.GOING_AWAY, f"the daemon stops: {again}"))
        elif self._finishing is None:
            self._stopped = STOPPED
            if self._adapter.resumable:
                n, name = stream.go_on(), stream.feed.session
                text = f"the daemon stops: the first {n} samples are made final; send the rest as a new stream"
                stream.session.report(Error(code=StoppingError.code, message=text, fatal=False, heard_samples=n))
                text = f"the daemon stops: {n} samples of session {name} were heard"
                self._stopped = Close(CloseCode.GOING_AWAY, text)
            self._finish(stream)

    async def _watch(self) -> None:
        await self._line.gone.wait()
        self._close(GONE)

    def _close(self, close: Close) -> None:
        if not self._closing.done():
            stopped = self._stopped if close.code == CloseCode.NORMAL_CLOSURE else None
            self._closing.set_result(stopped or close)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task of the connection; if it fails, the connection ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClientGoneError):
            self._close(GONE)
        elif error is not None:
            logger.error("serving a client failed", exc_info=error)
            self._close(FAILED)
