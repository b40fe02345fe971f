"""What a session's client has it do, and what becomes of audio that is lost."""

import msgspec
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.whisper.result import Hypothesis
from tests.unit.engine.simulation import GATE
from tests.unit.session.scene import Scene


def test_lost_audio_leaves_a_final_of_what_was_known_and_a_gap() -> None:
    scene = Scene()
    scene.read("known .5 .8", 2.0)
    scene.talk(3.0)
    assert scene.tell(scene.session.lose(5 * SAMPLE_RATE, "overrun")) == [
        "0-2.02: known",
        "end 3.01",
        "gap 2.02-5 overrun",
    ]
    scene.talk(5.2)
    assert scene.ask(6.0).start_s == 5


def test_a_window_that_fails_costs_its_own_speech_only() -> None:
    scene = Scene()
    scene.talk(2.0)
    scene.rest(3.0)
    scene.talk(4.0)  # more speech, while nothing of the first is known
    span = scene.ask().task.span
    assert span.last
    assert scene.session.fail(span) == [], "it may go on to fail"
    scene.asked = None
    assert scene.read("so 3 3.3") == ["gap 0-2.32 device", "|so"]


def test_windows_that_fail_one_after_the_other_are_one_gap_that_is_told_when_one_succeeds() -> None:
    scene = Scene()
    for i in range(100):
        scene.talk(10.0 * i + 5.0)
        events = scene.tell(scene.session.fail(scene.ask().task.span)) + scene.rest(10.0 * i + 10.0)
        assert not any(text.startswith("gap") for text in events)
    scene.asked = None
    assert scene.read("so 1000 1000.3", 1005.0) == ["gap 0-995.01 device", "|so"]


def test_a_hypothesis_that_cannot_be_taken_does_not_take_the_gap_before_it_along() -> None:
    scene = Scene()
    scene.tell(scene.session.fail(scene.ask(5.0).task.span))
    scene.talk(7.0)
    asked = scene.ask(9.0)
    with pytest.raises(AttributeError):
        scene.session.take(asked.task, Hypothesis((None,), "en", 0.0, -0.1), 9.0)  # type: ignore[arg-type]
    assert scene.read("so 8 8.3") == ["gap 0-5.02 device", "|so"]


def test_what_is_given_up_while_windows_fail_belongs_to_the_same_gap_also_at_the_end() -> None:
    scene = Scene()
    events = scene.tell(scene.session.fail(scene.ask(5.0).task.span))
    scene.talk(20.0)
    events += scene.tell(scene.session.drop_before(15 * SAMPLE_RATE, "overload"))
    scene.rest(22.0)
    events += scene.tell(scene.session.fail(scene.ask(rest=22.3).task.span))
    events += scene.tell(scene.session.finish(scene.session.position))
    assert [text for text in events if text.startswith("gap")] == ["gap 0-20.3 device"]
    assert scene.session.finished


def test_speech_that_waits_too_long_is_dropped_behind_what_is_known() -> None:
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    scene.talk(12.0)
    assert scene.session.waiting_from == 32256
    events = scene.tell(scene.session.drop_before(10 * SAMPLE_RATE, "overload"))
    assert events == ["0-2.02: so", "gap 2.02-10 overload"]
    assert scene.session.waiting_from == 10 * SAMPLE_RATE
    assert scene.session.due, "whatever the pace"
    assert scene.ask().context == ("en", 10, "", " so")


def test_a_flush_and_the_end_make_all_final_and_are_answered_behind_it() -> None:
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    assert scene.tell(scene.session.flush()) == ["end 2.02", "0-2.02: so", "flushed 2.02"], "it was decoded up to here"
    assert scene.tell(scene.session.flush()) == ["flushed 2.02"], "nothing waits"
    scene.talk(3.0)
    assert scene.tell(scene.session.flush()) == ["end 3.01"]
    assert scene.read("so .5 .8 / away 2.2 2.5") == ["2.02-3.01: away", "flushed 3.01"]
    scene.talk(4.0)
    assert scene.tell(scene.session.finish(5 * SAMPLE_RATE)) == ["end 4.3"]
    assert (scene.session.ended, scene.session.finished, scene.session.position) == (True, False, 5 * SAMPLE_RATE)
    assert scene.read("so .5 .8 / away 2.2 2.5 / we 3 3.5") == ["3.01-4.3: we"]
    assert scene.session.finished
    assert scene.session.until_due is None


