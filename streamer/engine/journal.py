"""A log whose events are stored before they are published."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Held:
    """An event that waits for those before it, or a call; `storing`: it is still being stored."""

    what: Event | Callable[[], object]
    storing: bool = False


class Journal(EventLog):
    """An event that has to be stored first is published by the thread that stored it, and then those after it.

    Other events are published when they are appended.
    """

    def __init__(self, session: str, limit: int, keep: Keep) -> None:
        super().__init__(session, limit)
        self._keep = keep
        # What is not published yet, oldest first. The first of them is being stored.
        self._held: deque[_Held] = deque()

    def call_behind(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if self._held:
                self._held.append(_Held(callback))
                return
        callback()

    def _take(self, event: Event) -> None:
        held = _Held(event)
        with surviving(self._logger, "a %s event could not be kept", event.type):
            held.storing = self._keep(event, partial(self._release, held))
        self._held.append(held)
        self._publish_held()

    def _release(self, held: _Held) -> None:
        """Note that an event is stored: called by the thread that stored it."""
        with self._lock:
            held.storing = False
            self._publish_held()

    def _publish_held(self) -> None:
        """Publish what is held up to the next event that is still being stored."""
        while self._held and not self._held[0].storing:
            what = self._held.popleft().what
            if isinstance(what, Event):
                self._publish(what)
            else:
                with surviving(self._logger, "a call behind the events failed"):
                    what()
