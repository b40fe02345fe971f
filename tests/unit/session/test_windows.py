"""Which window of a session is due, when, and where it begins."""

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.session.gate import PAUSE_SAMPLES
from tests.unit.session.scene import Scene, play, scenes

SCENES = """
A hesitation is not due: it becomes a pause, or speech goes on in a moment.
  talk 2 ; is due True
  rest 2.1 ; is due True
  rest 2.2 ; is due False
  rest 2.3 ; ask en 0 {pause=True last=False} ; is due False

A pause is transcribed at once, whatever passes cost, and its window serves as the last. [policy=alignatt]
  talk 2 ; read hello .5 1 {cost_s=9} -> hello|
  rest 2.3 ; read = / there. 1.2 2.3 -> hello there.|
  rest 4 -> end 2.32 + 0-2.32 hello there.
  is due False

Where speech ends while the pause is transcribed, that is the last pass.
  talk 2 ; rest 2.3 ; ask ; rest 4
  is due False ; is final_awaited True
  read hello .5 1 -> 0-2.32 hello
  is due False ; is final_awaited False

The end of speech makes everything final.
  talk 2 ; read hello .5 1 -> |hello
  rest 4 -> end 2.32
  ask en 0 {last=True end=2.32} ; read = / there. 1.2 1.6 -> 0-2.32 hello there.
  is due False

Silence after a pause is not encoded, and speech goes on behind it. [gate.min_silence_s=5]
  talk 2 ; rest 2.3 ; read hello .5 1
  rest 5 ; is due False
  talk 5.6 ; ask en 0 {pause=False}

A full window is asked for once, and does not end in a pause that came later. [policy=alignatt]
  talk 40 ; rest 40.3 ; ask en 0 {end=30 pause=False}
  loud 45 ; is due False
  read hello .5 1 / ther 29.7 30 -> 0-15.35 hello + |ther

Utterances that wait share a window.
  talk 2 ; rest 4 ; talk 5 ; rest 6 ; ask en 0 {end=5.32}

They do not where much silence lies between.
  talk 2 ; rest 8 ; talk 9 ; rest 10 ; ask en 0 {end=2.32}

They do not where audio between was lost.
  talk 2 ; rest 3 ; miss 3.1 overrun ; rest 4 ; talk 5 ; rest 6 ; ask en 0 {end=2.32}

They do not where both do not fit.
  talk 25 ; rest 29 ; talk 30 ; rest 31 ; ask en 0 {end=25.32}

Speech that goes on shares a window where passes are costly.
  talk 1.5 ; read {cost_s=8} ; talk 3 ; rest 4 ; talk 5 ; ask en 0 {end=5.02}

It does not where they are not.
  talk 1.5 ; read {cost_s=7.9} ; talk 3 ; rest 4 ; talk 5 ; ask en 0 {end=3.31}

A window reaches back over a pause, and a long one leaves the words to the prompt.
  talk 3 ; read one .5 1 / two. 1 2 / three 2.5 2.8
  rest 3.3 ; read = ; rest 6
  talk 7 ; ask en 0 " one two. three" ""
  read = / four 6.2 6.6 -> |four
  rest 7.3 ; read = ; rest 20
  talk 21 ; ask en 19.7 "" " one two. three four"

No window reaches back over speech that was given up.
  talk 2 ; read one .5 1 ; talk 2.7 ; read =
  talk 4 ; rest 5 ; talk 7 ; ask en 0 {last=True}
  fail -> 0-2.72 one
  recovered -> gap 2.72-4.3 device
  talk 8 ; ask en 4.72 "" " one"

Speech that begins soon after the audio lacks nothing. [silent=True]
  rest 0.4 ; talk 1 -> start 0

Later, a little is kept before its first sound. [silent=True]
  rest 2 ; talk 2.4 -> start 1.72

It does not begin once more where it ended before. [gate.min_silence_s=.1]
  talk .3 ; rest .45 -> end 0.45
  talk .8 -> start 0.45
"""


@pytest.mark.parametrize(("settings", "steps"), scenes(SCENES))
def test_scene(settings: str, steps: list[str]) -> None:
    play(settings, steps)


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
