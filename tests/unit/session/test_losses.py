"""What a session's client has it do, and what becomes of audio that is lost."""

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.whisper.result import Hypothesis
from tests.unit.session.scene import Scene, play, scenes

SCENES = """
Lost audio leaves a final of what was known, and a gap.
  talk 2 ; read known .5 .8 ; talk 3
  lose 5 overrun -> 0-2.02 known + end 3.01 + gap 2.02-5 overrun
  talk 6 ; ask en 5

A window that fails costs its own speech only, and the gap is published when another succeeds.
  talk 2 ; rest 3 ; talk 4 ; ask en 0 {last=True}
  fail -> ; read so 3 3.3 -> gap 0-2.32 device + |so

What is given up while windows fail belongs to the same gap, also at the end.
  talk 5 ; fail -> end 5.02
  talk 20 ; drop_before 15 overload ->
  rest 22 ; fail -> ; finish 22 -> gap 0-20.3 device
  is finished True

Speech that waits too long is dropped behind what is known, and the rest is due whatever the pace.
  talk 2 ; read so .5 .8 ; talk 12 ; is waiting_from 32256
  drop_before 10 overload -> 0-2.02 so + gap 2.02-10 overload
  is waiting_from 160000 ; is due True ; ask en 10 "" " so"

All speech that ended before that is dropped whole.
  talk 2 ; rest 3 ; talk 4 ; rest 5 ; drop_before 4.9 overload -> gap 0-4.3 overload
  is waiting_from None

The rest of speech that has ended is transcribed before what waits behind it.
  talk 4 ; rest 6 ; talk 7 ; drop_before 2 overload -> gap 0-2 overload
  is due True ; ask en 2 {last=True end=4.3}
  read far 2.1 2.4 -> 2-4.3 far

A flush and the end make all final, and are answered behind that.
  talk 2 ; read so .5 .8 ; flush -> end 2.02 + 0-2.02 so + flushed 2.02
  flush -> flushed 2.02
  talk 3 ; flush -> end 3.01
  read = / away 2.2 2.5 -> 2.02-3.01 away + flushed 3.01
  talk 4 ; finish 5 -> end 4.3
  is ended True ; is finished False ; is received 80000
  read = / we 3 3.5 -> 3.01-4.3 we
  is finished True ; is until_due None

A flush is answered although what comes behind it is lost, and more may be.
  talk 2 ; flush ; miss 5 overrun -> ; read so .5 .8 -> 0-2.02 so + flushed 2.02
  rest 5.1 -> gap 2.02-5 overrun

A pause is a gap, and the end ends it.
  talk 2 ; read so .5 .8 ; pause -> end 2.02 + 0-2.02 so
  is paused True ; skip 7 ; pause -> ; resume -> gap 2.02-7 paused
  is paused False ; resume ->
  pause -> ; finish 9 -> gap 7-9 paused

What is cleared is a gap, and the number of a segment that was shown is not used again.
  clear -> end 0.22 + gap 0-0.22 cleared
  clear -> ; talk 2 ; read so .5 .8 -> |so
  clear -> end 2.02 + gap 0.23-2.02 cleared
  talk 3 ; read far 2.1 2.4 -> |far

Audio that never came is one gap when audio comes again.
  talk 2 ; read so .5 .8 ; miss 4 overrun -> end 2.02 + 0-2.02 so
  miss 5 overrun -> ; rest 5.1 -> gap 2.02-5 overrun

Speech ends where no more audio comes for two seconds.
  tick 2.2 -> ; tick 2.3 -> end 0.22
  tick 3 ->

A session that cannot go on keeps what is known, and is silent on the rest until it has recovered.
  talk 2 ; read so .5 .8 ; talk 3 ; give_up 4 -> 0-2.02 so + end 3.01
  restart 4 -> ; recovered -> gap 2.02-4 device

One that is cut short ends there.
  talk 2 ; read so .5 .8 ; talk 3 ; cut_short 4 device -> 0-2.02 so + end 3.01 + gap 2.02-4 device
  is finished True

A turn model is asked about each pause, once. [gate.turns=True gate.turn_silence_s=2]
  talk 2 ; is judged_until None ; rest 2.3 ; turn_to_judge ; is judged_until 36864
  turn_to_judge ; judge 2.3 .2 -> ; judge 2.304 .2 -> turn 2.3 0.2 False
  is judged_until None ; rest 2.9 -> ; rest 5 -> end 2.32
"""


@pytest.mark.parametrize(("settings", "steps"), scenes(SCENES))
def test_scene(settings: str, steps: list[str]) -> None:
    play(settings, steps)


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
