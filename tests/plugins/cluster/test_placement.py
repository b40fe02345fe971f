"""Which worker takes a session."""

import random
from collections import Counter

from streamer.plugins.cluster.messages import LOST_S, VERSION, WorkerAlive
from streamer.plugins.cluster.placement import FORGET_S, MISSED_S, Workers, has_room, wants_to_give


def alive(worker: str, load: float = 0.1, **more: object) -> WorkerAlive:
    fields = {"model": "nano.en", "capacity": 9, "sessions": 2, "room": load < 0.8, **more}
    return WorkerAlive(worker=worker, version=VERSION, load=load, **fields)  # type: ignore[arg-type]


def known(*signs: WorkerAlive, now_s: float = 0.0) -> Workers:
    workers = Workers(random.Random(1))
    for sign in signs:
        workers.take(sign, now_s)
    return workers


def test_the_least_loaded_is_asked_first() -> None:
    workers = known(alive("a", 0.5), alive("b", 0.1), alive("c", 0.3))
    assert workers.choose(0.0, model="nano.en")[-1] == "a"
    assert known(alive("a", 0.5), alive("b", 0.1)).choose(0.0, model=None) == ["b", "a"]


def test_what_was_just_placed_counts_until_the_next_sign_of_life() -> None:
    workers = known(alive("a", 0.1), alive("b", 0.15))
    assert [workers.choose(0.0, model=None)[0] for _ in range(4)] == ["a", "b", "a", "b"]
    workers.take(alive("a", 0.1), 0.5)
    assert [workers.choose(0.5, model=None)[0] for _ in range(2)] == ["a", "a"]


def test_many_gateways_do_not_all_ask_the_same_worker() -> None:
    signs = [alive(f"w{i}", 0.1 + i / 100) for i in range(10)]
    asked = Counter[str]()
    for seed in range(200):
        workers = Workers(random.Random(seed))
        for sign in signs:
            workers.take(sign, 0.0)
        asked[workers.choose(0.0, model=None)[0]] += 1
    assert max(asked.values()) < 60
    assert asked["w9"] == 0


def test_who_cannot_take_a_session_is_not_asked() -> None:
    workers = known(
        alive("drains", draining=True), alive("fails", failing="its device is away"), alive("other", model="base.en")
    )
    assert workers.choose(0.0, model="nano.en") == []
    assert workers.choose(0.0, model=None) == ["other"]
    assert workers.choose(0.0, model=None, avoid=["other"]) == []


def test_who_has_no_room_is_asked_last() -> None:
    workers = known(alive("full", 0.2, room=False), alive("free", 0.7))
    assert workers.choose(0.0, model=None) == ["free", "full"]
    assert not has_room(alive("one", 0.0, capacity=1), 1)


def test_a_worker_is_lost_after_its_silence_and_then_forgotten() -> None:
    workers = known(alive("a"), alive("b"))
    assert workers.is_lost("never alive", 0.0)
    workers.take(alive("b"), LOST_S)
    assert not workers.is_lost("a", LOST_S)
    assert workers.is_lost("a", LOST_S + 0.1)
    assert [sign.worker for sign in workers.alive(LOST_S + 0.1)] == ["b"]
    assert workers.alive(LOST_S + 0.1)
    assert not workers.alive(10.0)
    workers.take(alive("b"), FORGET_S + 0.1)
    assert [sign.worker for sign in workers.alive(FORGET_S + 0.1)] == ["b"]


def test_another_version_is_left_aside() -> None:
    workers = known(
        WorkerAlive(worker="new", version=VERSION + 1, model="x", load=0, capacity=0, sessions=0, room=True)
    )
    assert not workers.alive(0.0)


def test_a_worker_over_its_measure_gives_where_another_has_room() -> None:
    own = alive("own", 1.2)
    assert wants_to_give(own, [own, alive("b", 0.2)])
    assert not wants_to_give(own, [own])
    assert not wants_to_give(own, [alive("b", 0.85)])
    assert not wants_to_give(own, [alive("b", 0.2, model="base.en")])
    assert not wants_to_give(own, [alive("b", 0.2, draining=True)])
    assert not wants_to_give(alive("own", 0.85), [alive("b", 0.0)])
    assert not wants_to_give(alive("own", 2.0, sessions=1), [alive("b", 0.0)])


def test_a_session_does_not_wander_to_and_fro() -> None:
    one, other = alive("one", 0.95), alive("other", 0.8, room=True)
    assert not wants_to_give(one, [other])


def test_a_worker_that_nats_does_not_know_is_lost_soon_unless_it_is_alive() -> None:
    workers = Workers()
    for worker in ("a", "b"):
        workers.take(alive(worker), 10.0)
        workers.miss(worker, 10.1)
    assert not workers.is_lost("a", 10.1 + MISSED_S - 0.01)
    workers.take(alive("b"), 10.3)
    assert workers.is_lost("a", 10.11 + MISSED_S)
    assert not workers.is_lost("b", 10.3 + LOST_S)
