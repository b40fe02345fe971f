"""What waits to be sent to one subscriber. No I/O, no threads: events in, events out."""

from collections import OrderedDict
from collections.abc import Iterable

from streamer.events import Event, Final, Partial


class Outbox:
    """A queue that stays short because what is outdated leaves it.

    A newer partial takes the place of a queued one of its segment, a final that of its segment's partial. Everything
    else is kept. A subscriber that still falls more than `limit` events behind has overflowed: its connection is to
    be closed, and it can come back for what it missed.
    """

    def __init__(self, limit: int, backlog: Iterable[Event] = ()) -> None:
        """Start with a replay, which does not count towards the `limit`: it is as long as the history allows."""
        self._limit = limit
        # Events not yet taken, by number, oldest first. (A plain dict is slow to empty from the front.)
        self._queue: OrderedDict[int, Event] = OrderedDict()
        # Number of the queued partial of a segment.
        self._partials: dict[int, int] = {}
        # Newest number of the replay. Later events count towards the limit.
        self._replay_seq = 0
        # Queued events of the replay.
        self._n_replay = 0
        # Number of the event that was taken last; None before the first.
        self.last_taken: int | None = None
        # How many partials were dropped in favour of a newer text.
        self.n_superseded = 0
        # Whether more than `limit` events waited at once. From then on nothing goes in or out.
        self.overflowed = False
        for event in backlog:
            self._add(event)
            self._replay_seq = event.seq
        self._n_replay = len(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, event: Event) -> None:
        """Queue an event; its number must be higher than those before."""
        if self.overflowed:
            return
        self._add(event)
        if len(self._queue) - self._n_replay > self._limit:
            self.overflowed = True

    def take(self) -> Event | None:
        """Return the oldest event that waits, None where none does or the subscriber is to be closed."""
        if self.overflowed or not self._queue:
            return None
        seq = next(iter(self._queue))
        event = self._remove(seq)
        self.last_taken = seq
        return event

    @property
    def overflow_reason(self) -> str:
        """Say, for a close frame, how far behind the subscriber is and how it gets the rest."""
        after = 0 if self.last_taken is None else self.last_taken
        return f"too slow: {len(self._queue)} events behind, reconnect with ?after={after}"

    def _add(self, event: Event) -> None:
        if isinstance(event, Partial | Final):
            superseded = self._partials.pop(event.segment, None)
            if superseded is not None:
                self._remove(superseded)
                self.n_superseded += 1
        if isinstance(event, Partial):
            self._partials[event.segment] = event.seq
        self._queue[event.seq] = event

    def _remove(self, seq: int) -> Event:
        event = self._queue.pop(seq)
        if seq <= self._replay_seq:
            self._n_replay -= 1
        if isinstance(event, Partial) and self._partials.get(event.segment) == seq:
            del self._partials[event.segment]
        return event
