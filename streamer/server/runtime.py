"""The runtime of one connection in any protocol, over a WebSocket or TCP: it executes the actions of an adapter.

A connection is a conversation: one task reads the client's messages, one executes actions for the session, one passes
the session's events on, and one ends it all when the daemon stops.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence

import msgspec
from prometheus_client import Gauge
from websockets.frames import CloseCode

from streamer.daemon.streams import ClientStream
from streamer.errors import IdleError, StoppingError, StreamerError, UsageError
from streamer.events import End, Error, Event, Resumed
from streamer.protocols.adapter import (
    STOPPED,
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
from streamer.server.reading import RoomFollower, follow, open_stream
from streamer.server.ws import GONE, ClientGoneError, Close, Line

logger = logging.getLogger(__name__)

FAILED = Close(CloseCode.INTERNAL_ERROR, "internal")
RESUMED_ELSEWHERE = Close(4000, "resumed elsewhere")

# Close codes of a client that will not resume; 1005: its close frame had no code.
_LEFT = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)


class _EndError(Exception):
    """The conversation is over: its other tasks are to end."""


async def serve(line: Line, adapter: Adapter, context: Context, *, tenant: str = "") -> None:
    """Serve a connection to its end. `tenant` is the name of the client's token."""
    conversation = Conversation(line, adapter, context, tenant)
    close = FAILED
    try:
        wanted = await conversation.run()
        await line.close(wanted)
        close = wanted
    finally:
        conversation.leave(close)


