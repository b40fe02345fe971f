"""What a session's client has it do, and what becomes of audio that is lost."""

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.whisper.result import Hypothesis
from tests.unit.session.scene import Scene


def test_windows_that_fail_one_after_the_other_are_one_gap_that_is_told_when_one_succeeds() -> None:
    scene = Scene()
    for i in range(100):
        scene.talk(10.0 * i + 5.0)
        scene.act("fail", "")
        scene.hear(10.0 * i + 10.0, 0.0)
    assert scene.promises.gaps == []
    scene.talk(1005.0)
    assert scene.read("so 1000 1000.3") == ["gap 0-995.01 device", "|so"]


def test_a_hypothesis_that_cannot_be_taken_does_not_take_the_gap_before_it_along() -> None:
    scene = Scene()
    scene.talk(5.0)
    scene.act("fail", "")
    scene.talk(9.0)
    with pytest.raises(AttributeError):
        scene.session.take(scene.ask(), Hypothesis((None,), "en", 0.0, -0.1), 9.0)  # type: ignore[arg-type]
    assert scene.read("so 8 8.3") == ["gap 0-5.02 device", "|so"]


def test_a_hundred_flushes_wait_and_those_behind_them_have_one_answer() -> None:
    scene = Scene()
    for _ in range(150):
        scene.tell(scene.session.flush())
    assert len(scene.read("so .1 .2")) == 1 + 101


def test_a_session_that_failed_starts_again_behind_what_it_published() -> None:
    scene = Scene()
    scene.talk(2.0)
    scene.read("so .5 .8")
    assert scene.tell(scene.session.restart(5 * SAMPLE_RATE, scene.session.state)) == ["end 2.02"]
    assert (scene.session.now.received, scene.session.needed_from) == (80_000, 57_600)
    assert scene.tell(scene.session.recovered()) == ["gap 0-5 device"]
    assert scene.talk(6.0) == ["start 5"]
    assert scene.read("far 5.1 5.4") == ["|far"]
    assert scene.promises.segment == 2
