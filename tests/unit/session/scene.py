"""Scenes of `tests/golden/scenes`: what a session detects and reads, a line a step, and what it publishes then.

    Words settle when two hypotheses agree, and not where the audio cuts them off. [agreement=2]
      talk 2 ; read so .5 .8 / far .9 1.5 -> |so far
      talk 3 ; read so .5 .8 / far .9 2.9 -> so| far
      talk 4 ; ask en 0 " so"

Speech has begun at sample 0. Times are seconds of the audio. What stands behind `->` is all that a step publishes (see
`text_of`; ` + ` between events), and nothing if nothing stands there. The steps:

    talk 2          speech up to 2 s: clear until it has begun, then too faint to count as skipped; `loud`: all clear
    rest 2          silence up to 2 s
    read so .5 .8   the decoder reads that in what was asked, or else is due (see `words_of`; `=`: what it read
                    before); options in braces
    ask en 0 " so" " before" {last=True}
                    what it is asked for now: language, start, prefix, prompt; other things in braces
    is due False    a property of the session, or of what it knows
    fail            what was asked, or is due, fails
    move            another session goes on with the state

and the other verbs of `Session`: `flush`, `lose 5 overrun`.
"""

import ast
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.mark import ParameterSet

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.events import Event, Final, Flushed, Gap, Partial, Speech, Turn
from streamer.session.session import Session
from streamer.session.state import NEW, SessionState
from streamer.session.task import Task
from streamer.whisper.result import Hypothesis, TimedWord
from tests.promises import Promises
from tests.unit.engine.simulation import GATE, settings_of

SCENES = Path(__file__).parent.parent.parent / "golden" / "scenes"


def scenes(*names: str) -> list[ParameterSet]:
    """Return the settings and steps of scenes by their titles, from files in which blank lines part them."""
    text = "\n\n".join((SCENES / f"{name}.txt").read_text(encoding="utf-8").strip() for name in names)
    blocks = [block.splitlines() for block in text.split("\n\n")]
    parts = [(*title.removesuffix("]").partition(" ["), steps) for title, *steps in blocks]
    return [pytest.param(settings, steps, id=title) for title, _, settings, steps in parts]


def play(settings: str, steps: Sequence[str]) -> None:
    """Hold a scene; AssertionError with the line that goes otherwise."""
    scene = Scene(**named(settings))
    for line in steps:
        for step in line.strip().split(" ; "):
            action, arrow, expected = step.partition(" ->")
            published = " + ".join(scene.act(*action.partition(" ")[::2]))
            assert not arrow or published == expected.strip(), f"{step}\npublished: {published}"


