"""Draws captions of the daemon's own input in the terminal."""

import contextlib
import logging
from collections.abc import Iterator

from streamer.engine.eventlog import EventLog
from streamer.events import Event
from streamer.outputs.base import Sink
from streamer.worker import WorkQueue

logger = logging.getLogger(__name__)

# How long the end waits for captions that are not drawn yet: a terminal may block.
CLOSE_TIMEOUT_S = 2.0


@contextlib.contextmanager
def drawn_captions(log: EventLog, sink: Sink) -> Iterator[None]:
    """Pass the events that a log publishes meanwhile to a sink, in a thread of their own: a terminal may be slow.

    A slow terminal gets no outdated partials. A sink that fails is closed and gets no further events.
    """
    drawing = _Drawing(log, sink)
    # One call that waits is enough: it draws everything that is new.
    worker = WorkQueue("captions", limit=1)
    subscription = log.subscribe(lambda event: worker.put(drawing, drawing.draw))
    try:
        yield
    finally:
        subscription.cancel()
        worker.put(drawing, lambda: drawing.draw(last=True))
        worker.close(CLOSE_TIMEOUT_S)


class _Drawing:
    """Draws what a log has published since the last call."""

    def __init__(self, log: EventLog, sink: Sink) -> None:
        self._log = log
        self._sink: Sink | None = sink  # None once it has failed
        # Number of the newest event that was drawn.
        self._after = log.last_seq

    def draw(self, *, last: bool = False) -> None:
        """Draw the new events; close the sink if these are the last."""
        sink = self._sink
        if sink is None:
            return
        try:
            for event in self._new():
                sink.handle(event)
            if last:
                sink.close()
        except Exception as error:  # the terminal, or the program that reads our output, is gone
            self._sink = None
            if isinstance(error, OSError):
                logger.info("captions are no longer drawn (%s)", error)
            else:
                logger.exception("captions are no longer drawn")
            with contextlib.suppress(Exception):
                sink.close()

    def _new(self) -> Iterator[Event]:
        """Yield the new events. Outdated partials are not among them: the log drops them."""
        missed = self._log.subscribe(lambda event: None, after=self._after)
        missed.cancel()
        for event in missed.backlog:
            if event.seq > self._after:  # a log that has ended repeats `end`
                self._after = event.seq
                yield event