class Conversation:
    """One connection, and its session, if it has one."""

    def __init__(self, line: Line, adapter: Adapter, context: Context, tenant: str) -> None:
        self._line = line
        self._adapter = adapter
        self._context = context
        self._tenant = tenant
        self._tasks = asyncio.TaskGroup()
        # Actions for the session, in order; and what is held by who sends, as the messages of a call stay together.
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._sending = asyncio.Lock()
        # How to close the connection, once that is known.
        self._closing: asyncio.Future[Close] = asyncio.get_running_loop().create_future()
        # The session, if there is one, and the task that passes its events on; no stream: they are not this client's.
        self._stream: ClientStream | None = None
        self._follower: Follower | RoomFollower | None = None
        self._following: asyncio.Task[None] | None = None
        # What is held while this connection, and no other, uses the session.
        self._in_use: asyncio.Lock | None = None
        # Ends the connection of a silent client; and whether anybody has said anything yet.
        self._patience: asyncio.TimerHandle | None = None
        self._has_begun = False

    async def run(self) -> Close:
        """Exchange messages until one side ends; return how to close."""
        try:
            async with self._tasks as tasks:
                actions = self._adapter.begin()
                self._has_begun = any(isinstance(action, Say) for action in actions)
                tasks.create_task(self._take(actions))
                tasks.create_task(self._read())
                working = tasks.create_task(self._work())
                tasks.create_task(self._stop(working))
                tasks.create_task(self._watch())
                await asyncio.shield(self._closing)
                raise _EndError
        except* _EndError:
            pass
        except* ClientGoneError:
            self._close(GONE)
        except* Exception as errors:
            logger.error("serving a client failed", exc_info=errors)
            self._close(FAILED)
        finally:
            if not self._adapter.resumable:
                self._drop()
            if self._follower is not None:
                self._follower.close()
            self._expect_nothing()
            if self._in_use is not None:
                self._in_use.release()
        return self._closing.result()

    def _close(self, close: Close) -> None:
        """End the connection, unless it ends already."""
        if not self._closing.done():
            self._closing.set_result(close)

    def leave(self, close: Close) -> None:
        """Keep the session for its client, or abandon it if none will come back, unless another connection has it."""
        stream, streams, streaming = self._stream, self._context.services.streams, self._context.streaming
        if stream is not None and streaming.get(stream.log.session) is self._closing:
            del streaming[stream.log.session]
            streams.keep(stream) if self._may_come_back(close) else streams.give_up(stream)
        # Free the session now, not only at the next garbage collection.
        self._stream = self._follower = self._following = None

    def _may_come_back(self, close: Close) -> bool:
        """Return whether the client may resume the session over another connection."""
        code = self._line.close_code or CloseCode.ABNORMAL_CLOSURE
        if self._follower is not None and self._follower.ended:  # it has all events, unless it did not answer the close
            return close is not FAILED and code == CloseCode.ABNORMAL_CLOSURE
        return close is not FAILED and code not in _LEFT

    # The client's messages.

    async def _read(self) -> None:
        while True:
            self._expect_message()
            message = await self._line.receive()
            self._expect_nothing()
            self._has_begun = True
            if self._context.draining.is_set():
                continue
            try:
                actions = self._adapter.receive(message)
            except StreamerError as error:
                actions = self._refusal(error)
            await self._take(actions)
            await self._actions.join()
            await asyncio.sleep(0)  # a flood of messages must not delay other clients

    def _expect_message(self) -> None:
        """End the connection if no message comes in time, and it has no session or its protocol requires messages."""
        self._expect_nothing()
        settings, timeout_s = self._context.settings, self._adapter.timeout_s
        setting = "idle_s" if self._has_begun else "first_message_s"
        if timeout_s is None and self._follower is None:
            timeout_s = settings.idle_s if self._has_begun else settings.first_message_s
        if timeout_s is not None and not self._context.draining.is_set():
            error = IdleError(f"nothing came for {timeout_s:g} s (server.{setting})")
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(timeout_s, lambda: self._tasks.create_task(self._turn_away(error)))

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
        """Send messages; actions for the session are executed meanwhile, in order."""
        said = [action for action in actions if isinstance(action, Say | Hangup)]
        for action in actions:
            if not isinstance(action, Say | Hangup):
                self._actions.put_nowait(action)
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
        """Execute actions for the session."""
        while True:
            await self._execute(await self._actions.get())
            self._actions.task_done()

    async def _execute(self, action: Action) -> None:
        streams, stream = self._context.services.streams, self._stream
        match action:
            case Open(start):
                await self._open(open_stream(streams, start, self._tenant))
            case Resume(request):
                resuming = streams.resume(request.session, after=request.after, tenant=self._tenant)
                await self._open(resuming, request.after)
            case Follow():
                self._follow(follow(action, self._context, self._closing), self._context.metrics.subscribers)
            case Finish() if stream is not None:
                stream.finish()
            case _ if stream is not None:
                try:
                    answer = await self._ask(stream, action)
                except Exception as error:  # noqa: BLE001 - reported to the client and the log
                    self._fail(stream, error)
                else:
                    await self._take(answer)

    async def _ask(self, stream: ClientStream, action: Action) -> Sequence[Action]:
        """Ask something of the session; return what follows if it refuses."""
        match action:
            case Write(audio):
                await stream.write(audio)
            case Do(command):
                await stream.command(command)
            case Report(error):
                stream.report(error)
            case Change(options):
                try:
                    await stream.change(msgspec.structs.replace(stream.options, **options))
                except UsageError as error:
                    return self._adapter.unchanged(error)
        return ()

    # The session.

    async def _open(self, opening: Awaitable[ClientStream], after: int | None = None) -> None:
        """Have another session, instead of one that there may be; its client has events up to number `after`."""
        self._drop()
        try:
            stream = self._stream = await opening
        except StreamerError as error:
            await self._take(self._refusal(error))
            return
        log, streaming = stream.log, self._context.streaming
        if (other := streaming.get(log.session)) is not None and not other.done():
            other.set_result(RESUMED_ELSEWHERE)
        streaming[log.session] = self._closing
        self._line.note_session(log.session)
        await stream.in_use.acquire()
        self._in_use = stream.in_use
        if after is not None:
            resumed = Resumed(heard_samples=stream.go_on())
            # A client with a later number than the last one gets all events: see `EventLog.subscribe`.
            await self._pass(resumed.stamped(after if after <= log.last_seq else 0, log.session))
        self._follow(Follower(log, self._context, self._closing, after=after), self._context.metrics.streams)

    def _follow(self, follower: Follower | RoomFollower, gauge: Gauge) -> None:
        """Pass a session's events to the adapter from now on."""
        if self._adapter.timeout_s is None:
            self._expect_nothing()
        self._follower = follower
        self._following = self._tasks.create_task(self._pass_all(follower, gauge))

    async def _pass_all(self, follower: Follower | RoomFollower, gauge: Gauge) -> None:
        with gauge.track_inprogress():
            async with contextlib.aclosing(follower.events()) as events:
                async for event in events:
                    await self._pass(event)

    async def _pass(self, event: Event) -> None:
        metrics = self._context.metrics
        if isinstance(event, Error) and event.code == IdleError.code:
            metrics.refused(event.code)
        if isinstance(event, End) and not self._adapter.resumable:
            self._drop()  # its slot is free at once
        await self._take(self._adapter.on_event(event))
        metrics.events_sent.labels(event.type).inc()

    def _fail(self, stream: ClientStream, error: Exception) -> None:
        """End the session with an error of the daemon."""
        code, text = "internal", "the daemon failed: see its log, and report it as a bug"
        if isinstance(error, StreamerError):
            code, text = error.code, str(error)
        else:
            logger.error("a client's session failed", exc_info=error, extra={"session": stream.log.session})
        stream.report(Error(code=code, message=text, fatal=True))
        stream.finish()

    def _drop(self) -> None:
        """Abandon the session, if any; another may be opened."""
        if self._following is not None and self._following is not asyncio.current_task():
            self._following.cancel()
        if self._follower is not None:
            self._follower.close()
        stream = self._stream
        self._following = self._follower = self._stream = None
        if stream is not None:
            self._context.streaming.pop(stream.log.session, None)
            with contextlib.suppress(Exception):
                self._context.services.streams.abandon(stream)
            self._expect_message()

    # The end.

    async def _stop(self, working: asyncio.Task[None]) -> None:
        """End the connection when the daemon stops; the reason says how the client continues."""
        await self._context.draining.wait()
        self._expect_nothing()
        stream, follower, following = self._stream, self._follower, self._following
        if stream is None and follower is not None:  # the daemon's own input has not ended yet
            await self._context.stopping.wait()
            await follower.idle.wait()
            again = f"reconnect with ?after={follower.last_sent}&session={follower.session}"
            self._close(Close(CloseCode.GOING_AWAY, f"the daemon stops: {again}"))
        elif stream is None or following is None:
            await self._turn_away(StoppingError("the daemon stops: it opens no sessions, reconnect in a moment"))
        elif self._adapter.resumable and stream.outlives:  # another daemon continues it, with all audio so far
            seq = follower.last_sent if follower is not None else 0
            again = f"resume with session={stream.log.session}, after={seq}"
            self._close(Close(CloseCode.GOING_AWAY, f"the daemon stops: {again}"))
        else:
            if not stream.complete:
                working.cancel()
                # What a client can send again is not waited for.
                n_heard = stream.go_on() if self._adapter.resumable else 0
                for action in self._adapter.stop(stream.log.session, n_heard):
                    await self._execute(action)
            await asyncio.wait([following])  # until `end` was passed on
            self._close(Close(STOPPED.code, STOPPED.reason))

    async def _watch(self) -> None:
        await self._line.gone.wait()
        self._close(GONE)
