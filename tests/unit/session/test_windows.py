"""Which window of a session is due, and when."""

import msgspec
import pytest

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.session.gate import PAUSE_SAMPLES
from tests.unit.engine.simulation import GATE, SETTINGS
from tests.unit.session.scene import Scene

PAUSE_S = PAUSE_SAMPLES / SAMPLE_RATE
PATIENT, HASTY = (msgspec.structs.replace(GATE, min_silence_s=silence_s) for silence_s in (5.0, 0.1))


def heard(scene: Scene, end_s: float, probability: float = 0.9) -> bool:
    """Let audio come up to just this time; return whether a window is due."""
    scene.tell(scene.session.hear(round(end_s * SAMPLE_RATE), probability, 0.0))
    return scene.session.due


@pytest.mark.parametrize(
    ("cost_s", "interval_s"), [(0.05, SETTINGS.pace_s), (0.3, 0.75), (0.6, 1.0), (1.5, 1.5), (3.0, 3.0)]
)
def test_the_next_window_is_due_after_the_pace_or_what_the_last_cost(cost_s: float, interval_s: float) -> None:
    scene = Scene()
    scene.read("", 2.0, cost_s=cost_s)
    end_s = scene.session.position / SAMPLE_RATE
    assert not heard(scene, end_s + interval_s - 0.001)
    assert scene.session.next_span(0.0) is None
    assert heard(scene, end_s + interval_s)
    # A pass that was cheap again: the pace is the floor.
    assert scene.ask().start_s == 0
    scene.read("", cost_s=0.1)
    assert not heard(scene, end_s + interval_s + SETTINGS.pace_s - 0.001)
    assert heard(scene, end_s + interval_s + SETTINGS.pace_s)


def test_a_pause_is_due_at_once_and_a_hesitation_never() -> None:
    scene = Scene()
    scene.read("", 2.0, cost_s=5.0)
    end_s = scene.session.position / SAMPLE_RATE
    assert not heard(scene, end_s + PAUSE_S - 0.001, 0.0)
    assert heard(scene, end_s + PAUSE_S, 0.0)
    assert scene.ask().task.span.pause
    assert not scene.session.due
    scene = Scene()
    scene.talk(2.0)
    assert scene.session.due
    assert heard(scene, 2.1, 0.0)
    assert not heard(scene, 2.2, 0.0), "speech goes on in a moment, or this becomes a pause"


def test_before_the_next_is_due_there_is_time_that_is_known() -> None:
    scene = Scene(silent=True)
    assert scene.session.until_due is None
    scene.talk(2.0)
    assert scene.session.until_due == 0
    scene.read("", cost_s=1.0)
    end_s = scene.session.position / SAMPLE_RATE
    # A pause may come before the pace is over, and then a window is due at once.
    assert scene.session.until_due == PAUSE_SAMPLES
    heard(scene, end_s + 0.01, 0.0)
    assert scene.session.until_due == PAUSE_SAMPLES - 160
    heard(scene, end_s + 0.99)
    assert scene.session.until_due == 160
    heard(scene, end_s + 0.99 + PAUSE_S, 0.0)
    assert scene.session.until_due is None, "nobody knows when speech goes on"
    scene.rest(end_s + 2.0)
    assert scene.session.until_due is None


def test_a_full_window_is_asked_for_once_and_does_not_end_in_a_pause_that_came_later() -> None:
    scene = Scene(policy="alignatt")
    scene.talk(40.0)
    asked = scene.ask(rest=40.3)
    assert (asked.task.span.end, asked.task.span.pause) == (N_SAMPLES, False)
    assert not heard(scene, 45.0)
    assert scene.read("hello .5 1 / ther 29.7 30")[-1] == "|ther", "it is cut off"


@pytest.mark.parametrize(
    ("first_s", "lost", "next_s", "end_s"),
    [
        pytest.param(2.0, False, 4.0, 5.3, id="they share a window"),
        pytest.param(2.0, False, 8.0, 2.3, id="too much silence lies between"),
        pytest.param(2.0, True, 4.0, 2.3, id="audio between was lost"),
        pytest.param(25.0, False, 29.0, 25.3, id="both do not fit"),
    ],
)
def test_utterances_that_wait_share_a_window(first_s: float, lost: bool, next_s: float, end_s: float) -> None:
    scene = Scene()
    scene.talk(first_s)
    scene.rest(first_s + 1.0)
    if lost:
        scene.tell(scene.session.miss(scene.session.position + 512, "overrun"))
    scene.rest(next_s)
    scene.talk(next_s + 1.0)
    scene.rest(next_s + 2.0)
    assert scene.ask().end_s == pytest.approx(end_s, abs=0.05)


