"""Who speaks, at work: speaker vectors for all sessions in a thread of their own, and for recordings."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.ring import RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.correct.pipeline import ReadAudio
from streamer.events import Event, Final, Speakers, Speech, Word
from streamer.health import Health
from streamer.settings.apply import gate_settings
from streamer.settings.table import Settings
from streamer.speakers.clusters import ClusterSettings
from streamer.speakers.enrolled import enrolled_folder, read_enrolled
from streamer.speakers.hearing import Hearing
from streamer.speakers.models import find_model
from streamer.speakers.vectors import SpeakerVectors
from streamer.stream.eventlog import EventLog
from streamer.stream.gate import SpeechEnd, SpeechGate, SpeechStart
from streamer.whisper.device.devices import the_core
from streamer.whisper.weights import torch
from streamer.worker import Worker

logger = logging.getLogger(__name__)

# How long the end of a session waits for its labels at most.
_END_S = 5.0

# What is learnt of voices changes labels of finals up to so long ago.
RECENT_S = 60.0

# Returns the vector of what is said in samples, shape (n,), of length 1; None where that is nothing.
VectorOf = Callable[[Float32Array], Float32Array | None]


def load_vectors() -> VectorOf:
    """Load the model of speakers. Raises ConfigError where it is missing or damaged."""
    tensors = torch.read(find_model())
    # Integers count batches of the training.
    return SpeakerVectors({name: t.read() for name, t in tensors.items() if t.dtype == "F32"}, the_core()).of


def known_voices(settings: Settings) -> dict[str, Float32Array]:
    """Return the vectors of who is enrolled, by name. Raises ConfigError where a file of theirs is damaged."""
    return read_enrolled(enrolled_folder(settings.speakers.enrolled))


def label_final(final: Final, hearing: Hearing) -> Final:
    """Return a final with who says each word, as far as that is known."""
    return msgspec.structs.replace(final, words=tuple(label_word(word, hearing) for word in final.words))


def label_word(word: Word, hearing: Hearing) -> Word:
    """Return a word with who says it, as far as that is known."""
    speaker = hearing.speaker(word.start, word.end) or word.speaker
    return word if speaker == word.speaker else msgspec.structs.replace(word, speaker=speaker)


class SpeakersOfSessions:
    """What the sessions share: the model, its worker, and the people who are enrolled."""

    def __init__(self, vector_of: VectorOf, known: Mapping[str, Float32Array], health: Health) -> None:
        self._vector_of = vector_of
        self.known = known
        self._health = health
        # Computes a window of each session in turn. A step that waits does what another would: one is enough.
        self.worker = Worker("speakers", limit=1)

    def vector_of(self, samples: Float32Array) -> Float32Array | None:
        """Return the vector of what is said; None if that is nothing, or the model fails."""
        try:
            vector = self._vector_of(samples)
        except Exception as error:  # noqa: BLE001 - reported there
            self._health.failed("speakers", error)
            return None
        self._health.works("speakers")
        return vector


class SpeakersOfSession:
    """Who speaks in one session."""

    def __init__(
        self,
        speakers: SpeakersOfSessions,
        log: EventLog,
        ring: RingBuffer,
        audio: ReadAudio,
        heard: Callable[[], int],
        relabel: Callable[[Iterable[int]], object],
    ) -> None:
        """Recognize who speaks from now on.

        heard : returns up to which sample of the session speech was looked for; asked before its end
        relabel : called with the numbers of finals whose labels may be others than they have
        """
        self.hearing = Hearing(speakers.known)
        self.over = False
        self._speakers = speakers
        self._log = log
        self._ring = ring
        self._audio = audio
        self._heard = heard
        self._relabel = relabel
        # Ends in seconds of the finals whose labels may still change, by their numbers; oldest first.
        self._recent: dict[int, float] = {}
        self._n_settled = 0
        # Called at the end, and the deadline for that; None before the end, and once it was called.
        self._then: Callable[[], object] | None = None
        self._until_s = math.inf
        self._lock = threading.Lock()
        log.subscribe(self._take)

    def label(self, event: Event) -> Event:
        """Return a final with who says each word, from what is known by now. It waits for nothing."""
        if not self.over:
            if isinstance(event, Speech):
                turn = self.hearing.begin if event.state == "start" else self.hearing.end
                turn(round(event.time * SAMPLE_RATE))
            self._go_on()  # events come often while somebody speaks
        return label_final(event, self.hearing) if isinstance(event, Final) else event

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all labels are published, or after a few seconds."""
        self.hearing.end(self._ring.head)
        self._until_s = time.monotonic() + _END_S
        self._then = then
        if self.over:  # it has failed
            self._end()
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._speakers.worker.put(self, self._step)

    def _step(self) -> None:
        """Compute a window, if there is one, and publish what that tells."""
        if self.over:
            return
        try:
            if self._hear_window():
                self._go_on()
        except Exception:
            logger.exception("who speaks in a session cannot be recognized")
            self._end()

    def _hear_window(self) -> bool:
        """Do a little work; return whether there may be more."""
        late, has_ended = time.monotonic() > self._until_s, self._then is not None
        head = self._ring.head if has_ended else min(self._heard(), self._ring.head)
        window = None if late else self.hearing.next_window(head)
        if window is not None:
            samples = self._audio(window[0] / SAMPLE_RATE, window[1] / SAMPLE_RATE)
            self.hearing.take(window, samples, None if samples is None else self._speakers.vector_of(samples))
        for same in self.hearing.take_merged():
            self._log.append(Speakers(same=same))
        over = window is None and has_ended
        if over or self._n_settled != self.hearing.n_settled:
            self._n_settled = self.hearing.n_settled
            self._relabel_recent()
        if over:
            self._end()
        return window is not None

    def _end(self) -> None:
        """Recognize no more; if the session has ended, call what waits for that."""
        self.over = True
        with self._lock:
            then, self._then = self._then, None
        if then is not None:
            then()

    def _relabel_recent(self) -> None:
        recent = dict(self._recent)
        self._relabel(recent)
        for number, end_s in recent.items():
            if end_s < max(recent.values()) - RECENT_S:
                del self._recent[number]

    def _take(self, event: Event) -> None:
        if isinstance(event, Final) and event.words and not self.over:
            self._recent[event.seq] = event.end


