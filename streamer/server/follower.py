"""A session's events for one client, as fast as that client reads."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from streamer.events import End, Event
from streamer.server.interfaces import Context
from streamer.server.outbox import Outbox
from streamer.stream.eventlog import EventLog, Subscription


class Follower:
    """Passes the events of a session to one client, from one task."""

    def __init__(
        self,
        feed: EventLog,
        context: Context,
        on_overflow: Callable[[str], None],
        *,
        after: int | None = None,
        session: str | None = None,
        earlier: AsyncGenerator[Event, None] | None = None,
    ) -> None:
        """Follow `feed` from behind event `after` of `session` (see `EventLog.subscribe`).

        What `earlier` yields is passed on before the feed is followed, from behind the last of it. When the client is
        too far behind, `on_overflow` is called with the reason to close its connection with.
        """
        self._feed = feed
        self._context = context
        self._on_overflow = on_overflow
        # Session and number of the event that was taken last; before the first, of the one that the client had.
        self.session, self.last_sent = session or feed.session, after or 0
        self._loop = asyncio.get_running_loop()
        # Set when there may be something to send; set while everything there was has been handed over.
        self._wakeup, self.idle = asyncio.Event(), asyncio.Event()
        # Whether `end` was taken.
        self.ended = False
        self._earlier = earlier
        # None before the feed is followed.
        self._subscription: Subscription | None = None
        self._outbox = Outbox(context.settings.queue_events)
        # What is no event of the session and waits to be sent, the newest; see `EventLog.notify`.
        self._notice: Event | None = None
        # Of its dropped partials, how many the metrics have.
        self._n_superseded = 0
        if earlier is None:
            self._follow(after, session)
        else:
            self.idle.set()  # the client can ask for it again: a stop does not wait

    async def run(self, send: Callable[[Event], Awaitable[None]]) -> None:
        """Pass events to `send` until `end` was passed."""
        if self._earlier is not None:
            async with contextlib.aclosing(self._earlier) as earlier:
                async for old in earlier:
                    self.session, self.last_sent = old.session, old.seq
                    await send(old)
                    await asyncio.sleep(0)
            self.idle.clear()
            self._follow(self.last_sent, self.session)
        while not self.ended:
            notice, self._notice = self._notice, None
            if notice is not None:
                await send(notice.stamped(self.last_sent, self.session))
                continue
            event = self._outbox.take()
            self._count_superseded()
            if event is None:
                self.idle.set()
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            self.session, self.last_sent = event.session, event.seq
            self.ended = isinstance(event, End)
            await send(event)
            await asyncio.sleep(0)  # a long replay must not keep the others waiting

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()

    def _follow(self, after: int | None, session: str | None) -> None:
        # From here on events come in, by way of the loop's queue: none before this method has returned.
        self._subscription = self._feed.subscribe(self._on_event, after=after, session=session)
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
        if self._outbox.overflowed:
            self._on_overflow(self._outbox.overflow_reason)
        self.idle.clear()
        self._wakeup.set()

    def _count_superseded(self) -> None:
        """Count the partials that the outbox has dropped since the last time."""
        self._context.metrics.partials_superseded.inc(self._outbox.n_superseded - self._n_superseded)
        self._n_superseded = self._outbox.n_superseded
