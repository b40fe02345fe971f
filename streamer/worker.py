"""Work behind a bounded queue: done by one thread, in turn for its owners."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

logger = logging.getLogger(__name__)

Work = Callable[[], object]


class WorkQueue:
    """A thread that does one piece of work after another; it starts with the first.

    Owners (sessions, for instance) take turns; the work of each is done in order. Any thread may call any method.
    """

    def __init__(self, name: str, limit: int, on_dropped: Callable[[Any], object] = lambda owner: None) -> None:
        """Let up to `limit` pieces of work wait; if one is dropped, call `on_dropped` with its owner.

        name : of the thread
        """
        # By owner. The owner that has waited longest for its turn is first.
        self._waiting: dict[Hashable, deque[Work]] = {}
        self._limit = limit
        self._on_dropped = on_dropped
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        # Guards all of this; notified when work has come and at the end.
        self._changed = threading.Condition()

    def put(self, owner: Hashable, work: Work) -> None:
        """Do work behind the owner's other work.

        If too much work waits, the oldest of the owner that has most is dropped, but never an owner's last: others may
        wait for that.
        """
        with self._changed:
            self._waiting.setdefault(owner, deque()).append(work)
            has_most, longest = max(self._waiting.items(), key=lambda each: len(each[1]))
            full = sum(map(len, self._waiting.values())) > self._limit and len(longest) > 1
            if full:
                longest.popleft()
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()
        if full:
            self._on_dropped(has_most)

    def close(self, timeout_s: float) -> None:
        """End the thread when all work is done; wait up to `timeout_s` for that."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            started = self._thread.ident is not None
        if started:
            self._thread.join(timeout_s)

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            owner = next(iter(self._waiting))
            own = self._waiting.pop(owner)
            work = own.popleft()
            if own:
                self._waiting[owner] = own
            return work

    def _run(self) -> None:
        while self._do_next():  # in a frame of its own: a waiting thread holds no owner
            pass

    def _do_next(self) -> bool:
        """Do the next piece of work; return False at the end."""
        work = self._next()
        if work is None:
            return False
        try:
            work()
        except Exception:
            logger.exception("%s: unexpected error", self._thread.name)
        return True


def once(then: Work, within_s: float, late: Work = lambda: None) -> Callable[[], None]:
    """Return a function that calls `then` the first time it is called.

    If it is not called within `within_s` seconds, `late` and `then` are called by a timer.
    """
    # Emptied by the call: the timer refers to its function and is referred to by it, and must not keep what is over.
    pending = [then]

    def call(before: Work = lambda: None) -> None:
        try:
            wanted = pending.pop()
        except IndexError:  # it was called before
            return
        timer.cancel()
        before()
        wanted()

    timer = threading.Timer(min(within_s, threading.TIMEOUT_MAX), call, (late,))
    timer.daemon = True
    timer.start()
    return call
