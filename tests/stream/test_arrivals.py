"""When audio came."""

from streamer.audio.constants import SAMPLE_RATE
from streamer.stream.arrivals import RECORDED_AHEAD_S, STEP_S, Arrivals


def test_audio_is_as_old_as_it_came() -> None:
    arrivals = Arrivals(keep_s=30.0)
    assert arrivals.position_at(5.0) == 0
    for i in range(1, 1001):  # 20 ms at a time
        arrivals.note(320 * i, 100.0 + 0.02 * i)
    for time_s in (100.5, 107.3, 119.9):
        expected = (time_s - 100.0) * SAMPLE_RATE
        assert 0 <= arrivals.position_at(time_s) - expected + 320 <= STEP_S * SAMPLE_RATE + 320
    assert arrivals.position_at(99.0) == 0
    assert arrivals.position_at(1000.0) == 320_000


def test_what_came_at_once_is_of_one_age() -> None:
    arrivals = Arrivals(keep_s=30.0)
    arrivals.note(1600, 10.0)
    arrivals.note(60 * SAMPLE_RATE, 70.0)
    assert arrivals.position_at(69.9) == 1600
    assert arrivals.position_at(70.0) == 60 * SAMPLE_RATE


def test_old_steps_are_forgotten() -> None:
    arrivals = Arrivals(keep_s=30.0)
    for i in range(100_000):
        arrivals.note(1600 * i, 0.1 * i)
    assert len(arrivals._steps) <= 30.0 / STEP_S + 2
    now_s = 0.1 * 99_999
    assert abs(arrivals.position_at(now_s - 30.0) - 1600 * (99_999 - 300)) <= 3200


def test_live_audio_is_no_recording_also_after_an_interruption() -> None:
    arrivals = Arrivals(keep_s=30.0)
    for i in range(1, 11):
        arrivals.note(2 * SAMPLE_RATE * i, 2.0 * i)  # two seconds at a time
    # The network was away for a minute.
    arrivals.note(80 * SAMPLE_RATE, 80.0)
    assert not arrivals.recorded


def test_audio_ahead_of_the_clock_is_a_recording_and_stays_one() -> None:
    arrivals = Arrivals(keep_s=30.0)
    arrivals.note(SAMPLE_RATE, 50.0)
    assert not arrivals.recorded
    arrivals.note(round((RECORDED_AHEAD_S + 1.1) * SAMPLE_RATE), 51.0)
    assert arrivals.recorded
    arrivals.note(10 * SAMPLE_RATE, 500.0)
    assert arrivals.recorded
