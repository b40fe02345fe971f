"""Post-processing of a session: terms of the glossary, labels of speakers, later corrections and translations.

All of it is off unless the settings ask for it, and no caption waits for it.
"""

import logging
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from streamer import entry_points
from streamer.after.correct.corrector import Corrector
from streamer.after.correct.pipeline import Corrections, FinalsOfSession
from streamer.after.correct.spelling import Glossary, Spelling
from streamer.after.correct.terms import usual_words
from streamer.after.second_pass import SecondPass, has_second_pass
from streamer.after.speakers.live import SpeakersOfSession, SpeakersOfSessions, known_voices, label_word, load_vectors
from streamer.after.translation import TranslationFollower, Translations
from streamer.after.turns import TurnFollower, Turns
from streamer.arrays import Float32Array
from streamer.audio.ring import Overrun
from streamer.constants import SAMPLE_RATE
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.runner import SessionRunner
from streamer.events import End, Event
from streamer.health import Health
from streamer.session.settings import SessionSettings
from streamer.settings.table import Settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)


class PostProcessing:
    """The post-processing that the settings ask for, shared by all sessions."""

    def __init__(self, settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow]) -> None:
        """Load models and files. Raises StreamerError if that fails."""
        # Current failures: `enrichment` in /healthz.
        self.health = Health()
        correctors = _correctors(settings, model)
        self.second_pass: SecondPass | None = None
        if has_second_pass(settings, model):
            self.second_pass = SecondPass(settings, model, engine.wait_idle, self.health)
        self.speakers: SpeakersOfSessions | None = None
        if settings.speakers.enabled:
            self.speakers = SpeakersOfSessions(load_vectors(), known_voices(settings), self.health)
        self.corrections: Corrections | None = None
        if correctors or self.speakers is not None or self.second_pass is not None:
            self.corrections = Corrections(
                correctors,
                deadline_s=settings.correction.deadline_s,
                health=self.health,
                read_again=self.second_pass.read if self.second_pass is not None else None,
            )
        self.glossary = next((each for each in correctors if isinstance(each, Glossary)), None)
        # Any client may ask for turns and translations.
        self.turns = Turns(self.health)
        self.translations = Translations(settings, model, engine.wait_idle, self.health)

    def unload(self) -> None:
        """Free the second pass's model until it is needed again."""
        if self.second_pass is not None:
            self.second_pass.unload()

    def reread(self) -> Callable[[], None]:
        """Read the glossary again, and return a function that puts it to use. Raises ConfigError."""
        return self.glossary.reread() if self.glossary is not None else lambda: None

    def followers(self, live: SessionRunner, log: EventLog) -> list[Follower]:
        """Return what follows a session, in the order in which events pass through them and in which they finish."""
        return [TranslationFollower(self.translations, live, log), TurnFollower(self.turns, live, log)]

    def open(self, log: EventLog, runner: SessionRunner) -> "PostProcessor":
        """Return the post-processing of a session, which begins with its first event."""
        return PostProcessor(self, log, runner)


class PostProcessor:
    """The post-processing of one session."""

    def __init__(self, shared: PostProcessing, log: EventLog, runner: SessionRunner) -> None:
        session = _Session(runner)
        glossary, corrections = shared.glossary, shared.corrections
        self._spelling = Spelling(glossary, runner.settings.language) if glossary is not None else None
        self._finals = corrections.follow(log, session.read, session.settings) if corrections is not None else None
        self._speakers: SpeakersOfSession | None = None
        if shared.speakers is not None and self._finals is not None:
            self._speakers = SpeakersOfSession(
                shared.speakers, log, runner.ring, session.read, session.detected, self._finals.relabel
            )
            diarization = self._speakers.diarization
            self._finals.label = lambda word: label_word(word, diarization)
        self._followers = shared.followers(runner, log)
        log.subscribe(self._see)

    def on_turn(self, start: int, end: int) -> bool:
        """Have a turn judged; see `SessionOutput`. It waits for nothing."""
        return any(follower.judge(start, end) for follower in self._followers)

    @property
    def labels(self) -> list[Callable[[Event], Event]]:
        """What the events of the session are labelled with; see `SessionOutput`."""
        return [part.label for part in (self._spelling, self._speakers) if part is not None]

    def _see(self, event: Event) -> None:
        for follower in self._followers:
            follower.see(event)
        if isinstance(event, End):
            self._followers = []  # they refer to the session

    def finish(self, then: Callable[[], object]) -> None:
        """Note that everything is final: call `then`, once, when post-processing is done."""
        for part in (*reversed(self._followers), self._finals, self._speakers):
            if part is not None:
                then = partial(_finish, part, then)
        then()


def _finish(part: Follower | FinalsOfSession | SpeakersOfSession, then: Callable[[], object]) -> None:
    """Have a part finish, then go on; go on if it fails at that, too: the session's `end` waits for it."""
    try:
        part.finish(then)
    except Exception:
        logger.exception("post-processing of a session could not be finished")
        then()


class _Session:
    """What post-processing needs to know of a session. It refers to no part of it: a session that is over is freed."""

    def __init__(self, runner: SessionRunner) -> None:
        # Weak, as the runner refers to its post-processing.
        self._runner = weakref.ref(runner)
        self._ring = runner.ring

    def settings(self) -> SessionSettings | None:
        return runner.settings if (runner := self._runner()) is not None else None

    def detected(self) -> int:
        """Return up to which sample speech was detected."""
        return runner.position if (runner := self._runner()) is not None else 0

    def read(self, start_s: float, end_s: float) -> Float32Array | None:
        try:
            return self._ring.read(round(start_s * SAMPLE_RATE), min(round(end_s * SAMPLE_RATE), self._ring.head))
        except Overrun:
            return None


def open_glossary(settings: Settings, model: WhisperModel) -> Glossary | None:
    """Return the glossary that the settings name; None if they name none. Raises ConfigError."""
    path = settings.correction.glossary
    return Glossary(Path(path), usual_words(model.tokenizer.encode)) if path else None


def _correctors(settings: Settings, model: WhisperModel) -> list[Corrector]:
    """Return what corrects finals: plug-ins (functions that make a `Corrector` or None), then the glossary."""
    glossary = open_glossary(settings, model)

    def terms() -> Sequence[str]:
        return glossary.texts if glossary is not None else ()  # those of now: it may be read again

    made = [make(settings, terms) for make in entry_points.load_all("streamer.correctors", callable).values()]
    return [corrector for corrector in (*made, glossary) if corrector is not None]
