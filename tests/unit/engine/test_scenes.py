"""Scenes of a session at work: what somebody says and commands, a line a step, and what is published then.

    What comes in a pause is a gap. [said=(.5,1,2.5)]
      talk 1.6 ; pause ; work -> start 0 + end 1.6 + 0-1.6 w0 w1

Words of half a second begin at the times `said`, or one after the other up to it. `->` is followed by all that was
published since the last one (see `text_of`), but for partials and, if `quiet`, speech. The steps, besides the verbs of
`LiveSession`:

    talk 2              audio up to 2 s comes as it is spoken, and the engine works
    send 2              it comes at once
    wait 2              none comes for 2 s
    finish 2            it comes up to 2 s and ends, and every promise was kept
    lose 1.25 device    that many seconds of it are lost
    excuse 5            its client is waited for so long
    break take          a step of the session, or its detector, fails
    break, repair       the decoder fails from now on, or works again; tried at `retry 9` of the clock
    judge .9            the newest pause is judged; `judge .9 1`: the first
    is paused True      a property of the session, of when it has work, or of what was counted
    report the device   what the engine says that fails
"""

import ast
import shlex
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind
from streamer.events import Error, Event, Partial, Speech
from streamer.session.session import Session
from tests.fakes import FakeDetector, words_at
from tests.unit.engine.simulation import GATE, Machine, Talker, broken, fails, settings_of
from tests.unit.session.scene import named, scenes, text_of

TURNS = settings_of(gate=msgspec.structs.replace(GATE, turns=True, turn_silence_s=2.0))

