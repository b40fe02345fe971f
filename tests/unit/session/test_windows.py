"""Which window of a session is due, when, and where it begins."""

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.session.gate import PAUSE_SAMPLES
from tests.unit.session.scene import Scene


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.05, 0.5), (0.3, 0.75), (0.6, 1.0), (1.5, 1.5), (3.0, 3.0)])
def test_the_next_window_is_due_after_the_pace_or_what_the_last_cost(cost_s: float, interval_s: float) -> None:
    scene = Scene()
    scene.talk(2.0)
    for cost, interval in ((cost_s, interval_s), (0.1, 0.5)):  # a pass that is cheap again: the pace is the floor
        assert scene.ask().span.start == 0
        scene.read("", cost_s=cost)
        end = scene.session.now.received + round(interval * SAMPLE_RATE)
        scene.session.hear(end - 1, 0.9, 0.0)
        assert not scene.session.due
        assert scene.session.next_span(0.0) is None
        scene.session.hear(end, 0.9, 0.0)
        assert scene.session.due


def test_before_the_next_is_due_there_is_time_that_is_known() -> None:
    scene = Scene(silent=True)
    assert scene.session.until_due is None
    scene.talk(2.0)
    assert scene.session.until_due == 0
    scene.read("", cost_s=1.0)
    end = scene.session.now.received
    # A pause may come before the pace is over, and then a window is due at once. Nobody knows when speech goes on.
    for position, probability, until_due in (
        (end, 0.9, PAUSE_SAMPLES),
        (end + 160, 0.0, PAUSE_SAMPLES - 160),
        (end + SAMPLE_RATE - 160, 0.9, 160),
        (end + SAMPLE_RATE - 160 + PAUSE_SAMPLES, 0.0, None),
        (end + 2 * SAMPLE_RATE, 0.0, None),
    ):
        scene.session.hear(position, probability, 0.0)
        assert scene.session.until_due == until_due


def test_an_older_window_has_nothing_to_say_once_a_newer_was_taken() -> None:
    scene = Scene()
    scene.talk(2.0)
    older = scene.ask().span
    scene.talk(3.0)
    scene.ask()
    scene.read("word .5 .8")
    assert scene.session.task(older) is None
    assert scene.session.fail(older) == []
