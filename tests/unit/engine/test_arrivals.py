"""When audio came."""

from streamer.constants import SAMPLE_RATE
from streamer.engine.arrivals import STEP_S, Arrivals


def test_when_audio_came_is_known_while_it_is_kept() -> None:
    arrivals = Arrivals(keep_s=30.0)
    assert arrivals.time_at(1) is None
    for i in range(1, 5001):  # 20 ms at a time
        arrivals.note(320 * i, 100.0 + 0.02 * i)
    for time_s in (171.0, 199.9, 200.0):
        came_s = arrivals.time_at(round((time_s - 100.0) * SAMPLE_RATE))
        assert came_s is not None
        assert 0.0 <= time_s - came_s + 0.001 <= STEP_S + 0.021
    assert arrivals.time_at(10 * SAMPLE_RATE) is None
    assert arrivals.time_at(200 * SAMPLE_RATE) is None


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
    # The network was away for half a minute.
    arrivals.note(50 * SAMPLE_RATE, 50.0)
    assert not arrivals.recorded(50 * SAMPLE_RATE)


def test_audio_ahead_of_the_clock_is_a_recording_and_what_comes_later_may_be_live() -> None:
    arrivals = Arrivals(keep_s=30.0)
    arrivals.note(SAMPLE_RATE, 50.0)
    assert not arrivals.recorded(0)
    arrivals.note(6 * SAMPLE_RATE, 51.0)
    assert arrivals.recorded(0)
    assert arrivals.recorded(6 * SAMPLE_RATE), "as long as nothing else has come"
    arrivals.note(7 * SAMPLE_RATE, 60.0)
    assert arrivals.recorded(6 * SAMPLE_RATE)
    assert not arrivals.recorded(6 * SAMPLE_RATE + 1)


def test_a_file_that_is_sent_after_an_hour_of_nothing_is_a_recording() -> None:
    arrivals = Arrivals(keep_s=30.0)
    arrivals.note(SAMPLE_RATE, 0.0)
    arrivals.note(61 * SAMPLE_RATE, 3600.0)
    assert arrivals.recorded(60 * SAMPLE_RATE)


def test_a_clock_that_runs_fast_makes_no_recording_of_a_day_nor_does_a_backlog_at_the_beginning() -> None:
    arrivals = Arrivals(keep_s=30.0)
    begin = 2 * SAMPLE_RATE
    for i in range(24 * 3600):
        arrivals.note(begin + round(i * SAMPLE_RATE * 1.0003), float(i))
    assert not arrivals.recorded(begin)


def test_who_has_to_wait_for_room_stays_a_recording_however_slowly_it_is_taken() -> None:
    arrivals = Arrivals(keep_s=30.0)
    arrivals.note(90 * SAMPLE_RATE, 0.0, held_back=True)
    for i in range(1, 100):
        arrivals.note((90 + i) * SAMPLE_RATE, 10.0 * i, held_back=True)
    assert arrivals.recorded(150 * SAMPLE_RATE)


def test_who_is_live_and_had_to_wait_for_room_is_live_when_it_sends_what_was_said_meanwhile() -> None:
    arrivals = Arrivals(keep_s=30.0)
    for i in range(1, 90):
        arrivals.note(i * SAMPLE_RATE, float(i), held_back=i > 85)
    arrivals.note(180 * SAMPLE_RATE, 180.0)
    assert not arrivals.recorded(0)


def test_audio_that_is_sent_again_says_nothing_of_its_pace() -> None:
    arrivals = Arrivals(60.0)
    arrivals.note(100 * SAMPLE_RATE, 0.0, again=True)
    arrivals.note(130 * SAMPLE_RATE, 0.1, again=True)
    for second in range(1, 10):
        arrivals.note((130 + second) * SAMPLE_RATE, 0.1 + second)
    assert not arrivals.recorded(139 * SAMPLE_RATE)
    assert arrivals.time_at(130 * SAMPLE_RATE) is not None
    arrivals.note(160 * SAMPLE_RATE, 10.0)
    assert arrivals.recorded(160 * SAMPLE_RATE)