def test_a_hundred_flushes_wait_and_those_behind_them_have_one_answer() -> None:
    scene = Scene()
    for _ in range(150):
        scene.session.flush()
    assert len(scene.read("so .1 .2")) == 102


def test_a_pause_is_a_gap() -> None:
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    assert scene.tell(scene.session.pause()) == ["end 2.02", "0-2.02: so"]
    assert scene.session.paused
    scene.session.skip(7 * SAMPLE_RATE)
    assert scene.session.pause() == []
    events = scene.tell(scene.session.resume())
    assert not scene.session.paused
    assert events == ["gap 2.02-7 paused"]
    assert scene.session.resume() == []
    # The end ends it, too.
    scene.session.pause()
    assert scene.tell(scene.session.finish(9 * SAMPLE_RATE)) == ["gap 7-9 paused"]


def test_what_is_cleared_is_a_gap_and_its_segment_is_not_used_again() -> None:
    scene = Scene()
    assert scene.tell(scene.session.clear()) == ["end 0.22", "gap 0-0.22 cleared"]
    assert scene.session.clear() == []
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    assert scene.tell(scene.session.clear()) == ["end 2.02", "gap 0-2.02 cleared"]
    scene.talk(2.4)
    scene.read("far 2.1 2.4", 3.0)
    assert scene.promises.segment == 2


def test_audio_that_never_came_is_one_gap_when_audio_comes_again() -> None:
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    scene.read("so .5 .8", 2.6)
    assert scene.tell(scene.session.miss(4 * SAMPLE_RATE, "overrun")) == ["end 2.62", "0-2.62: so"]
    assert scene.tell(scene.session.miss(5 * SAMPLE_RATE, "overrun")) == []
    assert scene.hear(5.1, 0.0) == ["gap 2.62-5 overrun"]


def test_speech_ends_where_no_more_audio_comes() -> None:
    scene = Scene()
    now_s = scene.session.position / SAMPLE_RATE
    assert scene.session.tick(now_s + 1.99) == []
    assert scene.tell(scene.session.tick(now_s + 2.0)) == ["end 0.22"]
    assert scene.session.tick(now_s + 3.0) == []


def test_a_session_that_cannot_go_on_keeps_what_is_known() -> None:
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    scene.talk(3.0)
    assert scene.tell(scene.session.give_up(4 * SAMPLE_RATE)) == ["0-2.02: so", "end 3.01"]
    assert scene.session.restart(4 * SAMPLE_RATE) == []
    assert scene.tell(scene.session.recovered()) == ["gap 2.02-4 device"]
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    scene.talk(3.0)
    events = scene.tell(scene.session.cut_short(4 * SAMPLE_RATE, "device"))
    assert events == ["0-2.02: so", "end 3.01", "gap 2.02-4 device"]
    assert scene.session.finished


def test_a_session_that_failed_starts_again() -> None:
    scene = Scene()
    scene.read("so .5 .8", 2.0)
    known = scene.session.state
    events = scene.tell(scene.session.restart(5 * SAMPLE_RATE, known))
    assert events == ["end 2.02"]
    assert (scene.session.position, scene.session.needed_from) == (80_000, 57_600)
    assert scene.tell(scene.session.recovered()) == ["gap 0-5 device"]
    assert scene.talk(5.2) == ["start 5"]
    assert scene.read("far 5.1 5.4", 6.0) == ["|far"]
    assert scene.promises.segment == 2


def test_a_turn_model_is_asked_about_each_pause() -> None:
    scene = Scene(gate=msgspec.structs.replace(GATE, turns=True, turn_silence_s=2.0))
    scene.talk(2.0)
    assert scene.session.turn_to_judge() is None
    scene.rest(2.3)
    assert scene.session.turn_to_judge() == (0, scene.session.position)
    assert scene.session.turn_to_judge() is None, "once"
    assert scene.session.judge(1, 0.9) == []
    end = scene.session.position
    assert scene.tell(scene.session.judge(end, 0.2)) == ["turn 2.3 0.2 False"]
    assert scene.rest(2.9) == [], "the speaker thinks"
    assert scene.rest(5.0) == ["end 2.32"]
