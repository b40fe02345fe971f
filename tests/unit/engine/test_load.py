"""What sessions need of a machine whose passes cost what they cost."""

from collections.abc import Callable
from typing import Any

import pytest

from streamer.engine.load import (
    ACTIVITY_S,
    HESITATION_S,
    MAX_LOAD,
    MIN_PASSES,
    Activity,
    BusyTime,
    LoadMeter,
    Pass,
)
from tests.fakes import Clock


def a_pass(encode_s: float = 0.0, decode_s: float = 0.0, **more: Any) -> Pass:  # noqa: ANN401 - fields of it
    fields = {"busy_s": encode_s + decode_s, "n_calls": 0, "n_tokens": 0, "window_s": 5.0, "new_s": 2.0, **more}
    return Pass(encode_s=encode_s, decode_s=decode_s, **fields)


def meter(measured: Pass, max_pace_s: float = 2.0) -> LoadMeter:
    result = LoadMeter(max_pace_s)
    for _ in range(10):
        result.take_pass(measured)
    return result


def test_nothing_is_refused_before_something_was_measured() -> None:
    unknown = LoadMeter(2.0)
    for _ in range(MIN_PASSES - 1):
        unknown.take_pass(a_pass(10.0, 10.0))
    load = unknown.load([1.0] * 50)
    assert (load.ratio, load.capacity, load.room) == (0.0, None, True)


def test_what_a_pass_keeps_the_machine_busy_decides() -> None:
    # A tenth of it for each session: nine leave a tenth free.
    measured = meter(a_pass(0.2, 0.1, busy_s=0.2))
    load = measured.load([1.0] * 8)
    assert load.ratio == pytest.approx(0.8)
    assert load.capacity == 9
    assert load.room
    assert not measured.load([1.0] * 9).room


def test_a_pass_that_hears_more_at_a_time_is_expected_to_cost_more() -> None:
    # Eight tokens a second, of which two are new in this pass; at the pace that is still acceptable 16 would be.
    measured = a_pass(0.1, 0.1, n_calls=4, n_tokens=40, new_s=0.25)
    assert measured.cost_s(0.25) == pytest.approx(0.2)
    assert measured.cost_s(2.0) == pytest.approx(0.1 + 0.1 * (4 + 14) / 4)
    assert measured.cost_s(0.1) == pytest.approx(0.2), "it did cost that"
    assert meter(measured).load([]).capacity == int(MAX_LOAD * 2.0 / 0.55)


def test_time_in_which_two_threads_work_counts_once() -> None:
    clock = Clock()
    busy = BusyTime(clock)
    clock.now_s = 5.0
    assert busy.take() == 0.0
    clock.now_s = 10.0
    with busy.at_work():
        clock.now_s = 11.0
        with busy.at_work():
            clock.now_s = 13.0
        clock.now_s = 14.0
        assert busy.take() == pytest.approx(4.0)
        clock.now_s = 15.0
    clock.now_s = 20.0
    with busy.at_work():
        clock.now_s = 22.0
    clock.now_s = 30.0
    assert busy.take() == pytest.approx(3.0)


def test_listening_counts_also_in_silence() -> None:
    measured = meter(a_pass(0.2))
    assert measured.load([0.0] * 100).room
    measured.take_listening(0.01, 1.0)
    assert measured.load([0.0] * 79).room
    assert not measured.load([0.0] * 80).room


def test_who_is_alone_has_the_machine_however_slow_it_is() -> None:
    slow = meter(a_pass(10.0, 10.0))
    assert slow.load([]).room
    assert slow.load([]).capacity == 1
    assert not slow.load([1.0]).room


def test_a_session_counts_by_how_much_of_its_recent_audio_is_speech() -> None:
    activity = Activity(0.0)
    now_s = 0.0

    def hear(duration_s: float, speech: Callable[[int], bool]) -> float:
        nonlocal now_s
        for i in range(round(duration_s / 0.032)):
            now_s += 0.032
            activity.note(0.032, now_s, speech=speech(i))
        return activity.share(now_s)

    assert activity.share(now_s) == 1.0
    assert 0.3 < hear(ACTIVITY_S, lambda i: False) < 0.4
    assert hear(10 * ACTIVITY_S, lambda i: False) < 0.01
    assert hear(10 * ACTIVITY_S, lambda i: i % 2 == 0) == pytest.approx(0.5, abs=0.01)


def test_who_sends_nothing_does_not_keep_its_place() -> None:
    activity = Activity(100.0)
    assert activity.share(101.0) == 1.0
    assert 0.3 < activity.share(100.0 + HESITATION_S + ACTIVITY_S) < 0.4
    assert activity.share(500.0) < 0.01
