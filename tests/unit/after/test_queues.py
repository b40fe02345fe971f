"""The queue of a model: whose work is done, what is left out, and when a follower has none left."""

import threading
from collections.abc import Callable

import pytest

from streamer.after.passages import Passage
from streamer.after.queues import LATE, ModelQueue, QueuedFollower, attempt
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.health import Health
from tests.builders import final
from tests.fakes import Clock
from tests.unit.after.live import Live
from tests.waiting import WAIT_S

REPORTED = {"model": str(LATE)}


class Model:
    """A model whose queue is held until `finish`, and what was done."""

    def __init__(self, limit: int = 9, *, health: Health | None = None) -> None:
        self.health, self.done = health or Health(), list[str]()
        self.queue = ModelQueue("model", limit, self.health)
        self._begun, self._let_go = threading.Event(), threading.Event()
        self.queue.put(follower(), self._hold)
        assert self._begun.wait(WAIT_S)

    def _hold(self) -> None:
        self._begun.set()
        self._let_go.wait(WAIT_S)

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


def test_if_too_much_waits_the_session_that_has_most_loses_its_oldest_and_that_is_reported(clock: Clock) -> None:
    model, a, b = Model(limit=2), follower(), follower()
    model.put(a, "a1", "a2")
    assert model.health.why == {}
    model.put(b, "b1")
    assert model.health.why == REPORTED
    assert model.finish() == ["a2", "b1"], "each in its turn"
    assert model.health.why == {}, "the next was in time"


def test_work_that_is_late_or_says_so_is_left_out_and_reported(clock: Clock) -> None:
    def give_up() -> None:
        raise TimeoutError

    late, failing, silent = Model(), Model(), ModelQueue("silent", 9)
    late.put(follower(), "late", until_s=1.0)
    clock.advance(1.0)
    failing.queue.put(follower(), give_up)
    assert (late.finish(), failing.finish()) == ([], [])
    assert late.health.why == failing.health.why == REPORTED
    done = threading.Event()
    for work in (give_up, done.set):
        silent.put(follower(), work)
    assert done.wait(WAIT_S), "without a Health nothing is reported"


def test_another_failure_of_the_model_is_not_over_because_work_comes_in_time(clock: Clock) -> None:
    health = Health()
    model = Model(health=health)
    health.failed("model", StreamerError("the device is lost"))
    model.put(follower(), "done")
    assert model.finish() == ["done"]
    assert health.why == {"model": "the device is lost"}


def leaves(model: Model, of: QueuedFollower) -> None:
    model.put(of, "gone")
    of.log.close()


WORK: dict[str, Callable[[Model, QueuedFollower], object]] = {
    "none": lambda model, of: None,
    "fails": lambda model, of: model.queue.put(of, lambda: 1 / 0),
    "is dropped": lambda model, of: model.put(of, *"abcdef"),
    "is late": lambda model, of: model.put(of, "late", until_s=0.0),
    "client leaves": leaves,
    "goes on": lambda model, of: model.queue.put(of, lambda: model.put(of, "more")),
}


@pytest.mark.parametrize("work", WORK)
def test_a_follower_is_finished_when_no_work_is_left(work: str, clock: Clock) -> None:
    model, of, called = Model(limit=3), follower(), list[str]()
    WORK[work](model, of)
    of.finish_within(WAIT_S, lambda: called.append("then"), late=lambda: called.append("late"))
    assert called == (["then"] if work == "none" else [])
    model.finish()
    assert called == ["then"]
    assert model.done == {"is dropped": ["d", "e", "f"], "goes on": ["more"]}.get(work, [])


def test_work_gets_the_audio_of_a_passage_unless_it_was_overwritten(clock: Clock) -> None:
    model, live, lengths = Model(), Live(100.0, buffer_s=60), list[int]()
    of = QueuedFollower(live.session, live.log)
    for start, end in ((50.0, 52.5), (99.0, 101.0), (39.0, 41.0)):
        passage = Passage((final("so", start=start, end=end),))
        of.put_with_audio(model.queue, passage, lambda samples: lengths.append(len(samples)), WAIT_S)
    assert model.health.why == REPORTED
    model.finish()
    assert lengths == [2.5 * SAMPLE_RATE, SAMPLE_RATE]


def test_a_part_that_fails_is_reported_until_it_finds_something() -> None:
    health = Health()

    def fail(error: Exception) -> str:
        raise error

    assert attempt(health, "part", lambda: fail(StreamerError("lost"))) is None
    assert attempt(health, "part", lambda: None) is None
    with pytest.raises(TimeoutError):
        attempt(health, "part", lambda: fail(TimeoutError()))
    assert health.why == {"part": "lost"}
    assert attempt(health, "part", lambda: "found") == "found"
    assert health.why == {}