SCENES = """
A client that stops in mid-speech gets its final after a while. [said=(.5,1,1.5)]
  talk 1.9 ; wait 1.7 -> start 0
  wait .5 -> end 1.89 + 0-1.89 w0 w1 w2~1
  finish 1.9 ->

A client whose audio cannot come is waited for. [said=(.5,1,1.5,2,2.5)]
  talk 1.9 ; excuse 5 ; wait 4.9 -> start 0
  finish 3 -> end 3 + 0-3 w0 w1 w2 w3 w4

Audio that stops for an hour and goes on is two stretches of speech and nothing else. [said=(.5,1,2,2.5)]
  talk 1.6 ; wait 3600 -> start 0 + end 1.6 + 0-1.6 w0 w1
  wait 3600 ->
  finish 4 -> start 1.68 + end 3.31 + 1.68-3.31 w2 w3

Adjoining pieces of a hole are one gap behind the final of what was said. [said=(.5,1,5,5.5)]
  talk 1.6 ; lose 1.25 overrun ; work ; lose .5 overrun ; work -> start 0 + end 1.6 + 0-1.6 w0 w1
  finish 7 -> gap 1.6-3.35 overrun + start 4.68 + end 6.31 + 4.68-6.31 w2 w3

How long no window will be due is known to who waits for that. [said=(.5,1,1.5)]
  is quiet_s inf ; talk .9 ; is quiet_s 0.25 ; talk 1 ; is quiet_s 0.18 ; finish 3

What comes in a pause is a gap between finals. [said=(.5,1,2.5,3,5,5.5)]
  talk 1.6 ; pause ; pause ; work ; is paused True ; talk 4 -> start 0 + end 1.6 + 0-1.6 w0 w1
  resume ; resume ; talk 7 ; is paused False ; finish 7 -> gap 1.6-4 paused + start 4.69 + end 6.32 + 4.69-6.32 w4 w5

A flush is answered when all before it is told. [said=(.5,1,5)]
  flush ; work -> flushed 0
  talk 2 ; flush ; work -> start 0 + end 1.8 + 0-1.8 w0 w1 + flushed 2
  talk 4 ; flush ; finish 6 -> flushed 4 + start 4.69 + end 5.8 + 4.69-5.8 w2

Each of several flushes at once has its answer. [said=(.5,1,5)]
  talk 2 ; flush ; flush ; flush ; work -> start 0 + end 1.8 + 0-1.8 w0 w1 + flushed 2 + flushed 2 + flushed 2
  finish 6 -> start 4.68 + end 5.82 + 4.68-5.82 w2

What is cleared is a gap, and its words are not told. [said=(.5,1,1.5,2,5)]
  talk 2.5 ; clear ; work -> start 0 + end 2.5 + gap 0-2.5 cleared
  finish 7 -> start 4.7 + end 5.81 + 4.7-5.81 w4

What failed is no longer tried where nobody speaks. [said=(.5,1,60)]
  break ; talk 3 -> start 0 + error device + end 0.67 + start 0.68 + end 1.18 + start 1.19 + end 1.8
  is failing "the device is gone" ; report the device is gone ; wait 60 ; is retrying False ; report
  talk 61 ; is retrying True ; repair -> start 59.7 + end 60.29 + start 60.29
  finish 61 -> end 60.81 + gap 0-60.29 device + 60.29-60.81

A device that fails for long is one error and one gap, and tried again ever more rarely. [said=96 quiet=True]
  break ; talk 100 -> error device
  is failing "the device is gone" ; is failures 9 ; repair ; wait 30 -> gap 0-94.48 device + 94.48-96.3 w188 w189 w190
  is failing "" ; finish 110 ->

A hole that a microphone made does not swallow speech that waits for a device. [said=(.5,3,3.5,8) quiet=True]
  break ; talk 2.5 ; retry 9 ; repair ; talk 5 -> error device
  lose 1 device ; pass 1 ; work ; finish 10 -> gap 0-1.28 device + 2.68-4.3 w1 w2 + gap 5-6 device + 7.68-8.83 w3

A hole that an overrun made does not swallow speech that waits for a device. [said=(.5,3,3.5,8) quiet=True]
  break ; talk 2.5 ; retry 9 ; repair ; talk 5 -> error device
  lose 1 overrun ; pass 1 ; work ; finish 10 -> gap 0-1.28 device + 2.68-4.3 w1 w2 + gap 5-6 device + 7.68-8.83 w3

A pause before speech is told before its final though a hole goes on, in a pause. [said=(.5,3,3.5,8) quiet=True]
  break ; talk 1.7 ; retry 6 ; repair ; pause ; talk 2.5 ; resume ; talk 4.5 ; pause ; talk 5 -> error device
  lose 2 overrun ; pass 2 ; work -> gap 0-1.28 device + gap 1.7-2.5 paused + 2.5-4.3 w1 w2
  resume ; finish 10 -> gap 4.5-7 paused + 7.69-8.8 w3

A session that ends while its device fails does not wait for the next attempt. [said=150 kind=EITHER quiet=True]
  break ; talk 100 -> error device
  finish 100 -> gap 0-100 device

A session that ends while its device fails loses what has come ahead of the clock. [said=150 kind=EITHER quiet=True]
  break ; talk 100 -> error device
  send 120 ; finish 120 -> gap 0-120 device

A recording whose device fails again and again ends with a fatal error. [said=10 kind=RECORDED quiet=True]
  break ; send 12 ; end ; wait 10 -> error device + fatal device + gap 0-12 device
  is over True ; is failures 3 ; is n_finished 1

A recording whose speech detection fails again and again ends so. [said=10 kind=RECORDED quiet=True]
  break process ; send 12 ; end ; wait 10 -> error failed + fatal failed + gap 0-12 device
  is over True ; is failures 3 ; is n_finished 1

A recording whose text cannot be taken ends so. [said=10 kind=RECORDED quiet=True]
  break take ; send 12 ; end ; wait 10 -> error failed + fatal failed + gap 0-12 device
  is over True ; is failures 3 ; is n_finished 1

A recording whose audio cannot be taken ends so. [said=10 kind=RECORDED quiet=True]
  break hear ; send 12 ; end ; wait 10 -> error failed + fatal failed + gap 0-12 device
  is over True ; is failures 3 ; is n_finished 1

A live session whose speech detection fails for good ends with its audio. [said=10]
  break process ; talk 60 ; end ; wait 1 -> error failed + gap 0-60 device
  is over True ; is n_finished 1

A session that fails as it is cut short is over all the same. [said=(.5,1,1.5)]
  talk 1.9 ; break lose ; cut_short overload -> start 0 + end 1.89 + gap 0-1.9 device
  is over True ; is n_finished 0

A session that fails at its end is over all the same. [said=(.5,1,1.5)]
  talk 1.9 ; break take ; end ; work -> start 0 + end 1.9 + error failed + 0-1.7 w0 w1 + gap 1.7-1.9 device
  is over True ; is n_finished 1

If the speaker has finished, speech ends as without a model. [said=(1,1.5) turns=True]
  talk 2.3 ; judge .8 -> start 0.69 + turn 2.27 0.8 True
  talk 2.5 ->
  finish 3 -> end 2.32 + 0.69-2.32 w0 w1

Without a model it ends at the same place. [said=(1,1.5)]
  talk 2.5 -> start 0.69
  finish 3 -> end 2.32 + 0.69-2.32 w0 w1

Speech goes on through pauses of an unfinished turn, and all of it is judged. [said=(1,3,4.5) turns=True]
  talk 1.8 ; judge .2 ; talk 3.8 ; judge .49 ; talk 4.4 -> start 0.69 + turn 1.76 0.2 False + turn 3.78 0.49 False
  talk 5.3 ; judge .5 ; talk 5.9 -> turn 5.28 0.5 True + end 5.32 + 0.69-5.32 w0 w1 w2
  asked 3 ; finish 6 ->

A pause that the model cannot judge is as without it. [said=(1,3) turns=True]
  talk 1.8 ; judge None ; talk 2.3 -> start 0.69 + end 1.8 + 0.69-1.8 w0
  finish 2.5 ->

A pause that the model does not take is as without it. [said=(1,3) turns=True answered=False]
  talk 2.3 -> start 0.69 + end 1.8 + 0.69-1.8 w0
  finish 2.5 ->

A verdict that comes late is not published. [said=(1,2) turns=True]
  talk 2.2 ; judge .9 -> start 0.69
  talk 2.9 ; judge .9 1 ->
  judge .9 ; finish 3 -> turn 2.78 0.9 True + end 2.83 + 0.69-2.83 w0 w1

A session that ends waits for no verdict. [said=(1,) turns=True]
  finish 1.9 ; judge .9 -> start 0.69 + end 1.8 + 0.69-1.8 w0

Recorded audio waits for the verdict. [said=(1,1.5,3.5) turns=True kind=RECORDED]
  send 6.5 ; end ; work ; waits 1 -> start 0.69
  judge .9 -> turn 2.27 0.9 True + end 2.32 + 0.69-2.32 w0 w1 + start 3.19
  waits 2 ; judge .1 -> turn 4.26 0.1 False + end 4.3 + 3.19-4.3 w2
"""


