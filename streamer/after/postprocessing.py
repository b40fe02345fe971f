"""Post-processing of sessions: terms of the glossary, labels of speakers, later corrections, translations, turns.

All of it but turns and translations is off unless the settings ask for it, and no caption waits for it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from streamer import entry_points
from streamer.after.correct.corrector import Corrector
from streamer.after.correct.pipeline import CorrectionFollower, Corrections
from streamer.after.correct.spelling import Glossary, Spelling
from streamer.after.correct.terms import usual_words
from streamer.after.second_pass import SecondPass, has_second_pass
from streamer.after.speakers.diarization import Diarization
from streamer.after.speakers.live import SpeakerFollower, SpeakerModel, known_voices, load_vectors
from streamer.after.translation import TranslationFollower, Translations
from streamer.after.turns import TurnFollower, Turns
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.live_session import LiveSession
from streamer.health import Health
from streamer.packed_models import TURNS
from streamer.settings.table import Settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel


class PostProcessing:
    """The post-processing that the settings ask for, shared by all sessions."""

    def __init__(self, settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow]) -> None:
        """Load models and files. Raises StreamerError if that fails."""
        # Current failures: `enrichment` in /healthz.
        self.health = Health()
        correctors = _correctors(settings, model)
        self.glossary = next((each for each in correctors if isinstance(each, Glossary)), None)
        self.second_pass: SecondPass | None = None
        if has_second_pass(settings, model):
            self.second_pass = SecondPass(settings, model, engine.wait_idle, self.health)
        self.speakers: SpeakerModel | None = None
        if settings.speakers.enabled:
            self.speakers = SpeakerModel(load_vectors(), known_voices(settings), self.health)
        self.corrections: Corrections | None = None
        if correctors or self.speakers is not None or self.second_pass is not None:
            self.corrections = Corrections(
                correctors,
                deadline_s=settings.correction.deadline_s,
                health=self.health,
                reader=self.second_pass,
            )
        # Any client may ask for turns and translations.
        self.turns = Turns(self.health)
        self.translations = Translations(settings, model, engine.wait_idle, self.health)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What it adds to a session, or would if its client asked: in the words of `ready`."""
        found = {
            "turns": TURNS.path.is_file(),
            "revisions": self.corrections is not None,
            "speakers": self.speakers is not None,
        }
        return tuple(name for name, can in found.items() if can)

    def followers(self, live: LiveSession, log: EventLog) -> list[Follower]:
        """Return what follows a session from its first event on.

        Its events are labelled by each in this order; at the end each finishes when the one before it has.
        """
        found: list[Follower] = []
        if self.glossary is not None:
            found.append(Spelling(self.glossary, live.settings.language))
        if self.corrections is not None:
            diarization = Diarization(self.speakers.known) if self.speakers is not None else None
            corrections = CorrectionFollower(self.corrections, live, log, diarization)
            if self.speakers is not None and diarization is not None:
                found.append(SpeakerFollower(self.speakers, live, log, diarization, corrections))
            found.append(corrections)
        return [*found, TranslationFollower(self.translations, live, log), TurnFollower(self.turns, live, log)]

    def unload(self) -> None:
        """Free the second pass's model until it is needed again."""
        if self.second_pass is not None:
            self.second_pass.unload()

    def reread(self) -> Callable[[], None]:
        """Read the glossary again, and return a function that puts it to use. Raises ConfigError."""
        return self.glossary.reread() if self.glossary is not None else lambda: None


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
