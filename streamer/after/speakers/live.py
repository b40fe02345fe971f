"""Who speaks in live sessions, computed in a thread of its own, and in recordings."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from streamer.after.correct.pipeline import ReadAudio
from streamer.after.speakers.clusters import ClusteringSettings
from streamer.after.speakers.diarization import Diarization
from streamer.after.speakers.encoder import SpeakerEncoder
from streamer.after.speakers.enrolled import enrolled_folder, read_enrolled
from streamer.arrays import Float32Array
from streamer.audio.ring import RingBuffer
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.events import Event, Final, Speakers, Speech, Word
from streamer.health import Health
from streamer.offline.speech import SpeechFinder
from streamer.packed_models import SPEAKERS
from streamer.session.gate import SpeechStart
from streamer.settings.table import Settings
from streamer.whisper.device.devices import the_core
from streamer.whisper.weights import torch
from streamer.worker import WorkQueue

logger = logging.getLogger(__name__)

# How long the end of a session waits for its labels at most.
_END_S = 5.0

_KEPT_S = 60  # of a recording's audio, more than its windows are late

# Labels of finals may change for this long, as more is known of the voices.
RECENT_S = 60.0

# Returns the vector, of length 1, of the speaker in samples, shape (n,); None if no one speaks.
VectorOf = Callable[[Float32Array], Float32Array | None]


def load_vectors() -> VectorOf:
    """Load the model of speakers. Raises ConfigError if it is missing or damaged."""
    tensors = torch.read(SPEAKERS.find())
    # Integers count batches of the training.
    return SpeakerEncoder({name: t.read() for name, t in tensors.items() if t.dtype == "F32"}, the_core()).encode


def known_voices(settings: Settings) -> dict[str, Float32Array]:
    """Return the vectors of the people who are enrolled, by name. Raises ConfigError if a file is damaged."""
    return read_enrolled(enrolled_folder(settings.speakers.enrolled))


def label_final(final: Final, diarization: Diarization) -> Final:
    """Return a final with the speaker of each word, as far as that is known."""
    return msgspec.structs.replace(final, words=tuple(label_word(word, diarization) for word in final.words))


def label_word(word: Word, diarization: Diarization) -> Word:
    """Return a word with its speaker, as far as that is known."""
    speaker = diarization.speaker(word.start, word.end) or word.speaker
    return word if speaker == word.speaker else msgspec.structs.replace(word, speaker=speaker)


class SpeakersOfSessions:
    """The model of speakers, its worker, and the enrolled people, shared by all sessions."""

    def __init__(self, vector_of: VectorOf, known: Mapping[str, Float32Array], health: Health) -> None:
        self._vector_of = vector_of
        self.known = known
        self._health = health
        # Computes a window of each session in turn. One waiting step of a session is enough: it does all there is.
        self.worker = WorkQueue("speakers", limit=1)

    def vector_of(self, samples: Float32Array) -> Float32Array | None:
        """Return the vector of the speaker; None if no one speaks, or the model fails."""
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
        detected: Callable[[], int],
        relabel: Callable[[Iterable[int]], object],
    ) -> None:
        """Recognize who speaks from now on.

        detected : returns up to which sample of the session speech was detected; called before its end
        relabel : called with the numbers of finals whose labels may be others than they have
        """
        self.diarization = Diarization(speakers.known)
        self.over = False
        self._speakers = speakers
        self._log = log
        self._ring = ring
        self._audio = audio
        self._detected = detected
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
                turn = self.diarization.begin if event.state == "start" else self.diarization.end
                turn(round(event.time * SAMPLE_RATE))
            self._go_on()  # events come often during speech
        return label_final(event, self.diarization) if isinstance(event, Final) else event

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all labels are published, or after a few seconds."""
        self.diarization.end(self._ring.head)
        self._until_s = time.monotonic() + _END_S
        self._then = then
        if self.over:  # it has failed
            self._end()
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._speakers.worker.put(self, self._step)

    def _step(self) -> None:
        """Compute a window, if there is one, and publish what follows from it."""
        if self.over:
            return
        if self._log.closed:  # the client has left
            self._end()
            return
        try:
            if self._take_window():
                self._go_on()
        except Exception:
            logger.exception("who speaks in a session cannot be recognized")
            self._end()

    def _take_window(self) -> bool:
        """Do a little work; return whether there may be more."""
        late, has_ended = time.monotonic() > self._until_s, self._then is not None
        head = self._ring.head if has_ended else min(self._detected(), self._ring.head)
        window = None if late else self.diarization.next_window(head)
        if window is not None:
            samples = self._audio(window[0] / SAMPLE_RATE, window[1] / SAMPLE_RATE)
            self.diarization.take(window, samples, None if samples is None else self._speakers.vector_of(samples))
        for same in self.diarization.take_merged():
            self._log.append(Speakers(same=same))
        over = window is None and has_ended
        if over or self._n_settled != self.diarization.n_settled:
            self._n_settled = self.diarization.n_settled
            self._relabel_recent()
        if over:
            self._end()
        return window is not None

    def _end(self) -> None:
        """Stop recognizing; if the session has ended, call what waits for that."""
        self.over = True
        with self._lock:
            then, self._then = self._then, None
        if then is not None:
            then()

    def _relabel_recent(self) -> None:
        recent = dict(self._recent)
        self._relabel(recent)
        since_s = max(recent.values(), default=0.0) - RECENT_S
        for number, end_s in recent.items():
            if end_s < since_s:
                del self._recent[number]

    def _take(self, event: Event) -> None:
        if isinstance(event, Final) and event.words and not self.over:
            self._recent[event.seq] = event.end


class RecordedSpeakers:
    """Who speaks in recordings."""

    def __init__(self, settings: Settings) -> None:
        """Load the model. Raises ConfigError if it, or a file of the people who are enrolled, is damaged."""
        self._gate = settings.speech
        self._known = known_voices(settings)
        self._vector_of = load_vectors()

    def recognize(self, blocks: Iterable[Float32Array]) -> tuple[Iterator[Float32Array], Diarization]:
        """Return the blocks of a recording, 16 kHz mono, shape (n,), and who speaks in those that were read."""
        diarization = Diarization(self._known, ClusteringSettings(keep_s=math.inf))
        return self._passing(blocks, diarization), diarization

    def _passing(self, blocks: Iterable[Float32Array], diarization: Diarization) -> Iterator[Float32Array]:
        finder, ring = SpeechFinder(self._gate), RingBuffer(_KEPT_S * SAMPLE_RATE)
        for block in blocks:
            ring.write(block)
            for change in finder.process(block):
                (diarization.begin if isinstance(change, SpeechStart) else diarization.end)(change.position)
            self._take_windows(diarization, ring, finder.position)
            yield block
        diarization.end(finder.position)
        self._take_windows(diarization, ring, finder.position)

    def _take_windows(self, diarization: Diarization, ring: RingBuffer, head: int) -> None:
        while (window := diarization.next_window(head)) is not None:
            samples = ring.read(*window)
            diarization.take(window, samples, self._vector_of(samples))
