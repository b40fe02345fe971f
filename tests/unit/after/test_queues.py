"""The queue of a model: whose work is done, what is left out, and when a follower has none left."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from streamer.after import queues
from streamer.after.passages import Passage
from streamer.after.queues import LATE, ModelQueue, QueuedFollower, attempt
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.health import Health
from tests import builders
from tests.fakes import Clock
from tests.unit.after.live import Live
from tests.waiting import WAIT_S

REPORTED = {"model": str(LATE)}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(queues, "time", SimpleNamespace(monotonic=clock))
    return clock


class Model:
    """A model whose queue is held until it is let go, and what was done."""

    def __init__(self, limit: int = 9) -> None:
        self.health, self.done = Health(), list[str]()
        self.queue = ModelQueue("model", limit, self.health)
        self._begun, self._let_go = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.queue.put(follower(), self._wait)
        assert self._begun.wait(WAIT_S)

    def _wait(self) -> None:
        self._begun.set()
        assert self._let_go.wait(WAIT_S)

    def put(self, of: QueuedFollower, *names: str, until_s: float = WAIT_S) -> None:
        for name in names:
            self.queue.put(of, lambda name=name: self.done.append(name), until_s)  # type: ignore[misc]

    def finish(self) -> list[str]:
        self._let_go.set()
        self.queue._works.close(WAIT_S)
        return self.done


def follower() -> QueuedFollower:
    live = Live(59.0)
    return QueuedFollower(live.session, live.log)


def test_if_too_much_waits_the_session_that_has_most_loses_its_oldest_and_that_is_reported() -> None:
    model, a, b = Model(limit=2), follower(), follower()
    model.hold()
    model.put(a, "a1", "a2")
    assert model.health.why == {}
    model.put(b, "b1")
    assert model.health.why == REPORTED
    assert model.finish() == ["a2", "b1"], "each in its turn"
    assert model.health.why == {}, "the next was in time"


def test_work_that_is_late_when_its_turn_comes_is_left_out_and_reported(clock: Clock) -> None:
    model, a = Model(), follower()
    model.hold()
    model.put(a, "late", until_s=1.0)
    clock.advance(1.0)
    assert model.finish() == []
    assert model.health.why == REPORTED


def test_work_may_say_that_it_is_late(clock: Clock) -> None:
    def fail() -> None:
        raise TimeoutError

    model = Model()
    model.queue.put(follower(), fail)
    model.finish()
    assert model.health.why == REPORTED


def test_another_failure_of_the_model_is_not_over_because_work_comes_in_time() -> None:
    model = Model()
    model.health.failed("model", StreamerError("the device is lost"))
    model.put(follower(), "done")
    assert model.finish() == ["done"]
    assert model.health.why == {"model": "the device is lost"}


def nothing(_: Model, __: QueuedFollower) -> None: ...


def fails(model: Model, of: QueuedFollower) -> None:
    model.queue.put(of, lambda: 1 / 0)


def is_dropped(model: Model, of: QueuedFollower) -> None:
    model.put(of, *"abcdef")


def is_late(model: Model, of: QueuedFollower) -> None:
    model.put(of, "late", until_s=0.0)


def leaves(model: Model, of: QueuedFollower) -> None:
    model.put(of, "gone")
    of.log.close()


def goes_on(model: Model, of: QueuedFollower) -> None:
    """It has more to do when its first work is done."""
    model.queue.put(of, lambda: model.put(of, "more"))


@pytest.mark.parametrize("happens", [nothing, fails, is_dropped, is_late, leaves, goes_on])
def test_a_follower_is_finished_when_no_work_is_left(
    happens: Callable[[Model, QueuedFollower], None], clock: Clock
) -> None:
    model, of, called = Model(limit=3), follower(), list[str]()
    model.hold()
    happens(model, of)
    of.finish_within(WAIT_S, lambda: called.append("then"), late=lambda: called.append("late"))
    assert called == (["then"] if happens is nothing else [])
    model.finish()
    assert called == ["then"]
    assert (model.done == ["more"]) == (happens is goes_on)


def test_the_end_comes_late_if_work_does() -> None:
    model, of, over, called = Model(), follower(), threading.Event(), list[str]()
    model.hold()
    model.put(of, "work")
    of.finish_within(0.01, over.set, late=lambda: called.append("late"))
    assert over.wait(WAIT_S)
    assert called == ["late"]
    model.finish()


def test_work_gets_the_audio_of_a_passage_unless_it_was_overwritten() -> None:
    model, live, lengths = Model(), Live(100.0, buffer_s=60), list[int]()
    of = QueuedFollower(live.session, live.log)
    for start, end in ((50.0, 52.5), (99.0, 101.0), (39.0, 41.0)):
        passage = Passage((builders.final("so", start=start, end=end),))
        of.put_with_audio(model.queue, passage, lambda samples: lengths.append(len(samples)), WAIT_S)
    assert model.health.why == REPORTED
    model.finish()
    assert lengths == [2.5 * SAMPLE_RATE, SAMPLE_RATE]


def test_a_part_that_fails_is_reported_until_it_finds_something() -> None:
    health = Health()

    def fail() -> str:
        raise StreamerError("the device is lost")

    def give_up() -> str:
        raise TimeoutError

    assert attempt(health, "part", fail) is None
    assert health.why == {"part": "the device is lost"}
    assert attempt(health, "part", lambda: None) is None
    with pytest.raises(TimeoutError):
        attempt(health, "part", give_up)
    assert health.why == {"part": "the device is lost"}
    assert attempt(health, "part", lambda: "found") == "found"
    assert health.why == {}
