"""What is added to what was heard: words as they are to be spelled, who said them, what becomes of them later.

Everything here is off unless the settings ask for it, and no caption waits for it.
"""

from collections.abc import Callable

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.ring import Overrun, RingBuffer
from streamer.correct.corrector import Corrector
from streamer.correct.pipeline import Corrections
from streamer.events import Event
from streamer.live.speakers import SpeakersOfSession, SpeakersOfSessions, known_voices, label_word, load_vectors
from streamer.settings.table import Settings
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel


class Enrichment:
    """What the settings ask for, ready for any number of sessions."""

    def __init__(self, settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow]) -> None:
        """Read and load what is asked for. Raises StreamerError where that cannot be."""
        correctors = _correctors(settings, model, engine)
        self.speakers: SpeakersOfSessions | None = None
        if settings.speakers.enabled:
            self.speakers = SpeakersOfSessions(load_vectors(), known_voices(settings))
        needed = correctors or self.speakers is not None
        self.corrections = Corrections(correctors, deadline_s=settings.correction.deadline_s) if needed else None

    @property
    def failing(self) -> str:
        """Why something of it does not work, in a line; empty where all does."""
        failing = dict(self.corrections.failing) if self.corrections is not None else {}
        if self.speakers is not None and self.speakers.failing:
            failing["speakers"] = self.speakers.failing
        return "; ".join(f"{name}: {why}" for name, why in failing.items())

    def open(self, log: EventLog, ring: RingBuffer, heard: Callable[[], int]) -> "EnrichedSession":
        """Add to the events of a session, from the first on. `heard` returns how far speech was looked for in it."""
        return EnrichedSession(self, log, ring, heard)


class EnrichedSession:
    """What is added to one session."""

    def __init__(self, enrichment: Enrichment, log: EventLog, ring: RingBuffer, heard: Callable[[], int]) -> None:
        self._ring = ring
        corrections = enrichment.corrections
        self._finals = corrections.follow(log, self._read) if corrections is not None else None
        self._speakers: SpeakersOfSession | None = None
        if enrichment.speakers is not None and self._finals is not None:
            own = SpeakersOfSession(enrichment.speakers, log, ring, heard, self._finals.relabel)
            self._finals.label = lambda word: label_word(word, own.hearing)
            self._speakers = own

    def label(self, event: Event) -> Event:
        """Return an event as it is to be published. Called under the session's lock: it waits for nothing."""
        return event if self._speakers is None else self._speakers.label(event)

    def finish(self, then: Callable[[], object]) -> None:
        """Everything is final: call `then`, once, when there is nothing left to add."""
        finals = self._finals
        if finals is None:
            then()
        elif self._speakers is None:
            finals.finish(then)
        else:
            self._speakers.finish(lambda: finals.finish(then))

    def _read(self, start_s: float, end_s: float) -> Float32Array | None:
        try:
            return self._ring.read(round(start_s * SAMPLE_RATE), min(round(end_s * SAMPLE_RATE), self._ring.head))
        except Overrun:
            return None


def _correctors(settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow]) -> list[Corrector]:
    return []
