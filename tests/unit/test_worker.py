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
        begun, self._go_on = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            self._go_on.wait(WAIT_S)

        self.worker.put("", wait)
        assert begun.wait(WAIT_S)

    def put(self, names: str) -> None:
        """Put work that is called like this; the owner is the first letter."""
        for name in names.split():
            self.worker.put(name[0], lambda name=name: self.done.append(name))  # type: ignore[misc]

    def finish(self) -> str:
        self._go_on.set()
        self.worker.close(WAIT_S)
        return " ".join(self.done)


@pytest.mark.parametrize(
    ("limit", "put", "dropped", "done"),
    [
        # Owners take turns, and the work of each is done in order.
        (10, "a1 a2 a3 b1 b2 c1", [], "a1 b1 c1 a2 b2 a3"),
        # Beyond the limit the owner with most loses its oldest; no owner loses its last.
        (3, "a1 a2 a3 b1 c1 d1 e1", ["a", "a"], "a3 b1 c1 d1 e1"),
    ],
)
def test_owners_take_turns_up_to_the_limit(limit: int, put: str, dropped: list[str], done: str) -> None:
    busy = Busy(limit)
    busy.put(put)
    assert busy.dropped == dropped
    assert busy.finish() == done


def test_work_that_fails_is_logged_and_the_rest_is_done(caplog: pytest.LogCaptureFixture) -> None:
    busy = Busy(limit=9)
    busy.worker.put("a", lambda: 1 / 0)
    busy.put("a2")
    assert busy.finish() == "a2"
    assert [bool(record.exc_info) for record in caplog.records] == [True]


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
