"""Which window is due, and when."""

from streamer.audio.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.engine.passes import HESITATION_SAMPLES, PAUSE_SAMPLES, Passes
from streamer.engine.window import MAX_SILENCE_SAMPLES, Window
from tests.engine.test_session import SETTINGS, settings_of

PACE = round(SETTINGS.pace_s * SAMPLE_RATE)


def passes_of(*utterances_s: tuple[float, float | None]) -> Passes:
    """Speech of these seconds, the last open where its end is None; it was heard up to there, or for a second."""
    passes = Passes(SETTINGS)
    for begin_s, end_s in utterances_s:
        begin = round(begin_s * SAMPLE_RATE)
        if passes.current is None:
            passes.move_on(begin)
        passes.begin(begin, after_gap=False)
        if end_s is None:
            passes.advance(begin + SAMPLE_RATE, begin + SAMPLE_RATE)
        else:
            end = round(end_s * SAMPLE_RATE)
            passes.advance(end + PAUSE_SAMPLES, end)
            passes.end(end + PAUSE_SAMPLES)
    return passes


def window_of(passes: Passes) -> Window:
    window = passes.next_window(0, 0.0)
    assert window is not None
    return window


def test_a_window_begins_on_the_grid_and_ends_where_speech_has_got_to() -> None:
    passes = passes_of((1.0003, None))
    window = window_of(passes)
    assert window.start % HOP_LENGTH == 0
    assert 0 <= round(1.0003 * SAMPLE_RATE) - window.start < HOP_LENGTH
    assert (window.end, window.last, window.pause) == (passes.heard, False, False)
    assert not passes.due()


def test_the_next_is_due_after_the_pace_or_what_the_last_cost_and_at_once_in_a_pause() -> None:
    passes = passes_of((1.0, None))
    begin = window_of(passes).end
    passes.advance(begin + PACE - 1, begin + PACE - 1)
    assert not passes.due()
    passes.advance(begin + PACE, begin + PACE)
    assert passes.due()
    passes.cost = 2 * PACE
    assert not passes.due()
    # Whoever hesitates may go on in a moment.
    passes.advance(begin + 3 * PACE, begin + 3 * PACE - HESITATION_SAMPLES - 1)
    assert not passes.due()
    passes.advance(begin + 3 * PACE, begin + 3 * PACE - PAUSE_SAMPLES)
    assert window_of(passes).pause
    assert not passes.due()


def test_before_the_next_is_due_there_is_time_that_is_known() -> None:
    passes = passes_of((1.0, None))
    assert passes.until_due == 0
    begin = window_of(passes).end
    # A pause may come before the pace is over, and then a window is due at once.
    assert passes.until_due == PAUSE_SAMPLES
    passes.advance(begin + PACE - 200, begin + PACE - 100)
    assert passes.until_due == 200
    passes.cost = 4 * PACE
    passes.advance(begin + 300, begin + 100)
    assert passes.until_due == PAUSE_SAMPLES - 200
    # Nobody knows when speech goes on.
    passes.advance(begin + 100 + PAUSE_SAMPLES, begin + 100)
    assert passes.until_due is None
    passes.end(passes.heard)
    assert passes.until_due is None
    assert passes_of().until_due is None


def test_the_more_a_pass_costs_the_more_is_heard_before_the_next() -> None:
    passes = passes_of((1.0, None))
    begin = window_of(passes).end
    for cost_s, interval_s in ((0.05, SETTINGS.pace_s), (0.3, 0.75), (0.6, 1.0), (1.5, 1.5)):
        passes.cost, interval = round(cost_s * SAMPLE_RATE), round(max(interval_s, SETTINGS.pace_s) * SAMPLE_RATE)
        passes.advance(begin + interval - 1, begin + interval - 1)
        assert not passes.due()
        passes.advance(begin + interval, begin + interval)
        assert passes.due()


def test_a_window_is_too_long_when_the_next_would_be() -> None:
    passes = Passes(settings_of(window_s=10.0))
    assert not passes.too_long(10 * SAMPLE_RATE - PACE)
    assert passes.too_long(10 * SAMPLE_RATE - PACE + 1)
    passes.cost = 2 * SAMPLE_RATE
    assert passes.too_long(8 * SAMPLE_RATE + 1)
    passes.move_on(SAMPLE_RATE)
    assert not passes.too_long(8 * SAMPLE_RATE + 1)
    assert not passes.is_full(N_SAMPLES - SAMPLE_RATE)
    assert passes.is_full(N_SAMPLES)


def test_windows_never_go_back() -> None:
    passes = passes_of((1.0, None))
    passes.move_on(2 * SAMPLE_RATE)
    passes.move_on(0)
    assert window_of(passes).start == 2 * SAMPLE_RATE


def test_the_pace_can_change() -> None:
    passes = passes_of((1.0, None))
    begin = window_of(passes).end
    passes.settings = settings_of(pace_s=2.0)
    passes.advance(begin + PACE, begin + PACE)
    assert not passes.due()
    passes.settings = SETTINGS
    assert passes.due()


def test_a_full_window_is_asked_for_once() -> None:
    passes = passes_of((0.0, None))
    passes.advance(2 * N_SAMPLES, 2 * N_SAMPLES)
    assert window_of(passes).end == N_SAMPLES
    passes.advance(3 * N_SAMPLES, 3 * N_SAMPLES)
    assert not passes.due()


def test_the_last_window_is_asked_for_once_and_again_where_it_has_to_be() -> None:
    passes = passes_of((1.0, 2.0))
    window = window_of(passes)
    assert window.last
    assert not passes.due()
    utterance = passes.current
    assert utterance is not None
    assert utterance.complete_at(window.end)
    utterance.repeat()
    assert window_of(passes) == window


def test_a_window_that_comes_late_finds_nothing() -> None:
    passes = passes_of((1.0, None))
    older = window_of(passes)
    passes.advance(older.end + PACE, older.end + PACE)
    newer = window_of(passes)
    utterance = passes.find(newer)
    assert utterance is not None
    utterance.decoded_end = newer.end
    assert passes.find(older) is None
    assert passes.find(newer) is None
    passes.remove_first()
    assert passes.find(newer) is None


def test_utterances_that_wait_share_a_window_unless_too_much_lies_between_or_was_lost() -> None:
    near_s, far_s = 3.0, 2.0 + (MAX_SILENCE_SAMPLES + SAMPLE_RATE) / SAMPLE_RATE
    passes = passes_of((1.0, 2.0), (near_s, 4.0))
    assert window_of(passes).end > near_s * SAMPLE_RATE
    passes = passes_of((1.0, 2.0), (far_s, far_s + 1.0))
    assert window_of(passes).end < far_s * SAMPLE_RATE
    passes = passes_of((1.0, 2.0), (near_s, 4.0))
    newest = passes.newest
    assert newest is not None
    newest.after_gap = True
    assert window_of(passes).end < near_s * SAMPLE_RATE


def test_what_goes_on_behind_speech_that_was_given_up_is_due_at_once() -> None:
    passes = passes_of((1.0, None))
    position = passes.heard - HOP_LENGTH
    passes.resume_at(position)
    passes.move_on(position)
    assert passes.waiting_from == position
    assert window_of(passes).start == position
    assert not passes.due()
