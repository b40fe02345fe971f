"""A worker's turns, its limit, and its end."""

import threading
from collections.abc import Callable

import pytest

from streamer.worker import WorkQueue, once
from tests.waiting import WAIT_S


class Busy:
    """A worker that is held at its first work until it may go on."""

    def __init__(self, limit: int) -> None:
        self.done: list[str] = []
        # Owners whose work was dropped.
        self.dropped: list[str] = []
        self.worker = WorkQueue("w", limit, self.dropped.append)
        self._begun, self.go_on = threading.Event(), threading.Event()
        self.worker.put("", self._hold)
        assert self._begun.wait(WAIT_S)

    def _hold(self) -> None:
        self._begun.set()
        assert self.go_on.wait(WAIT_S)

    def put(self, *names: str) -> None:
        """Put work that is called like this; the owner is the first letter."""
        for name in names:
            self.worker.put(name[0], lambda name=name: self.done.append(name))  # type: ignore[misc]

    def finish(self) -> list[str]:
        self.go_on.set()
        self.worker.close(WAIT_S)
        return self.done


def test_owners_take_turns_and_the_work_of_each_is_done_in_order() -> None:
    busy = Busy(limit=10)
    busy.put("a1", "a2", "a3", "b1", "b2", "c1")
    assert busy.finish() == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert busy.dropped == []


def test_beyond_the_limit_the_owner_with_most_loses_its_oldest_and_that_is_reported() -> None:
    busy = Busy(limit=3)
    busy.put("a1", "a2", "a3", "b1", "c1", "d1", "e1")
    assert busy.dropped == ["a", "a"]
    assert busy.finish() == ["a3", "b1", "c1", "d1", "e1"], "no owner loses its last"


def test_work_that_fails_is_logged_and_the_rest_is_done(caplog: pytest.LogCaptureFixture) -> None:
    busy = Busy(limit=9)
    busy.worker.put("a", lambda: 1 / 0)
    busy.put("a2")
    assert busy.finish() == ["a2"]
    assert "w: unexpected error" in caplog.text


def test_a_worker_without_work_has_no_thread_and_ends_at_once() -> None:
    n_threads = threading.active_count()
    worker = WorkQueue("w", 1)
    assert threading.active_count() == n_threads
    worker.close(WAIT_S)


@pytest.mark.parametrize("call", [lambda end: None, lambda end: end(), lambda end: (end(), end())])
def test_the_end_is_called_once_in_time_or_late(call: Callable[[Callable[[], None]], object]) -> None:
    called: list[str] = []
    over = threading.Event()

    def then() -> None:
        called.append("then")
        over.set()

    end = once(then, 0.2, late=lambda: called.append("late"))
    call(end)
    in_time = bool(called)
    assert over.wait(WAIT_S)
    threading.Event().wait(0.3)
    assert called == (["then"] if in_time else ["late", "then"])
