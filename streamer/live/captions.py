"""Captions of the daemon's own input, drawn in the terminal while it runs."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from streamer.events import Event
from streamer.server.outbox import Outbox
from streamer.sinks.base import Sink
from streamer.stream.eventlog import EventLog

logger = logging.getLogger(__name__)

# How long the end waits for what is still to be drawn: a terminal that nobody reads takes nothing.
CLOSE_TIMEOUT_S = 2.0


@contextlib.contextmanager
def drawn_captions(log: EventLog, sink: Sink, *, limit: int) -> Iterator[None]:
    """Hand the events that a log publishes meanwhile to a sink, in a thread of their own: a terminal may be slow.

    Of what waits for a slow one, outdated partials are dropped. Where more than `limit` events wait all the same, they
    are given up with a line in the log. A sink that fails is closed and called no more, and the log lets go of it.
    """
    queue = _Queue(limit)
    subscription = log.subscribe(queue.put)

    def draw() -> None:
        try:
            while (event := queue.next()) is not None:
                sink.handle(event)
            sink.close()
        except Exception as error:  # the terminal, or the program that reads us, is gone: others still listen
            subscription.cancel()
            if isinstance(error, OSError):
                logger.info("captions are no longer drawn (%s)", error)
            else:
                logger.exception("captions are no longer drawn")
            with contextlib.suppress(Exception):
                sink.close()

    thread = threading.Thread(target=draw, name="captions", daemon=True)
    thread.start()
    try:
        yield
    finally:
        subscription.cancel()
        queue.close()
        thread.join(CLOSE_TIMEOUT_S)


class _Queue:
    """An outbox between the thread that publishes, which never waits, and the one that draws."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

        # What waits to be drawn. Guarded by the condition, as is the flag.
        self._outbox = Outbox(limit)

        # Whether nothing more comes.
        self._closed = False

        # Notified when one of the two changes.
        self._changed = threading.Condition()

    def put(self, event: Event) -> None:
        with self._changed:
            self._outbox.put(event)
            self._changed.notify()

    def close(self) -> None:
        """Let next() return None once everything has been taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def next(self) -> Event | None:
        """Wait for the oldest event and return it; None at the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._outbox) > 0 or self._closed)
                if not self._outbox.overflowed:
                    return self._outbox.take()
                n_missed = len(self._outbox)
                self._outbox = Outbox(self._limit)
            # Outside the lock: the log may go to the same terminal, and whoever publishes must not wait for it.
            logger.warning("the terminal does not keep up: more than %d events were not drawn", n_missed - 1)
