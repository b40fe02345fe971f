"""A log that numbers a session's events; any number of listeners can follow it without missing one."""

import itertools
import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from streamer.engine.follower import surviving
from streamer.events import End, Error, Event, Final, Gap, Partial, Ready, Speech, from_json

logger = logging.getLogger(__name__)

Listener = Callable[[Event], None]
AnyEvent = TypeVar("AnyEvent", bound=Event)

# An event's number, and the event as compressed JSON: an hour of speech has a thousand, and objects take nine times the
# memory.
_Packed = tuple[int, bytes]


class Backlog:
    """Events of the past, oldest first, each unpacked when it is read."""

    def __init__(self, packed: Iterable[_Packed]) -> None:
        self._packed = sorted(packed)

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[Event]:
        return (_unpack(packed) for packed in self._packed)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a new listener missed, and how to remove it.

    backlog : what was published before the listener was added; everything later goes to the listener
    cancel : removes the listener, which is not called after that; harmless the second time
    """

    backlog: Backlog
    cancel: Callable[[], None]


class EventLog:
    """Numbers the events of one session, keeps those that still matter, and passes them on.

    Any thread may call any method. Memory is bounded: the log keeps the `ready` event, the newest partial of the open
    segment, and the newest `limit` other events.
    """

    def __init__(self, session: str, limit: int, *, after: int = 0) -> None:
        """Open the log of `session`, a unique name, with `limit` events for replay and numbers that follow `after`."""
        if limit < 1:
            raise ValueError(f"limit is {limit}: expected at least 1 event")
        self.session = session
        self._logger = logging.LoggerAdapter(logger, {"session": session})
        self._limit = limit
        # Held while an event is numbered and passed on, so that all listeners see one order. Re-entrant
        # because a listener may cancel itself.
        self._lock = threading.RLock()
        # Number of the newest event, published or not; 0 before the first.
        self.last_seq = after
        # Whether `end` has a number: nothing follows it.
        self._ending = False
        # All events except partials and the first `ready`, oldest first.
        self._kept: deque[_Packed] = deque()
        self._ready: Event | None = None
        # The newest partial of the segment that has no final yet; the `speech start` that has no `speech end` yet.
        self._partial: Partial | None = None
        self._speech: Speech | None = None
        # The newest fatal error, and the end, once it is published.
        self._fatal: Error | None = None
        self._end: End | None = None
        # Number of the newest event that was dropped for age, 0 for none; end of their audio, in seconds.
        self.dropped_seq = 0
        self._dropped_until_s = 0.0
        # In the order in which they came.
        self._listeners: dict[object, Listener] = {}

    @property
    def closed(self) -> bool:
        return self._end is not None

    def append(self, event: AnyEvent) -> AnyEvent:
        """Number the event, keep it and pass it to every listener; return it as it is published.

        Listeners run in the thread that publishes, under the lock: they hand the event over and return. One that raises
        is dropped with a line in the log. After `end` nothing is published: the event comes back with `seq` 0.
        """
        with self._lock:
            if self._ending:
                self._logger.debug("the session has ended, a late %s event is dropped", event.type)
                return event.stamped(0, self.session)
            event = event.stamped(self.last_seq + 1, self.session)
            self.put(event)
            return event

    def put(self, event: Event) -> None:
        """Publish an event that has its number already, unless it is older than the newest one."""
        with self._lock:
            if self._ending or event.seq <= self.last_seq:
                return
            self.last_seq = event.seq
            self._ending = isinstance(event, End)
            self._take(event)

    def call_behind(self, callback: Callable[[], object]) -> None:
        """Call `callback` when everything that was appended so far is published, which may be at once."""
        callback()

    def notify(self, event: Event) -> None:
        """Publish an event without a number and without keeping it: it is not part of the session."""
        with self._lock:
            if self._end is None:
                self._publish(event.stamped(0, self.session))

    def skip_to(self, seq: int) -> None:
        """Give no number up to `seq` to an event: another process gave them to partials that are not known here."""
        with self._lock:
            self.last_seq = max(self.last_seq, seq)

    def subscribe(self, listener: Listener, *, after: int | None = None, session: str | None = None) -> Subscription:
        """Add a listener and return what it missed; between the two no event is lost or doubled.

        Without `after` the backlog is the current state: `ready`, a `speech start` that is still open, the newest
        partial of the open segment. With `after` it holds all later events that are kept. If `after` is beyond the
        newest number, or `session` is not this session, the caller's numbers come from another run, and the backlog
        holds everything from the start. If some of these events are no longer kept, the backlog has an `error` event,
        code `history_lost`, with the number of the newest of them. The backlog of a closed log always ends with `end`.
        """
        with self._lock:
            if after is None:
                over = (self._fatal, self._end) if self._end is not None else ()
                state = (self._ready, self._speech, self._partial, *over)
                backlog = [_pack(event) for event in state if event is not None]
            else:
                backlog = self._since(0 if after > self.last_seq or session not in (None, self.session) else after)
            key = object()
            if self._end is None:
                self._listeners[key] = listener
            return Subscription(Backlog(backlog), lambda: self._remove(key))

    def close(self) -> None:
        with self._lock:
            if not self._ending:
                self.append(End())

    def _take(self, event: Event) -> None:
        """Publish an event that has its number; a subclass may do so later."""
        self._publish(event)

    def _remember(self, event: Event) -> None:
        if not event.seq:  # a notice, see `notify`
            return
        match event:
            case Ready() if self._ready is None:
                self._ready = event
                return
            case Partial():
                self._partial = event
                return
            case Final():
                # Finals come in order: earlier segments are final, too.
                if self._partial is not None and self._partial.segment <= event.segment:
                    self._partial = None
            case Gap(reason="cleared"):
                self._partial = None  # it has no final
            case Speech():
                self._speech = event if event.state == "start" else None
            case Error() if event.fatal:
                self._fatal = event
            case End():
                self._end = event
        self._kept.append(_pack(event))
        if len(self._kept) > self._limit:
            dropped = _unpack(self._kept.popleft())
            self.dropped_seq = dropped.seq
            time_s: float = getattr(dropped, "end", getattr(dropped, "time", 0.0))
            self._dropped_until_s = max(self._dropped_until_s, time_s)

    def _publish(self, event: Event) -> None:
        with surviving(self._logger, "a %s event is not kept for listeners to come", event.type):
            self._remember(event)
        for key, listener in tuple(self._listeners.items()):
            if key not in self._listeners:  # cancelled by a listener before it
                continue
            try:
                listener(event)
            except Exception:
                self._logger.exception("a listener failed on %s and is dropped", event.type)
                self._listeners.pop(key, None)
        if self._end is not None:
            self._listeners.clear()

    def _since(self, after: int) -> list[_Packed]:
        events: list[Event] = [self._history_lost()] if after < self.dropped_seq else []
        events += [event for event in (self._ready, self._partial) if event is not None and event.seq > after]
        # `end` is repeated to a listener that has it already, which would wait for it otherwise.
        kept_after = min(after, self._end.seq - 1) if self._end is not None else after
        later = itertools.takewhile(lambda packed: packed[0] > kept_after, reversed(self._kept))
        return [*map(_pack, events), *later]

    def _history_lost(self) -> Error:
        message = (
            f"events before {self._dropped_until_s:.3f} s of the session's audio are no longer kept (only the newest "
            f"{self._limit} are): text is available from there on; raise server.history_events to keep more"
        )
        return Error(seq=self.dropped_seq, session=self.session, code="history_lost", message=message, fatal=False)

    def _remove(self, key: object) -> None:
        with self._lock:
            self._listeners.pop(key, None)


def _pack(event: Event) -> _Packed:
    """Pack an event, in about ten microseconds: less than it takes to hand it to another thread."""
    return event.seq, zlib.compress(event.to_json().encode("utf-8"))


def _unpack(packed: _Packed) -> Event:
    return from_json(zlib.decompress(packed[1]))
