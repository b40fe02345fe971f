"""The numbered record of a session's events, which any number of listeners can follow without missing one."""

import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from streamer.events import End, Error, Event, Final, Flushed, Gap, Partial, Ready, Speech, from_json

logger = logging.getLogger(__name__)

Listener = Callable[[Event], None]
AnyEvent = TypeVar("AnyEvent", bound=Event)


@dataclass(frozen=True, slots=True)
class _Packed:
    """An event as it is kept: an hour of speech has a thousand, and their objects take nine times as much."""

    seq: int
    time_s: float  # second of the session's audio up to which it tells; 0 where it tells of none
    data: bytes  # its JSON, compressed

    @classmethod
    def of(cls, event: Event) -> "_Packed":
        return cls(event.seq, _time_s(event), zlib.compress(event.to_json().encode("utf-8")))

    def unpacked(self) -> Event:
        return from_json(zlib.decompress(self.data))


class Backlog:
    """Events of the past, oldest first. Each is unpacked when it is asked for."""

    def __init__(self, events: Iterable[Event | _Packed]) -> None:
        self._events = tuple(sorted(events, key=_seq))

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return (event.unpacked() if isinstance(event, _Packed) else event for event in self._events)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a new listener has to know, and how it leaves."""

    # What happened before the listener was added; everything later goes to the listener.
    backlog: Backlog

    # Removes the listener; harmless the second time. No call reaches the listener after it returned.
    cancel: Callable[[], None]


class EventLog:
    """Numbers the events of one session, keeps those that still matter, and passes them on.

    Any thread may call any method. Memory is bounded: of partials only the newest of the open segment is kept, of
    everything else the newest `limit` events; the `ready` event stays for as long as the log.
    """

    def __init__(
        self, session: str, limit: int, keep: Callable[[Event], object] | None = None, *, after: int = 0
    ) -> None:
        """Open the log of `session`, a name unique to it, which keeps `limit` events for replay.

        Numbers begin behind `after`.

        `keep` is called with each event before any listener sees it, so that what was told is kept. It is called under
        the log's lock.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit}: expected at least 1 event")
        self.session = session
        self._logger = logging.LoggerAdapter(logger, {"session": session})
        self._limit = limit
        self._keep_for_good = keep
        # Held while an event is numbered, stored and passed on, so that all listeners see one order. Re-entrant
        # because a listener may cancel itself.
        self._lock = threading.RLock()
        # Number of the newest event; 0 before the first.
        self._seq = after
        # The first `ready` event; None before it.
        self._ready: Event | None = None
        # All other events but partials, oldest first, at most `limit`.
        self._kept: deque[_Packed] = deque()
        # Newest partial of the segment that has no final yet.
        self._partial: Partial | None = None
        # The `speech start` that no `speech end` has followed yet.
        self._speech: Speech | None = None
        # Number of the newest event that was dropped for age (0: none), and up to which second of the session's audio
        # the dropped events told.
        self._dropped_seq = 0
        self._dropped_until_s = 0.0
        # The newest fatal `error`; None before it.
        self._fatal: Error | None = None
        # The `end` event; nothing is taken in after it.
        self._end: Event | None = None
        # Those who follow, in the order they came.
        self._listeners: dict[object, Listener] = {}

    @property
    def last_seq(self) -> int:
        """Number of the newest event, 0 before the first."""
        return self._seq

    @property
    def dropped_seq(self) -> int:
        """Number of the newest event that was dropped for age, 0 where none was."""
        return self._dropped_seq

    @property
    def closed(self) -> bool:
        return self._end is not None

    def append(self, event: AnyEvent) -> AnyEvent:
        """Number the event, keep it and pass it to every listener; return it as it was published.

        Listeners run in the calling thread, under the lock: they hand the event over and return. One that raises is
        dropped with a line in the log. After `end` nothing is published: the event comes back with `seq` 0.
        """
        with self._lock:
            if self._end is not None:
                self._logger.debug("the session has ended, a late %s event is dropped", event.type)
                return event.stamped(0, self.session)
            event = event.stamped(self._seq + 1, self.session)
            self.put(event)
            return event

    def put(self, event: Event) -> None:
        """Take in an event that has its number, from where the session is transcribed; nothing where it is known."""
        with self._lock:
            if self._end is not None or event.seq <= self._seq:
                return
            self._seq = event.seq
            if self._keep_for_good is not None:
                try:
                    self._keep_for_good(event)
                except Exception:
                    self._logger.exception("a %s event could not be kept", event.type)
            self._keep(event)
            self._publish(event)

    def skip_to(self, seq: int) -> None:
        """Take it that numbers up to `seq` were given elsewhere, to partials that are not known here."""
        with self._lock:
            self._seq = max(self._seq, seq)

    def subscribe(self, listener: Listener, *, after: int | None = None, session: str | None = None) -> Subscription:
        """Add a listener and return what it missed; between the two no event is lost or doubled.

        Without `after` the backlog says where things stand: `ready`, a `speech start` that is still open, the newest
        partial of the open segment. With `after` it holds everything later than that number that still matters. Where
        `after` is beyond the newest number, or `session` is not this session, the caller's numbers come from another
        run, and the backlog holds everything from the start. A replay that reaches back to events no longer kept says
        so with an `error` event, code `history_lost`, which has the number of the newest of them. The backlog of a
        closed log always ends with `end`.
        """
        with self._lock:
            backlog: Iterable[Event | _Packed]
            if after is None:
                backlog = self._standing()
            elif after > self._seq or session not in (None, self.session):
                backlog = self._since(0)
            else:
                backlog = self._since(after)
            key = object()
            if self._end is None:
                self._listeners[key] = listener
            return Subscription(Backlog(backlog), lambda: self._remove(key))

    def close(self) -> None:
        with self._lock:
            if self._end is None:
                self.append(End())

    def _keep(self, event: Event) -> None:
        match event:
            case Ready() if self._ready is None:
                self._ready = event
                return
            case Partial():
                self._partial = event
                return
            case Final():
                # Finals come in order, so this one settles every earlier segment too.
                if self._partial is not None and self._partial.segment <= event.segment:
                    self._partial = None
            case Gap(reason="cleared"):
                # What was shown is forgotten: no final comes of it.
                self._partial = None
            case Speech():
                self._speech = event if event.state == "start" else None
            case Error() if event.fatal:
                self._fatal = event
            case End():
                self._end = event
        self._kept.append(_Packed.of(event))
        if len(self._kept) > self._limit:
            dropped = self._kept.popleft()
            self._dropped_seq = dropped.seq
            self._dropped_until_s = max(self._dropped_until_s, dropped.time_s)

    def _publish(self, event: Event) -> None:
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

    def _standing(self) -> Iterable[Event]:
        over = (self._fatal, self._end) if self._end is not None else ()
        return (event for event in (self._ready, self._speech, self._partial, *over) if event is not None)

    def _since(self, after: int) -> Iterable[Event | _Packed]:
        backlog: list[Event | _Packed] = [e for e in (self._ready, self._partial) if e is not None and e.seq > after]
        if after < self._dropped_seq:
            backlog.append(self._history_lost())
        # `end` is repeated to one who has it already: without it, it would wait for ever.
        after = min(after, self._end.seq - 1) if self._end is not None else after
        return backlog + [packed for packed in self._kept if packed.seq > after]

    def _history_lost(self) -> Error:
        message = (
            f"events before {self._dropped_until_s:.3f} s of the session's audio are no longer kept (only the newest "
            f"{self._limit} are): text is available from there on; raise server.history_events to keep more"
        )
        return Error(seq=self._dropped_seq, session=self.session, code="history_lost", message=message, fatal=False)

    def _remove(self, key: object) -> None:
        with self._lock:
            self._listeners.pop(key, None)


def _seq(event: Event | _Packed) -> int:
    return event.seq


def _time_s(event: Event) -> float:
    """Second of the session's audio up to which an event tells; 0 for one that tells of none."""
    match event:
        case Final() | Gap():
            return event.end
        case Speech() | Flushed():
            return event.time
        case _:
            return 0.0
