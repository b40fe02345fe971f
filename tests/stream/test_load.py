"""What sessions need of a machine whose passes cost what they cost."""

from collections.abc import Callable

import pytest

from streamer.stream.load import ACTIVITY_S, HESITATION_S, MIN_PASSES, Activity, LoadMeter


def meter(encode_s: float, decode_s: float, max_pace_s: float = 2.0) -> LoadMeter:
    result = LoadMeter(max_pace_s)
    for _ in range(10):
        result.take_encode(encode_s)
        result.take_decode(decode_s)
    return result


def test_nothing_is_refused_before_something_was_measured() -> None:
    unknown = LoadMeter(2.0)
    for _ in range(MIN_PASSES - 1):
        unknown.take_encode(10.0)
        unknown.take_decode(10.0)
    load = unknown.load([1.0] * 50)
    assert (load.ratio, load.capacity, load.room) == (0.0, None, True)


@pytest.mark.parametrize(("encode_s", "decode_s"), [(0.2, 0.1), (0.1, 0.2)])
def test_the_busier_thread_decides(encode_s: float, decode_s: float) -> None:
    # A tenth of it for each session: nine leave a tenth free.
    load = meter(encode_s, decode_s).load([1.0] * 8)
    assert load.ratio == pytest.approx(0.8)
    assert load.capacity == 9
    assert load.room
    assert not meter(encode_s, decode_s).load([1.0] * 9).room


def test_a_slower_pace_leaves_room_for_more() -> None:
    assert meter(0.2, 0.2, max_pace_s=4.0).load([]).capacity == 18


def test_listening_counts_also_in_silence() -> None:
    measured = meter(0.2, 0.0)
    assert measured.load([0.0] * 100).room
    measured.take_listening(0.01, 1.0)
    assert measured.load([0.0] * 79).room
    assert not measured.load([0.0] * 80).room


def test_one_slow_pass_changes_nothing() -> None:
    measured = meter(0.2, 0.1)
    measured.take_encode(60.0)
    assert measured.load([1.0] * 5).ratio == pytest.approx(0.5)


def test_who_is_alone_has_the_machine_however_slow_it_is() -> None:
    slow = meter(10.0, 10.0)
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
            activity.hear(0.032, now_s, speech=speech(i))
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
