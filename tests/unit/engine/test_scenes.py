"""The scenes `tests/golden/scenes/engine.txt`: what a speaker says and commands, a line a step, and what is published.

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
from typing import get_args

import msgspec
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind
from streamer.events import Error, Event, Partial, Speech
from streamer.protocols.native import Command
from streamer.session.session import Session
from tests.fakes import FakeDetector, words_at
from tests.unit.engine.simulation import GATE, Machine, Talker, broken, fails, settings_of
from tests.unit.session.scene import named, scenes, text_of

TURNS = settings_of(gate=msgspec.structs.replace(GATE, turns=True, turn_silence_s=2.0))


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
                    **{command: partial(live.do, command) for command in get_args(Command)},
                    "work": machine.work,
                }
                (steps[verb] if verb in steps else getattr(live, verb))(*(numbers or words))


@pytest.mark.parametrize(("settings", "steps"), scenes("engine"))
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
