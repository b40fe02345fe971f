"""A log whose events are stored before they are published."""

from collections import deque
from collections.abc import Callable
from functools import partial

from streamer.arrays import Float32Array
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import surviving
from streamer.events import Event

# Stores an event for good, and returns whether it has to be stored before listeners get it. If so, the second argument
# is called when it is, by another thread. Neither waits for a disk.
Keep = Callable[[Event, Callable[[], None]], bool]

# Stores 16 kHz mono audio, shape (n,), that begins at a position of its session. It does not wait.
KeepAudio = Callable[[int, Float32Array], None]


def no_audio(position: int, samples: Float32Array) -> None:
    """Store no audio."""


class Journal(EventLog):
    """An event that has to be stored first is published by the thread that stored it, and then those after it.

    Other events are published when they are appended.
    """

    def __init__(self, session: str, limit: int, keep: Keep) -> None:
        super().__init__(session, limit)
        self._keep = keep
        # Events and calls that wait for those before them, oldest first; the numbers of those that are being stored.
        self._held: deque[Event | Callable[[], object]] = deque()
        self._storing: set[int] = set()

    def call_behind(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if self._held:
                self._held.append(callback)
                return
        callback()

    def _take(self, event: Event) -> None:
        self._held.append(event)
        with surviving(self._logger, "a %s event could not be kept", event.type):
            if self._keep(event, partial(self._release, event.seq)):
                self._storing.add(event.seq)
        self._publish_held()

    def _release(self, seq: int) -> None:
        """Note that an event is stored: called by the thread that stored it."""
        with self._lock:
            self._storing.discard(seq)
            self._publish_held()

    def _publish_held(self) -> None:
        """Publish what is held up to the next event that is still being stored."""
        while self._held:
            first = self._held[0]
            if isinstance(first, Event) and first.seq in self._storing:
                return
            self._held.popleft()
            if isinstance(first, Event):
                self._publish(first)
            else:
                with surviving(self._logger, "a call behind the events failed"):
                    first()
