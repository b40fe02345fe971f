"""A dialogue in another program's protocol, held over a WebSocket: `streamer.protocols` decides, this does it."""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from websockets.frames import CloseCode

from streamer.errors import IdleError, StreamerError
from streamer.events import Event
from streamer.protocols.dialogue import Action, Change, Dialogue, Do, Finish, Hangup, Hear, Open, Say
from streamer.server import ws
from streamer.server.interfaces import ClientStream, Streams
from streamer.server.ws import GONE, Close, Context, GoneError, Run, Sender

logger = logging.getLogger(__name__)

# A client that was held back is given as long to send what it could not, before it counts as silent.
GRACE_S = 1.0

MAX_UNSENT = 64  # frames; with more of them the client is not listened to until it reads
STOPPED = Close(CloseCode.GOING_AWAY, "the daemon stops: reconnect in a moment")


class Line(Protocol):
    """What a dialogue is held over: see `streamer.server.ws.Connection`."""

    gone: asyncio.Event

    def note_session(self, name: str) -> None: ...

    async def receive(self) -> str | bytes: ...

    async def send_text(self, text: str) -> None: ...

    async def close(self, close: Close) -> None: ...


async def hold_dialogue(
    connection: Line,
    context: Context,
    streams: Streams,
    dialogue: Dialogue,
    *,
    idle_s: float,
    first_message_s: float = math.inf,
    tenant: str = "",
) -> None:
    """Hold a dialogue to its end, with who showed the token of a name; one that has no session for `idle_s` is ended.

    So is one in which it is on the client to speak first, and nothing comes within `first_message_s`.
    """
    with context.metrics.streams.track_inprogress():
        async with ws.tasks() as run:
            exchange = _Exchange(connection, context, streams, dialogue, run, idle_s, first_message_s, tenant)
            try:
                close = await exchange.run()
            finally:
                exchange.leave()
        await connection.close(close)


