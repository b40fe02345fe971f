"""What is added to what was heard: words as they are to be spelled, who said them, what becomes of them later.

Everything here is off unless the settings ask for it, and no caption waits for it.
"""

from collections.abc import Callable

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.ring import Overrun, RingBuffer
from streamer.correct.corrector import Corrector
from streamer.correct.pipeline import Corrections
from streamer.events import Event, Word
from streamer.live.speakers import SpeakersOfSession, SpeakersOfSessions, known_voices, labelled, load_vectors
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
        own = settings.speakers
        self.speakers = SpeakersOfSessions(load_vectors().of, known_voices(own)) if own.enabled else None
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
        self._speakers: SpeakersOfSession | None = None
        corrections, speakers = enrichment.corrections, enrichment.speakers
        self._finals = corrections.follow(log, self._read, self._label_word) if corrections is not None else None
        if speakers is not None and self._finals is not None:
            self._speakers = speakers.follow(log, ring, heard, self._finals.relabel)

    def label(self, event: Event) -> Event:
        """Return an event as it is to be published. Called under the session's lock: it waits for nothing."""
        return event if self._speakers is None else self._speakers.label(event)

    def finish(self, then: Callable[[], object]) -> None:
        """Everything is final: call `then`, once, when there is nothing left to add."""
        finals, speakers = self._finals, self._speakers
        last = then if finals is None else lambda: finals.finish(then)
        if speakers is None:
            last()
        else:
            speakers.finish(last)

    def _label_word(self, word: Word) -> Word:
        return word if self._speakers is None else labelled(word, self._speakers.hearing)

    def _read(self, start_s: float, end_s: float) -> Float32Array | None:
        try:
            return self._ring.read(round(start_s * SAMPLE_RATE), min(round(end_s * SAMPLE_RATE), self._ring.head))
        except Overrun:
            return None


def _correctors(settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow]) -> list[Corrector]:
    return []