class Asked(Follower):
    """Notes the turns that are to be judged."""

    def __init__(self, *, answered: bool) -> None:
        self.turns: list[tuple[int, int]] = []
        self._answered = answered

    def judge(self, start: int, end: int) -> bool:
        """See Follower."""
        self.turns.append((start, end))
        return self._answered


def brief(event: Event) -> str:
    if isinstance(event, Error):
        return f"{'fatal' if event.fatal else 'error'} {event.code}"
    return text_of(event)


class Scene:
    """A session of somebody who says words at known times, on a machine that takes no time."""

    def __init__(
        self,
        patches: pytest.MonkeyPatch,
        *,
        said: tuple[float, ...] | int,
        kind: str = "LIVE",
        turns: bool = False,
        answered: bool = True,
        quiet: bool = False,
    ) -> None:
        self.asked = Asked(answered=answered)
        if isinstance(said, int):
            said = tuple(0.5 + 0.5 * i for i in range(2 * said - 1))
        settings = TURNS if turns else settings_of()
        self._patches = patches
        self.machine = Machine()
        self.talker = self.machine.add(
            Talker(0, words_at(*said), settings=settings, followers=[self.asked], kind=AudioKind[kind])
        )
        self._hidden = (Partial, Speech) if quiet else (Partial,)
        self._n_seen = 0

    def published(self) -> str:
        """Return what was published since the last call, but for what is hidden."""
        events, self._n_seen = self.talker.events[self._n_seen :], len(self.talker.events)
        return " + ".join(brief(event) for event in events if not isinstance(event, self._hidden))

    def act(self, verb: str, words: list[str]) -> None:
        """Take a step."""
        talker, live, machine, decoder = self.talker, self.talker.live, self.machine, self.machine.decoder
        numbers = [ast.literal_eval(word) for word in words if word and word[0] in ".0123456789N"]
        match verb:
            case "lose":
                live.write_gap(round(numbers[0] * SAMPLE_RATE), words[1])  # type: ignore[arg-type]
            case "excuse":
                live.excused_until_s = machine.clock() + numbers[0]
            case "break" if words:
                owner = next(owner for owner in (Session, FakeDetector) if hasattr(owner, words[0]))
                self._patches.setattr(owner, words[0], fails)
            case "break" | "repair":
                decoder.answer = broken if verb == "break" else decoder.hear
            case "retry":
                live._recovery._retry_at_s = numbers[0]
            case "judge":
                live.judge(self.asked.turns[numbers[1] - 1 if numbers[1:] else -1][1], numbers[0])
                machine.work()
            case "asked":
                assert len(self.asked.turns) == numbers[0]
                assert len({start for start, _ in self.asked.turns}) == 1, "the whole turn is judged"
            case "waits":
                assert len(self.asked.turns) == numbers[0]
                assert live.position == self.asked.turns[-1][1]
            case "is":
                known = (live, live.due, talker, machine.engine.stats)
                assert str(next(getattr(each, words[0]) for each in known if hasattr(each, words[0]))) == words[1]
            case "report":
                assert machine.engine.failing == " ".join(words)
            case _:
                steps: dict[str, Callable[..., object]] = {
                    "talk": talker.speak_until,
                    "send": talker.write_until,
                    "wait": partial(machine.wait, step_s=0.1 if numbers and numbers[0] < 10 else 0.5),
                    "finish": talker.finish,
                    "pass": machine.clock.advance,
                    "work": machine.work,
                }
                (steps[verb] if verb in steps else getattr(live, verb))(*(numbers or words))


@pytest.mark.parametrize(("settings", "steps"), scenes(SCENES))
def test_scene(settings: str, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, **named(settings))
    for line in steps:
        for step in line.strip().split(" ; "):
            action, arrow, expected = step.partition(" ->")
            verb, *words = shlex.split(action)
            scene.act(verb, words)
            published = scene.published() if arrow else expected.strip()
            assert published == expected.strip(), step
    scene.talker.check(all_told=scene.talker.live.over)
