"""Which worker takes a session."""

import random
from collections import Counter

import pytest

from streamer.plugins.cluster.messages import LOST_S, VERSION, WorkerAlive
from streamer.plugins.cluster.placement import FORGET_S, MISSED_S, Workers, has_room, wants_to_give
from tests.plugins.cluster.support import alive


def known(*signs: WorkerAlive, seed: int = 1) -> Workers:
    workers = Workers(random.Random(seed))
    for sign in signs:
        workers.take(sign, 0.0)
    return workers


def test_the_less_loaded_is_asked_first_and_who_has_no_room_last() -> None:
    assert known(alive("a", 0.5), alive("b", 0.1)).choose(0.0, model=None) == ["b", "a"]
    assert known(alive("a", 0.5), alive("b", 0.1), alive("c", 0.3)).choose(0.0, model="nano.en")[-1] == "a"
    assert known(alive("full", 0.2, room=False), alive("free", 0.7)).choose(0.0, model=None) == ["free", "full"]


def test_what_was_just_placed_counts_until_the_next_sign_of_life() -> None:
    workers = known(alive("a", 0.1), alive("b", 0.15))
    assert [workers.choose(0.0, model=None)[0] for _ in range(4)] == ["a", "b", "a", "b"]
    workers.take(alive("a", 0.1), 0.5)
    assert [workers.choose(0.5, model=None)[0] for _ in range(2)] == ["a", "a"]
    assert not has_room(alive(capacity=1, load=0.0), 1)
    assert has_room(alive(capacity=0, load=0.6), 2)
    assert not has_room(alive(capacity=0, load=0.6), 3)  # of those not known a tenth each


def test_many_gateways_do_not_all_ask_the_same_worker() -> None:
    signs = [alive(f"w{i}", 0.1 + i / 100) for i in range(10)]
    asked = Counter(known(*signs, seed=seed).choose(0.0, model=None)[0] for seed in range(200))
    assert max(asked.values()) < 60
    assert asked["w9"] == 0


def test_who_cannot_take_a_session_is_not_asked() -> None:
    workers = known(
        alive("drains", draining=True),
        alive("fails", failing="its device is away"),
        alive("other", model="base.en"),
        alive("newer", version=VERSION + 1),
        alive("not.a.name"),
    )
    assert workers.choose(0.0, model="nano.en") == []
    assert workers.choose(0.0, model=None) == ["other"]
    assert workers.choose(0.0, model=None, avoid=["other"]) == []
    assert [workers.model(name) for name in ("other", "newer")] == ["base.en", ""]


def test_another_is_who_could_take_a_session() -> None:
    workers = known(alive("a"), alive("b", 0.95), alive("c", model="base.en"))
    assert workers.another(0.0, model="nano.en", than="a", room=False)
    assert not workers.another(0.0, model="nano.en", than="a", room=True)
    assert workers.another(0.0, model="nano.en", than="b", room=True)
    assert not workers.another(LOST_S + 0.1, model="nano.en", than="b", room=False)


def test_a_worker_is_lost_after_its_silence_and_then_forgotten() -> None:
    workers = known(alive("a"), alive("b"))
    assert workers.is_lost("never alive", 0.0)
    workers.take(alive("b"), LOST_S)
    assert [workers.is_lost("a", now_s) for now_s in (LOST_S, LOST_S + 0.1)] == [False, True]
    assert [sign.worker for sign in workers.alive(LOST_S + 0.1)] == ["b"]
    assert workers.model("a")
    workers.take(alive("b"), FORGET_S + 0.1)
    assert not workers.model("a")


def test_a_worker_that_nats_does_not_know_is_lost_soon_unless_it_is_alive() -> None:
    workers = known(alive("a"), alive("b"))
    for worker in ("a", "b", "unknown"):
        workers.miss(worker, 0.1)
    assert not workers.is_lost("a", 0.1 + MISSED_S - 0.01)
    workers.take(alive("b"), 0.3)
    assert workers.is_lost("a", 0.11 + MISSED_S)
    assert not workers.is_lost("b", 0.3 + LOST_S)


@pytest.mark.parametrize(
    ("own", "other", "gives"),
    [
        (alive("own", 1.2), alive("b", 0.2), True),
        (alive("own", 1.2), alive("own", 0.2), False),
        (alive("own", 1.2), alive("b", 0.85), False),
        (alive("own", 1.2), alive("b", 0.2, model="base.en"), False),
        (alive("own", 1.2), alive("b", 0.2, draining=True), False),
        (alive("own", 0.85), alive("b", 0.0), False),
        (alive("own", 2.0, sessions=1), alive("b", 0.0), False),
        (alive("own", 0.95), alive("b", 0.8, room=True), False),  # it would wander to and fro
        (alive("own", 0.95), alive("b", 0.74), True),
        (alive("own", 0.95), alive("b", 0.76), False),
    ],
)
def test_a_worker_over_its_measure_gives_where_another_has_room(
    own: WorkerAlive, other: WorkerAlive, gives: bool
) -> None:
    assert wants_to_give(own, [own, other]) == gives
