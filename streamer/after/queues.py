"""Followers that have models at work, which all sessions share."""

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from streamer.after.passages import Passage
from streamer.arrays import Float32Array
from streamer.audio.ring import Overrun
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.live_session import LiveSession
from streamer.errors import StreamerError
from streamer.health import Health
from streamer.worker import Work, WorkQueue, once

# What is reported of work that waits for too long.
LATE = StreamerError("captions leave too little time for it, and what is late is left out: try a faster model")

Found = TypeVar("Found")


class ModelQueue:
    """The work of one model: a thread of its own does it, for each session in turn.

    Nothing is done for a session whose client has left, nor after the deadline of a piece of work.
    """

    def __init__(self, name: str, limit: int, health: Health | None = None) -> None:
        """Let up to `limit` pieces of work wait; report it to `health` if some is left out.

        name : of the thread, and in `health`
        """
        self._name, self._health = name, health
        self._late = False  # whether the newest piece of work was
        self._works = WorkQueue(name, limit, self._drop)

    def put(self, follower: "QueuedFollower", work: Work, until_s: float = math.inf) -> None:
        """Do work behind the follower's other work; return at once.

        until_s : deadline by the monotonic clock; work that raises TimeoutError has missed it, too
        """
        follower.work_begins()
        self._works.put(follower, partial(self._do, follower, work, until_s))

    def note_late(self) -> None:
        """Report that something is left out, until work is begun in time again."""
        if self._health is not None:
            self._late = True
            self._health.failed(self._name, LATE)

    def _do(self, follower: "QueuedFollower", work: Work, until_s: float) -> None:
        try:
            if follower.log.closed:  # the client has left
                return
            if time.monotonic() >= until_s:
                raise TimeoutError
            if self._late and self._health is not None:
                self._late = False
                self._health.works(self._name)
            work()
        except TimeoutError:
            self.note_late()
        finally:
            follower.work_ends()

    def _drop(self, follower: "QueuedFollower") -> None:
        self.note_late()
        follower.work_ends()


class QueuedFollower(Follower):
    """A follower of a live session whose work waits in the queues of models."""

    def __init__(self, live: LiveSession, log: EventLog) -> None:
        self.live, self.log = live, log
        # Pieces of work that are not done, and what is called when all are; None before the end.
        self._n_open = 0
        self._end: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def audio(self, start_s: float, end_s: float) -> Float32Array | None:
        """Return the audio from one second to another, 16 kHz mono, shape (n,); None if it was overwritten.

        It copies: not to be called under the session's lock.
        """
        ring = self.live.ring
        try:
            return ring.read(round(start_s * SAMPLE_RATE), min(round(end_s * SAMPLE_RATE), ring.head))
        except Overrun:
            return None

    def put_with_audio(
        self, queue: ModelQueue, passage: Passage, work: Callable[[Float32Array], object], until_s: float
    ) -> None:
        """Copy a passage's audio before it is overwritten, and do work with it."""
        samples = self.audio(passage.start_s, passage.end_s)
        if samples is None:
            queue.note_late()
        else:
            queue.put(self, partial(work, samples), until_s)

    def finish_within(self, seconds: float, then: Work, late: Work) -> None:
        """Call `then`, once, when no work is left. If that takes longer, call `late` before it."""
        with self._lock:
            over = not self._n_open
            if not over:
                self._end = once(then, seconds, late)
        if over:
            then()

    def work_begins(self) -> None:
        """Note a piece of work that is put into a queue."""
        with self._lock:
            self._n_open += 1

    def work_ends(self) -> None:
        """Note that a piece of work was done or left out."""
        with self._lock:
            self._n_open -= 1
            end = None if self._n_open else self._end
        if end is not None:
            end()


def attempt(health: Health, name: str, work: Callable[[], Found | None]) -> Found | None:
    """Return what a part finds; None if it did not try or fails, which is reported. TimeoutError is raised."""
    try:
        found = work()
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001 - reported there
        health.failed(name, error)
        return None
    if found is not None:
        health.works(name)
    return found