@pytest.mark.parametrize(("cost_s", "end_s"), [(7.9, 3.3), (8.0, 5.0)])
def test_speech_that_goes_on_shares_a_window_where_passes_are_costly(cost_s: float, end_s: float) -> None:
    scene = Scene()
    scene.read("", 1.5, cost_s=cost_s)
    scene.talk(3.0)
    scene.rest(4.0)
    assert scene.ask(5.0).end_s == pytest.approx(end_s, abs=0.05)


def test_a_pause_is_transcribed_at_once_and_its_window_serves_as_the_last() -> None:
    scene = Scene(policy="alignatt")
    scene.read("hello .5 1", 2.0)
    scene.rest(2.2)
    assert not scene.session.due, "it may be a stop within a word"
    span = scene.ask(rest=2.3).task.span
    assert (span.pause, span.last) == (True, False)
    assert scene.read("hello .5 1 / there. 1.2 2.3") == ["hello there.|"], "no word is cut off by a pause"
    assert scene.rest(4.0) == ["end 2.32", "0-2.32: hello there."]
    assert not scene.session.due, "all that was said had been encoded"


def test_where_speech_ends_while_the_pause_is_transcribed_that_is_the_last_pass() -> None:
    scene = Scene()
    scene.talk(2.0)
    scene.ask(rest=2.3)
    scene.rest(4.0)
    assert not scene.session.due
    assert scene.session.final_awaited
    assert scene.read("hello .5 1") == ["0-2.32: hello"]
    assert not scene.session.due
    assert not scene.session.final_awaited


def test_the_end_of_speech_makes_everything_final() -> None:
    scene = Scene()
    scene.read("hello .5 1", 2.0)
    assert scene.rest(4.0) == ["end 2.32"]
    assert (scene.ask().end_s, scene.asked and scene.asked.task.span.last) == (2.32, True)
    assert scene.read("hello .5 1 / there. 1.2 1.6") == ["0-2.32: hello there."]
    assert not scene.session.due


def test_silence_after_a_pause_is_not_encoded_and_speech_goes_on_behind_it() -> None:
    scene = Scene(gate=PATIENT)
    scene.talk(2.0)
    scene.read("hello .5 1", rest=2.3)
    scene.rest(5.0)
    assert not scene.session.due
    asked = scene.ask(5.6)
    assert (asked.start_s, asked.task.span.pause) == (0, False)


def test_an_older_window_has_nothing_to_say_once_a_newer_was_taken() -> None:
    scene = Scene()
    older = scene.ask(2.0).task.span
    scene.ask(3.0)
    scene.read("word .5 .8")
    assert scene.session.task(older) is None
    assert scene.session.fail(older) == []


def test_speech_that_begins_with_the_audio_lacks_nothing() -> None:
    scene = Scene(silent=True)
    assert scene.hear(0.7, 0.1) == []
    assert scene.talk(1.0) == ["start 0"]
    scene = Scene(silent=True)
    scene.hear(2.0, 0.1)
    assert scene.talk(2.4) == ["start 1.72"]
    # It does not begin once more where it ended before.
    scene = Scene(gate=HASTY)
    scene.talk(0.3)
    assert scene.rest(0.45) == ["end 0.45"]
    assert scene.talk(0.8) == ["start 0.45"]


def test_a_window_reaches_back_over_a_pause() -> None:
    scene = Scene()
    said = "one .5 1 / two. 1 2 / three 2.5 2.8"
    scene.read(said, 3.0)
    scene.read(said, rest=3.3)
    scene.rest(6.0)
    asked = scene.ask(7.0)
    assert (asked.start_s, asked.prefix) == (0, " one two. three")
    # What is published of it is new.
    assert scene.read(f"{said} / four 6.2 6.6") == ["|four"]
    # A long pause leaves the words to the prompt.
    scene.read(f"{said} / four 6.2 6.6", rest=7.3)
    scene.rest(20.0)
    assert scene.ask(21.0).context == ("en", 19.7, "", " one two. three four")


def test_no_window_reaches_back_over_speech_that_was_given_up() -> None:
    scene = Scene()
    scene.read("one .5 1", 2.0)
    scene.read("one .5 1", 2.7)
    scene.talk(4.0)
    scene.rest(5.0)
    scene.talk(7.0)
    span = scene.ask().task.span
    assert span.last
    assert scene.tell(scene.session.fail(span)) == ["0-2.72: one"]
    assert scene.tell(scene.session.recovered()) == ["gap 2.72-4.3 device"]
    scene.asked = None
    assert scene.ask(8.0).context == ("en", 4.72, "", " one")
