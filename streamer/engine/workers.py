"""The threads of an engine."""

import logging
import math
import threading
from collections.abc import Callable

from streamer.engine.host import Host

logger = logging.getLogger(__name__)

IDLE_S = 0.5  # longest sleep of a thread before it checks again, while there are sessions


class Worker(threading.Thread):
    """A thread that takes turns while there is something to do, and sleeps in between."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], bool],
        turned: threading.Condition,
        host: Host,
        news: threading.Event,
    ) -> None:
        """Take turns once it is started.

        turn : returns whether to take the next at once
        turned : is notified after each
        news : is set when there may be something to do
        """
        super().__init__(name=name, daemon=True)
        self._turn = turn
        self._turned = turned
        self._host = host
        # Cleared before a turn, so that nothing is missed.
        self._news = news
        # When the current turn began, or its last progress; infinity between two turns.
        self._progress_s = math.inf
        self.stopping = False

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        """End after the current turn."""
        self.stopping = True
        self.wake()

    def note_progress(self) -> None:
        """Note that the current turn, which may be long, has come further."""
        self._progress_s = self._host.clock()

    @property
    def stalled_s(self) -> float:
        """Seconds since the last progress of the current turn; infinity if the thread has died."""
        if self.ident and not self.is_alive() and not self.stopping:
            return math.inf
        return max(0.0, self._host.clock() - self._progress_s)

    def run(self) -> None:
        while not self.stopping:
            self._news.clear()
            self.note_progress()
            try:
                busy = self._turn()
            except Exception:
                logger.exception("a turn of the engine failed")  # a bug of ours: the sessions need this thread
                busy = False
            self._progress_s = math.inf
            with self._turned:
                self._turned.notify_all()
            if not busy and not self.stopping:
                self._news.wait(self.rest_s)

    @property
    def rest_s(self) -> float | None:
        """The longest sleep between two turns; None: until it is woken."""
        return IDLE_S if self._host.sessions else None


def note_progress() -> None:
    """Note that the calling thread, if it is one of these, is about to run a graph: its turn is long, not stuck."""
    if isinstance(thread := threading.current_thread(), Worker):
        thread.note_progress()