class RecordedSpeakers:
    """Who speaks in recordings."""

    def __init__(self, settings: Settings) -> None:
        """Load the model. Raises ConfigError where it, or what is kept of the people who are enrolled, is damaged."""
        self._gate = gate_settings(settings.speech)
        self._known = known_voices(settings)
        self._vector_of = load_vectors()

    def hear(self, blocks: Iterable[Float32Array]) -> Hearing:
        """Hear all of a recording, which comes in blocks of shape (n,), and return who speaks in it."""
        hearing = Hearing(self._known, ClusterSettings(keep_s=math.inf))
        detector, gate = SpeechDetector(), SpeechGate(self._gate)
        ring, position = RingBuffer(60 * SAMPLE_RATE), 0
        for block in blocks:
            for first in range(0, len(block), SAMPLE_RATE):
                piece = block[first : first + SAMPLE_RATE]
                ring.write(piece)
                for probability in detector.process(piece):
                    match gate.feed(position, position + CHUNK_SAMPLES, probability):
                        case SpeechStart(start):
                            hearing.begin(start)
                        case SpeechEnd(end):
                            hearing.end(end)
                    position += CHUNK_SAMPLES
                self._work(hearing, ring, position)
        hearing.end(position)
        self._work(hearing, ring, position)
        return hearing

    def _work(self, hearing: Hearing, ring: RingBuffer, head: int) -> None:
        while (window := hearing.next_window(head)) is not None:
            samples = ring.read(*window)
            hearing.take(window, samples, self._vector_of(samples))
