"""Which window is due, and when."""

from streamer.session.schedule import HESITATION_SAMPLES, WindowSchedule

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.session.gate import PAUSE_SAMPLES
from streamer.session.task import MAX_SILENCE_SAMPLES, Span
from tests.unit.engine.simulation import SETTINGS

PACE = round(SETTINGS.pace_s * SAMPLE_RATE)


def schedule_of(*utterances_s: tuple[float, float | None]) -> WindowSchedule:
    """Speech of these seconds, the last open where its end is None; it was heard up to there, or for a second."""
    schedule = WindowSchedule(SETTINGS)
    for begin_s, end_s in utterances_s:
        begin = round(begin_s * SAMPLE_RATE)
        if schedule.current is None:
            schedule.move_on(begin)
        schedule.begin(begin, after_gap=False)
        if end_s is None:
            schedule.advance(begin + SAMPLE_RATE, begin + SAMPLE_RATE)
        else:
            end = round(end_s * SAMPLE_RATE)
            schedule.advance(end + PAUSE_SAMPLES, end)
            schedule.end(end + PAUSE_SAMPLES)
    return schedule


def window_of(schedule: WindowSchedule) -> Span:
    window = schedule.next_window(0, 0.0)
    assert window is not None
    return window


def test_the_next_is_due_after_the_pace_or_what_the_last_cost_and_at_once_in_a_pause() -> None:
    schedule = schedule_of((1.0, None))
    begin = window_of(schedule).end
    schedule.advance(begin + PACE - 1, begin + PACE - 1)
    assert not schedule.due()
    schedule.advance(begin + PACE, begin + PACE)
    assert schedule.due()
    schedule.cost = 2 * PACE
    assert not schedule.due()
    # Whoever hesitates may go on in a moment.
    schedule.advance(begin + 3 * PACE, begin + 3 * PACE - HESITATION_SAMPLES - 1)
    assert not schedule.due()
    schedule.advance(begin + 3 * PACE, begin + 3 * PACE - PAUSE_SAMPLES)
    assert window_of(schedule).pause
    assert not schedule.due()


def test_before_the_next_is_due_there_is_time_that_is_known() -> None:
    schedule = schedule_of((1.0, None))
    assert schedule.until_due == 0
    begin = window_of(schedule).end
    # A pause may come before the pace is over, and then a window is due at once.
    assert schedule.until_due == PAUSE_SAMPLES
    schedule.advance(begin + PACE - 200, begin + PACE - 100)
    assert schedule.until_due == 200
    schedule.cost = 4 * PACE
    schedule.advance(begin + 300, begin + 100)
    assert schedule.until_due == PAUSE_SAMPLES - 200
    # Nobody knows when speech goes on.
    schedule.advance(begin + 100 + PAUSE_SAMPLES, begin + 100)
    assert schedule.until_due is None
    schedule.end(schedule.received)
    assert schedule.until_due is None
    assert schedule_of().until_due is None


def test_the_more_a_pass_costs_the_more_is_heard_before_the_next() -> None:
    schedule = schedule_of((1.0, None))
    begin = window_of(schedule).end
    for cost_s, interval_s in ((0.05, SETTINGS.pace_s), (0.3, 0.75), (0.6, 1.0), (1.5, 1.5)):
        schedule.cost, interval = round(cost_s * SAMPLE_RATE), round(max(interval_s, SETTINGS.pace_s) * SAMPLE_RATE)
        schedule.advance(begin + interval - 1, begin + interval - 1)
        assert not schedule.due()
        schedule.advance(begin + interval, begin + interval)
        assert schedule.due()


def test_a_full_window_is_asked_for_once() -> None:
    schedule = schedule_of((0.0, None))
    schedule.advance(2 * N_SAMPLES, 2 * N_SAMPLES)
    assert window_of(schedule).end == N_SAMPLES
    schedule.advance(3 * N_SAMPLES, 3 * N_SAMPLES)
    assert not schedule.due()


def test_utterances_that_wait_share_a_window_unless_too_much_lies_between_or_was_lost() -> None:
    near_s, far_s = 3.0, 2.0 + (MAX_SILENCE_SAMPLES + SAMPLE_RATE) / SAMPLE_RATE
    schedule = schedule_of((1.0, 2.0), (near_s, 4.0))
    assert window_of(schedule).end > near_s * SAMPLE_RATE
    schedule = schedule_of((1.0, 2.0), (far_s, far_s + 1.0))
    assert window_of(schedule).end < far_s * SAMPLE_RATE
    schedule = schedule_of((1.0, 2.0), (near_s, 4.0))
    newest = schedule.newest
    assert newest is not None
    newest.after_gap = True
    assert window_of(schedule).end < near_s * SAMPLE_RATE