class _Exchange:
    """One connection, and the session that is open in it, if any."""

    def __init__(
        self,
        connection: Line,
        context: Context,
        streams: Streams,
        dialogue: Dialogue,
        run: Run,
        idle_s: float,
        first_message_s: float,
        tenant: str,
    ) -> None:
        self._connection = connection
        self._context = context
        self._streams = streams
        self._dialogue = dialogue
        self._run = run
        self._idle_s, self._first_message_s = idle_s, first_message_s
        self._tenant = tenant
        # How long the client may say nothing while it has no session.
        self._patience_s = idle_s
        self._loop = asyncio.get_running_loop()
        # What is to be done in the session, in order, and set while there is nothing.
        self._todo: deque[Action] = deque()
        self._done = asyncio.Event()
        # What is to be sent; `_unblocked` is set while it is little.
        self._unsent: deque[Say | Hangup] = deque()
        self._unblocked = asyncio.Event()
        self._unblocked.set()
        # Set when there may be something to do, or to send.
        self._work, self._speak = asyncio.Event(), asyncio.Event()
        # How the connection is to be closed, once that is known.
        self._closing: asyncio.Future[Close] = self._loop.create_future()
        self._stream: ClientStream | None = None
        self._sender: Sender | None = None
        # The open session's tasks: one passes its events on, one finishes it.
        self._telling: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since_s = self._loop.time()
        # When it ended that a client was held back.
        self._released_s = 0.0

    async def run(self) -> Close:
        """Talk until one side has enough; return how to close."""
        run = self._run
        self._take(self._dialogue.begin(self._loop.time()))
        if not self._unsent:
            self._patience_s = min(self._idle_s, self._first_message_s)
        reading, working, speaking = run(self._read()), run(self._obey()), run(self._send())
        gone, draining = run(self._connection.gone.wait()), run(self._context.draining.wait())
        closing = self._closing
        while not closing.done():
            idling = self._patience_s - (self._loop.time() - self._since_s) if self._stream is None else None
            if idling is not None and idling <= 0:
                self._context.metrics.refused(IdleError.code)
                return Close(CloseCode.POLICY_VIOLATION, f"idle: nothing came for {self._patience_s:g} s")
            waiting: list[asyncio.Future[Any]] = [reading, working, speaking, gone, closing]
            waiting += [] if draining.done() else [draining]
            done, _ = await asyncio.wait(waiting, timeout=idling, return_when=asyncio.FIRST_COMPLETED)
            if draining in done:
                await ws.cancel(reading)
                reading = run(self._read(hear=False))
                if self._stream is None:
                    self._close(STOPPED)
                else:  # what was said becomes final
                    self._finish(self._stream)
                continue
            for task in done & {reading, working, speaking}:
                if isinstance(task.exception(), GoneError):
                    return GONE
                if (error := task.exception()) is not None:
                    self._fail(error)
            if gone.done():
                return GONE
        return closing.result()

    def leave(self) -> None:
        """Give up what is open."""
        if self._timer is not None:
            self._timer.cancel()
        self._drop_stream()

    # --- the session's events: see `Sender` ---

    def note_session(self, name: str) -> None:
        """Let the access log say which session it was about."""
        self._connection.note_session(name)

    async def send(self, event: Event) -> None:
        """Translate an event, once the client has read most of what was sent."""
        await self._unblocked.wait()
        self._take(self._dialogue.on_event(event, self._loop.time()))

    # --- the client's messages ---

    async def _read(self, *, hear: bool = True) -> None:
        while True:
            message = await self._connection.receive()
            if not hear:
                continue
            self._patience_s, self._since_s = self._idle_s, self._loop.time()
            self._take(self._dialogue.receive(message, self._since_s))
            await self._done.wait()
            await self._unblocked.wait()
            if self._loop.time() - self._since_s > GRACE_S:
                self._released_s = self._loop.time()
            await asyncio.sleep(0)  # a flood of messages must not keep the others waiting

    def _take(self, actions: Iterable[Action]) -> None:
        """Queue what the dialogue wants done, and note when it wants to be woken."""
        for action in actions:
            if isinstance(action, Say | Hangup):
                self._unsent.append(action)
                self._speak.set()
            else:
                self._todo.append(action)
                self._done.clear()
                self._work.set()
        if not self._todo:
            self._done.set()
        if len(self._unsent) > MAX_UNSENT:
            self._unblocked.clear()
        if self._timer is not None:
            self._timer.cancel()
        wake_s = self._dialogue.wake_s
        self._timer = None if wake_s is None else self._loop.call_at(wake_s, self._wake)

    def _wake(self) -> None:
        """Let the dialogue know the time, but not while the client could not say anything."""
        held = not (self._done.is_set() and self._unblocked.is_set())
        if held or self._loop.time() - self._released_s < GRACE_S:
            self._timer = self._loop.call_later(GRACE_S, self._wake)
            return
        self._timer = None
        try:
            self._take(self._dialogue.wake(self._loop.time()))
        except Exception as error:  # noqa: BLE001 - reported to the client and the log
            self._fail(error)

    async def _send(self) -> None:
        while True:
            while self._unsent:
                action = self._unsent.popleft()
                if isinstance(action, Hangup):
                    self._close(Close(action.code, ws.shortened(action.reason)))
                    return
                await self._connection.send_text(action.text)
                if len(self._unsent) <= MAX_UNSENT:
                    self._unblocked.set()
            self._speak.clear()
            await self._speak.wait()

    async def _obey(self) -> None:
        while True:
            while self._todo:
                await self._perform(self._todo.popleft())
            self._done.set()
            self._work.clear()
            await self._work.wait()

    async def _perform(self, action: Action) -> None:
        stream = self._stream
        try:
            match action:
                case Open(start):
                    self._drop_stream()
                    self._stream = await self._streams.open(start, tenant=self._tenant)
                    self._sender = Sender(self, self._context, self._stream.feed)
                    self._telling = self._run(self._tell(self._sender))
                case Hear(audio) if stream is not None:
                    await stream.write(audio)
                case Do(command) if stream is not None:
                    await stream.command(command)
                case Change(options) if stream is not None:
                    await stream.change(options)
                case Finish() if stream is not None:
                    self._finish(stream)
        except StreamerError as error:
            if not isinstance(action, Open | Change):
                raise
            if isinstance(action, Open):
                self._context.metrics.refused(error.code)
            self._take(self._dialogue.refused(error, self._loop.time()))

    async def _tell(self, sender: Sender) -> None:
        """Pass a session's events to the dialogue until it ends, or the client falls too far behind."""
        async with ws.tasks() as run:
            sending = run(sender.run())
            await ws.first_of(sending, run(sender.overflowed.wait()))
            if not sending.done():
                self._context.metrics.too_slow.inc()
                self._close(sender.overflow)
            elif (error := sending.exception()) is not None:
                self._fail(error)
            elif sender is self._sender:
                if sender.failure == IdleError.code:
                    self._context.metrics.refused(sender.failure)
                self._drop_stream()
                if self._context.draining.is_set():
                    self._take([Hangup()])

    def _finish(self, stream: ClientStream) -> None:
        """Finish the open session, in a task of its own: its last events are passed on meanwhile."""

        async def finish() -> None:
            try:
                await stream.finish()
            except Exception as error:  # noqa: BLE001 - reported to the client and the log
                self._fail(error)

        if self._finishing is None:
            self._finishing = self._run(finish())

    def _fail(self, error: BaseException) -> None:
        logger.error("a dialogue failed", exc_info=error)
        self._close(Close(CloseCode.INTERNAL_ERROR, "internal"))

    def _close(self, close: Close) -> None:
        if not self._closing.done():
            stopped = self._context.draining.is_set() and close.code == CloseCode.NORMAL_CLOSURE
            self._closing.set_result(STOPPED if stopped else close)

    def _drop_stream(self) -> None:
        sender, self._sender = self._sender, None
        stream, self._stream = self._stream, None
        tasks = self._telling, self._finishing
        self._telling = self._finishing = None
        self._since_s = self._loop.time()
        for task in tasks:
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if sender is not None:
            sender.close()
        if stream is not None:
            with contextlib.suppress(Exception):
                stream.abandon()
