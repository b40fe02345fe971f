"""The queue of events for one subscriber. No I/O, no threads."""

from collections import OrderedDict
from collections.abc import Sequence

from streamer.engine.eventlog import Backlog
from streamer.events import Event, Final, Partial


class Outbox:
    """A queue that drops superseded partials.

    A newer partial replaces a queued one of its segment; so does a final. All other events are kept. If a subscriber
    still falls more than `limit` events behind, the queue overflows: the caller closes the connection, and the
    subscriber can reconnect for the events that it missed.
    """

    def __init__(self, limit: int, backlog: Backlog | Sequence[Event] = ()) -> None:
        """Start with a replay, which does not count towards the `limit`."""
        self._limit = limit
        # Events of the replay, read one at a time, and how many are left.
        self._replay = iter(backlog)
        self._n_replay = len(backlog)
        # Segments with a newer text than the replay's; empty when that is over.
        self._newer: set[int] = set()
        # Later events that wait, by number, oldest first. (A plain dict is slow to empty from the front.)
        self._queue: OrderedDict[int, Event] = OrderedDict()
        # Number of the queued partial of a segment.
        self._partials: dict[int, int] = {}
        # Number of the event that was taken last; None before the first.
        self.last_taken: int | None = None
        # Partials that were dropped.
        self.n_superseded = 0
        # Whether more than `limit` events waited at once. From then on no event goes in or out.
        self.overflowed = False

    def __len__(self) -> int:
        return self._n_replay + len(self._queue)

    def put(self, event: Event) -> None:
        """Queue an event; its number must be higher than those before."""
        if self.overflowed:
            return
        if isinstance(event, Partial | Final):
            if self._n_replay:
                self._newer.add(event.segment)
            superseded = self._partials.pop(event.segment, None)
            if superseded is not None:
                del self._queue[superseded]
                self.n_superseded += 1
        if isinstance(event, Partial):
            self._partials[event.segment] = event.seq
        self._queue[event.seq] = event
        if len(self._queue) > self._limit:
            self.overflowed = True

    def take(self) -> Event | None:
        """Return the oldest event; None if the queue is empty or has overflowed."""
        if self.overflowed:
            return None
        event = self._next_of_replay()
        if event is None and self._queue:
            _, event = self._queue.popitem(last=False)
            if isinstance(event, Partial):
                del self._partials[event.segment]
        if event is not None:
            self.last_taken = event.seq
        return event

    @property
    def overflow_reason(self) -> str:
        """The reason of the close frame: how far behind the subscriber is, and how it gets the rest."""
        behind = f"{len(self)} events behind (server.queue_events)"
        return f"too slow: {behind}, reconnect with ?after={self.last_taken or 0}"

    def _next_of_replay(self) -> Event | None:
        for event in self._replay:
            self._n_replay -= 1
            if isinstance(event, Partial) and event.segment in self._newer:
                self.n_superseded += 1
                continue
            return event
        self._newer.clear()
        return None
