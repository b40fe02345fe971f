"""Sends a session's events to one client, at the client's pace."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from websockets.frames import CloseCode

from streamer.engine.eventlog import EventLog, Subscription
from streamer.events import End, Event
from streamer.server.context import Context
from streamer.server.outbox import Outbox
from streamer.server.ws import Close


class Follower:
    """A session's events for one client."""

    def __init__(
        self,
        log: EventLog,
        context: Context,
        closing: asyncio.Future[Close],
        *,
        after: int | None = None,
        session: str | None = None,
        earlier: AsyncGenerator[Event, None] | None = None,
    ) -> None:
        """Follow `log` after event `after` of `session` (see `EventLog.subscribe`).

        earlier : yields events to pass on first; then the log is followed after the last of them
        closing : how the client's connection is closed; set if the client is too far behind
        """
        self.log = log
        self._context = context
        self._closing = closing
        # Session and number of the last event that was passed on; at first, of the client's last event.
        self.session, self.last_sent = session or log.session, after or 0
        self._loop = asyncio.get_running_loop()
        # Set if there may be an event to pass on; set while all have been passed on.
        self._wakeup, self.idle = asyncio.Event(), asyncio.Event()
        self.ended = False  # whether `end` was passed on
        self._earlier = earlier
        self._subscription: Subscription | None = None  # None before the log is followed
        self._outbox = Outbox(context.settings.queue_events)
        # The newest notice that waits, which is no event of the session; see `EventLog.notify`.
        self._notice: Event | None = None
        # Dropped partials that the metrics have counted.
        self._n_superseded = 0
        if earlier is None:
            self._subscribe(after, session)
        else:
            self.idle.set()  # the client can request them again: a stop does not wait

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events, in order, until `end`; once."""
        if self._earlier is not None:
            async with contextlib.aclosing(self._earlier) as earlier:
                async for event in earlier:
                    self.session, self.last_sent = event.session, event.seq
                    yield event
                    await asyncio.sleep(0)
            self.idle.clear()
            self._subscribe(self.last_sent, self.session)
        while not self.ended:
            notice, self._notice = self._notice, None
            if notice is not None:
                yield notice.stamped(self.last_sent, self.session)
                continue
            next_event = self._outbox.take()
            self._count_superseded()
            if next_event is None:
                self.idle.set()
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            self.session, self.last_sent = next_event.session, next_event.seq
            self.ended = isinstance(next_event, End)
            yield next_event
            await asyncio.sleep(0)  # a long replay must not delay other clients
        self.idle.set()

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()

    def _subscribe(self, after: int | None, session: str | None) -> None:
        # Events come in by way of the loop's queue: none before this method has returned.
        self._subscription = self.log.subscribe(self._on_event, after=after, session=session)
        self._outbox = Outbox(self._context.settings.queue_events, self._subscription.backlog)
        self._context.metrics.watch(self._outbox)

    def _on_event(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: no client is left to read
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event) -> None:
        if event.seq:
            self._outbox.put(event)
        else:
            self._notice = event
        self._count_superseded()
        if self._outbox.overflowed and not self._closing.done():
            self._context.metrics.too_slow.inc()
            self._closing.set_result(Close(CloseCode.TRY_AGAIN_LATER, self._outbox.overflow_reason))
        self.idle.clear()
        self._wakeup.set()

    def _count_superseded(self) -> None:
        """Add the partials that the outbox has dropped to the metrics."""
        self._context.metrics.partials_superseded.inc(self._outbox.n_superseded - self._n_superseded)
        self._n_superseded = self._outbox.n_superseded