def named(text: str) -> dict[str, Any]:
    """Return values by their names: `language=de sure=False`; `gate.` is before those of the gate."""
    values: dict[str, Any] = {}
    for name, value in (item.split("=") for item in text.split()):
        try:
            values[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            values[name] = value
    gate = {name: values.pop(name) for name in list(values) if name.startswith("gate.")}
    if gate:
        values["gate"] = msgspec.structs.replace(GATE, **{name.removeprefix("gate."): gate[name] for name in gate})
    return values


class Scene:
    """A session in which speech has begun at sample 0, unless it is `silent`."""

    def __init__(self, state: SessionState = NEW, *, silent: bool = False, **settings: Any) -> None:  # noqa: ANN401
        self.settings = settings_of(**settings)
        self.session = Session(self.settings, state)
        self.promises = Promises()
        self._talking = False
        # What the decoder was asked for and has not answered, and when; what it read last.
        self._asked: tuple[Task, float] | None = None
        self._read = ""
        if not silent:
            assert self.talk(0.2) == ["start 0"]

    def act(self, verb: str, rest: str) -> list[str]:
        """Take a step; return what is published."""
        rest, _, options = rest.partition("{")
        more, words = named(options.removesuffix("}")), shlex.split(rest)
        match verb:
            case "talk":
                return self.talk(float(rest))
            case "loud" | "rest":
                return self.hear(float(rest), 0.9 if verb == "loud" else 0.0)
            case "read":
                self._read = rest.strip().replace("=", self._read)
                return self.read(self._read, **more)
            case "ask":
                self.check(self.ask(more.pop("retry", 0.0)), words, more)
            case "is":
                owner = self.session if hasattr(self.session, words[0]) else self.session.now
                known = str(getattr(owner, words[0]))
                assert known == words[1], f"{words[0]}: {known}"
            case "fail":
                (task, _), self._asked = self._asked or (self.ask(), 0.0), None
                return self.tell(self.session.fail(task.span))
            case "judge":
                return self.tell(self.session.judge(round(float(words[0]) * SAMPLE_RATE), float(words[1])))
            case "tick":
                return self.tell(self.session.tick(float(rest)))
            case "change":
                self.session.change(settings_of(**named(rest)))
            case "move":
                state = msgspec.msgpack.decode(msgspec.msgpack.encode(self.session.state), type=SessionState)
                self.session = Session(self.settings, state)
                assert self.session.state.text == state.text
            case _:
                found = [round(float(word) * SAMPLE_RATE) if word[0].isdigit() else word for word in words]
                events = getattr(self.session, verb)(*found)
                return self.tell(events) if isinstance(events, list) else []
        return []

    def hear(self, until_s: float, probability: float) -> list[str]:
        """Let audio come, in chunks; return what is published."""
        events: list[str] = []
        while self.session.now.received < until_s * SAMPLE_RATE:
            position = self.session.now.received + CHUNK_SAMPLES
            events += self.tell(self.session.hear(position, probability, position / SAMPLE_RATE))
        return events

    def talk(self, until_s: float) -> list[str]:
        events: list[str] = []
        while self.session.now.received < until_s * SAMPLE_RATE:
            events += self.hear(
                (self.session.now.received + CHUNK_SAMPLES) / SAMPLE_RATE, 0.4 if self._talking else 0.9
            )
        return events

    def ask(self, retry_s: float = 0.0, *, now_s: float = 0.0) -> Task:
        """Take the task that is due; the next `read` answers it."""
        span = self.session.next_span(now_s)
        assert span is not None, "nothing is due"
        task = self.session.task(span, retry_s=retry_s)
        assert task is not None, "it is not wanted any more"
        self._asked = task, now_s
        return task

    def check(self, task: Task, expected: Sequence[str], more: dict[str, Any]) -> None:
        """Hold a task against what is expected of it."""
        request, span = task.request, task.span
        prefix = bytes(token for token in request.prefix if token < 256).decode()
        found = [request.language, brief(span.start / SAMPLE_RATE), prefix, request.prompt]
        assert found[: len(expected)] == list(expected), f"asked for {found}"
        for name, value in more.items():
            known = span.end / SAMPLE_RATE if name == "end" else getattr(span if hasattr(span, name) else request, name)
            assert known == pytest.approx(value, abs=0.005), f"{name}: {known}"

    def read(
        self,
        words: str | Sequence[TimedWord],
        *,
        cost_s: float = 0.0,
        language: str = "en",
        sure: bool = True,
        **more: Any,  # noqa: ANN401 - of the hypothesis
    ) -> list[str]:
        """Let the decoder read words in what was asked, or else is due; return what is published."""
        task, now_s = self._asked or (self.ask(), 0.0)
        self._asked = None
        found = words_of(words, task.span.start) if isinstance(words, str) else tuple(words)
        fields = {"no_speech_prob": 0.0, "avg_logprob": -0.1, **more}
        hypothesis = Hypothesis(found, language, language_sure=sure, **fields)
        return self.tell(self.session.take(task, hypothesis, now_s + cost_s))

    def tell(self, events: Sequence[Event]) -> list[str]:
        """Hold events against the promises; return them as text."""
        self.promises.take(events)
        for event in events:
            if isinstance(event, Speech):
                self._talking = event.state == "start"
        return [text_of(event) for event in events]


def words_of(text: str, position: int = 0) -> tuple[TimedWord, ...]:
    """Return words as seen from a sample: `so .5 .8 / far@.3 .9 1.2 3.5`.

    Each has its text, probability (.5), start and end in seconds, and how far the decoder attended (its end).
    """
    words = []
    for item in filter(None, text.strip().split(" / ")):
        spelt, *times = item.split()
        spelt, _, probability = spelt.partition("@")
        spelt = spelt if spelt in (".", ",") else " " + spelt.replace("_", " ")
        start, end, attended = (round(float(time) * SAMPLE_RATE) - position for time in (*times, times[-1])[:3])
        words.append(TimedWord(spelt, tokens_of(spelt), start, end, float(probability or 0.5), attended))
    return tuple(words)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def text_of(event: Event) -> str:
    """Return an event as text: `start 0`, `so| far` (`so` is stable), `0-1.6 so far`, `gap 1.6-3 unclear`."""
    match event:
        case Speech(state=state, time=time):
            return f"{state} {brief(time)}"
        case Partial(text=text, stable=stable):
            return f"{text[:stable]}|{text[stable:]}"
        case Final(text=text):
            language = f" ({event.language})" if text and event.language != "en" else ""
            return f"{brief(event.start)}-{brief(event.end)} {text}{language}".strip()
        case Gap(reason=reason):
            return f"gap {brief(event.start)}-{brief(event.end)} {reason}"
        case Turn(probability=probability):
            return f"turn {brief(event.time)} {probability} {event.finished}"
    assert isinstance(event, Flushed)
    return f"flushed {brief(event.time)}"


def brief(time_s: float) -> str:
    return f"{round(time_s, 2):g}"
