"""Draws captions of the daemon's own input in the terminal."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from streamer.engine.eventlog import EventLog, Subscription
from streamer.events import Event
from streamer.outputs.base import Sink
from streamer.server.outbox import Outbox
from streamer.worker import WorkQueue

logger = logging.getLogger(__name__)

# How long the end waits for captions that are not drawn yet: a terminal may block.
CLOSE_TIMEOUT_S = 2.0


@contextlib.contextmanager
def drawn_captions(log: EventLog, sink: Sink, *, limit: int) -> Iterator[None]:
    """Pass the events that a log publishes meanwhile to a sink, in a thread of their own: a terminal may be slow.

    For a slow terminal, outdated partials are dropped. If more than `limit` other events wait, they are dropped with a
    line in the log. A sink that fails is closed and gets no further events.
    """
    drawing = _Drawing(sink, limit)
    drawing.subscription = log.subscribe(drawing.put)
    try:
        yield
    finally:
        drawing.subscription.cancel()
        drawing.close()


class _Drawing:
    """An outbox between the thread that publishes, which never waits, and the one that draws."""

    def __init__(self, sink: Sink, limit: int) -> None:
        self._sink: Sink | None = sink  # None once it has failed
        self._limit = limit
        # Events that wait to be drawn, guarded by the lock.
        self._outbox = Outbox(limit)
        self._lock = threading.Lock()
        # Draws all that waits: one call behind the present one is enough, and the last closes the sink.
        self._worker = WorkQueue("captions", limit=1)
        # Cancelled if the sink fails.
        self.subscription: Subscription | None = None

    def put(self, event: Event) -> None:
        with self._lock:
            self._outbox.put(event)
        self._worker.put(self, self._draw)

    def close(self) -> None:
        """Draw what waits, then close the sink; wait for that, but not forever."""
        self._worker.put(self, lambda: self._draw(last=True))
        self._worker.close(CLOSE_TIMEOUT_S)

    def _draw(self, *, last: bool = False) -> None:
        if self._sink is None:
            return
        try:
            while (event := self._next()) is not None:
                self._sink.handle(event)
            if last:
                self._sink.close()
        except Exception as error:  # the terminal, or the program that reads our output, is gone
            if self.subscription is not None:
                self.subscription.cancel()
            if isinstance(error, OSError):
                logger.info("captions are no longer drawn (%s)", error)
            else:
                logger.exception("captions are no longer drawn")
            with contextlib.suppress(Exception):
                self._sink.close()
            self._sink = None

    def _next(self) -> Event | None:
        """Return the oldest event that waits; drop all of them if there are too many."""
        with self._lock:
            if not self._outbox.overflowed:
                return self._outbox.take()
            n_missed = len(self._outbox)
            self._outbox = Outbox(self._limit)
        # Outside the lock: the log may go to the same terminal, and the publishing thread must not wait for it.
        logger.warning("the terminal does not keep up: more than %d events were not drawn", n_missed - 1)
        return None
