"""A session to which a test says what is heard and read; what it publishes comes back as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.events import Event, Final, Flushed, Gap, Partial, Speech, Turn
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.state import NEW, SessionState
from streamer.session.task import Request, Task
from streamer.whisper.result import Hypothesis, TimedWord
from tests.promises import Promises
from tests.unit.engine.simulation import settings_of

CLEAR = 0.9  # probability of speech that counts as skipped if no word covers it


@dataclass(frozen=True)
class Asked:
    """What the decoder is asked for."""

    task: Task
    start_s: float
    end_s: float
    prefix: str
    prompt: str
    language: str
    now_s: float

    @property
    def request(self) -> Request:
        return self.task.request

    @property
    def context(self) -> tuple[str, float, str, str]:
        """Language, begin of the window, prefix and prompt."""
        return self.language, self.start_s, self.prefix, self.prompt


class Scene:
    """A session in which speech has begun at sample 0, unless it is `silent`. Times are seconds of its audio."""

    def __init__(self, state: SessionState = NEW, *, silent: bool = False, **settings: object) -> None:
        self.settings: SessionSettings = settings_of(**settings)
        self.session = Session(self.settings, state)
        self.promises = Promises()
        self.talking = False
        self.asked: Asked | None = None
        if not silent:
            assert self.talk(0.2) == ["start 0"]

    def hear(self, until_s: float, probability: float) -> list[str]:
        """Let audio come, in chunks; return what is published."""
        events: list[str] = []
        while self.session.position < until_s * SAMPLE_RATE:
            position = self.session.position + CHUNK_SAMPLES
            events += self.tell(self.session.hear(position, probability, position / SAMPLE_RATE))
        return events

    def talk(self, until_s: float) -> list[str]:
        """Let speech come that is clear until it has begun, and then too faint to count as skipped."""
        events: list[str] = []
        while self.session.position < until_s * SAMPLE_RATE:
            position = (self.session.position + CHUNK_SAMPLES) / SAMPLE_RATE
            events += self.hear(position, 0.4 if self.talking else CLEAR)
        return events

    def rest(self, until_s: float) -> list[str]:
        """Let silence come."""
        return self.hear(until_s, 0.0)

    def ask(self, talk: float = 0.0, *, rest: float = 0.0, now_s: float = 0.0, retry_s: float = 0.0) -> Asked:
        """Let speech or silence come and take the task that is due then; the next `read` answers it."""
        self.talk(talk)
        self.rest(rest)
        span = self.session.next_span(now_s)
        assert span is not None, "nothing is due"
        task = self.session.task(span, retry_s=retry_s)
        assert task is not None
        prefix = bytes(token for token in task.request.prefix if token < 256).decode()
        start_s, end_s = round(span.start / SAMPLE_RATE, 2), round(span.end / SAMPLE_RATE, 2)
        self.asked = Asked(task, start_s, end_s, prefix, task.request.prompt, task.request.language, now_s)
        return self.asked

    def read(
        self,
        words: str | Sequence[TimedWord],
        talk: float = 0.0,
        *,
        rest: float = 0.0,
        cost_s: float = 0.0,
        language: str = "en",
        sure: bool = True,
        **more: Any,  # noqa: ANN401 - of the hypothesis
    ) -> list[str]:
        """Let the decoder read words (see `words_of`) in what was asked, or is due now; return what is published."""
        asked, self.asked = self.asked or self.ask(talk, rest=rest), None
        found = words_of(words, asked.task.span.start) if isinstance(words, str) else tuple(words)
        hypothesis = Hypothesis(
            found, language, language_sure=sure, **{"no_speech_prob": 0.0, "avg_logprob": -0.1, **more}
        )
        return self.tell(self.session.take(asked.task, hypothesis, asked.now_s + cost_s))

    def move(self) -> None:
        """Go on with another session."""
        self.session = Session(self.settings, self.session.state)

    def tell(self, events: Sequence[Event]) -> list[str]:
        """Hold events against the promises; return them as text."""
        self.promises.take(events)
        for event in events:
            if isinstance(event, Speech):
                self.talking = event.state == "start"
        return [text_of(event) for event in events]


def words_of(text: str, position: int = 0) -> tuple[TimedWord, ...]:
    """Return words as seen from a sample: `so .5 .8 / far@.3 .9 1.2 3.5`.

    Each has its text, probability (.5), start and end in seconds, and how far the decoder attended (its end).
    """
    words = []
    for item in filter(None, text.split(" / ")):
        spelt, *times = item.split()
        spelt, _, probability = spelt.partition("@")
        spelt = spelt if spelt in (".", ",") else " " + spelt.replace("_", " ")
        start, end, attended = (round(float(time) * SAMPLE_RATE) - position for time in (*times, times[-1])[:3])
        words.append(TimedWord(spelt, tokens_of(spelt), start, end, float(probability or 0.5), attended))
    return tuple(words)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def text_of(event: Event) -> str:
    """Return an event as text: `start 0`, `so| far` (`so` is stable), `0-1.6: so far`, `gap 1.6-3 unclear`."""
    match event:
        case Speech(state=state, time=time):
            return f"{state} {brief(time)}"
        case Partial(text=text, stable=stable):
            return f"{text[:stable]}|{text[stable:]}"
        case Final():
            return f"{brief(event.start)}-{brief(event.end)}: {event.text}"
        case Gap():
            return f"gap {brief(event.start)}-{brief(event.end)} {event.reason}"
        case Turn():
            return f"turn {brief(event.time)} {event.probability} {event.finished}"
    assert isinstance(event, Flushed)
    return f"flushed {brief(event.time)}"


def brief(time_s: float) -> str:
    return f"{round(time_s, 2):g}"
