"""Who speaks, at work: speaker vectors for all sessions in a thread of their own, and for recordings."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.ring import Overrun, RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.events import Event, Final, Speakers, Speech, Word
from streamer.settings.apply import gate_settings
from streamer.settings.table import SpeakersSettings, SpeechSettings
from streamer.speakers.clusters import ClusterSettings
from streamer.speakers.enrolled import enrolled_folder, read_enrolled
from streamer.speakers.fbank import WINDOW_SAMPLES
from streamer.speakers.hearing import Hearing
from streamer.speakers.models import DIGEST, find_model
from streamer.speakers.vectors import SpeakerVectors
from streamer.stream.eventlog import EventLog
from streamer.stream.gate import SpeechEnd, SpeechGate, SpeechStart
from streamer.whisper.device.devices import the_core
from streamer.whisper.weights import torch

logger = logging.getLogger(__name__)

# How often sessions are looked at while somebody speaks.
_POLL_S = 0.25

# Longest time that the end of a session waits for its labels.
_END_S = 5.0

# Returns the vector of what is said in samples, shape (n,), of length 1; None where that is nothing.
VectorOf = Callable[[Float32Array], Float32Array | None]


def load_vectors() -> SpeakerVectors:
    """Load the model of speakers. Raises ConfigError where it is missing or damaged."""
    tensors = torch.read(find_model())
    # The rest counts batches that were trained on.
    return SpeakerVectors({name: t.read() for name, t in tensors.items() if t.dtype == "F32"}, the_core())


def known_voices(settings: SpeakersSettings) -> dict[str, Float32Array]:
    """Return the people who are enrolled. Raises ConfigError where a file of theirs is damaged."""
    return read_enrolled(enrolled_folder(settings.enrolled), DIGEST)


def labelled(word: Word, hearing: Hearing) -> Word:
    """Return a word with who says it, as far as that is known."""
    speaker = hearing.speaker(word.start, word.end) or word.speaker
    return word if speaker == word.speaker else msgspec.structs.replace(word, speaker=speaker)


class SpeakersOfSessions:
    """The thread that hears who speaks. Any thread may call any method."""

    def __init__(self, vector_of: VectorOf, known: Mapping[str, Float32Array]) -> None:
        self._vector_of = vector_of
        self._known = known
        # Why nobody can be told, where that is so.
        self.failing = ""
        # Each is removed by the thread alone, once it is over.
        self._sessions: list[SpeakersOfSession] = []
        self._wake = threading.Event()
        threading.Thread(target=self._run, name="speakers", daemon=True).start()

    def follow(
        self, log: EventLog, ring: RingBuffer, heard: Callable[[], int], relabel: Callable[[int], object]
    ) -> "SpeakersOfSession":
        """Hear who speaks in a session from now on.

        heard : samples of it in which speech was looked for
        relabel : is called with the number of a final when its labels may be others than it has
        """
        session = SpeakersOfSession(Hearing(self._known), log, ring, heard, relabel, self._wake.set)
        self._sessions.append(session)
        return session

    def _run(self) -> None:
        while True:
            is_spoken = any(session.hearing.is_open for session in self._sessions)
            self._wake.wait(_POLL_S if is_spoken else None)
            self._wake.clear()
            while any([self._step(session) for session in tuple(self._sessions)]):
                pass

    def _step(self, session: "SpeakersOfSession") -> bool:
        went_on = False
        try:
            went_on = session.step(self._vector)
        except Exception:
            logger.exception("who speaks in a session cannot be told")
            session.end()
        if session.over:
            self._sessions.remove(session)
        return went_on and not session.over

    def _vector(self, samples: Float32Array) -> Float32Array | None:
        try:
            vector = self._vector_of(samples)
        except Exception as error:
            if not self.failing:
                logger.exception("who speaks cannot be told for now")
            self.failing = f"unexpected {type(error).__name__}: {error}"
            return None
        self.failing = ""
        return vector


class SpeakersOfSession:
    """Who speaks in one session."""

    def __init__(
        self,
        hearing: Hearing,
        log: EventLog,
        ring: RingBuffer,
        heard: Callable[[], int],
        relabel: Callable[[int], object],
        wake: Callable[[], object],
    ) -> None:
        self.hearing = hearing
        self._log = log
        self._ring = ring
        self._heard = heard
        self._relabel = relabel
        self._wake = wake
        # Finals whose labels may still change, by their numbers: where each ends, in seconds.
        self._unsettled: dict[int, float] = {}
        # What is called at the end, and until when it is put off; None before the end.
        self._then: Callable[[], object] | None = None
        self._until_s = 0.0
        self.over = False
        log.subscribe(self._take)

    def label(self, event: Event) -> Event:
        """Return a final with a label for each word, from what is known by now. It waits for nothing."""
        if isinstance(event, Speech):
            turn = self.hearing.begin if event.state == "start" else self.hearing.end
            turn(round(event.time * SAMPLE_RATE))
            self._wake()
        elif isinstance(event, Final) and event.words:
            words = tuple(labelled(word, self.hearing) for word in event.words)
            return msgspec.structs.replace(event, words=words)
        return event

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all labels are told, or after a few seconds."""
        self._until_s = time.monotonic() + _END_S
        self.hearing.end(self._ring.head)
        self._then = then
        self._wake()

    def step(self, vector_of: VectorOf) -> bool:
        """Do a little work; return whether there may be more."""
        late = self._then is not None and time.monotonic() > self._until_s
        window = None if late else self.hearing.next_window(min(self._heard(), self._ring.head))
        if window is not None:
            try:
                samples = self._ring.read(*window)
            except Overrun:
                self.hearing.take(window, None, None)
            else:
                self.hearing.take(window, samples, vector_of(samples))
        for gone, kept in self.hearing.take_merged():
            self._log.append(Speakers(same=(gone, kept)))
        for number in [n for n, end_s in tuple(self._unsettled.items()) if late or self.hearing.is_settled(end_s)]:
            del self._unsettled[number]
            self._relabel(number)
        if window is None:
            self.end()
        return window is not None

    def end(self) -> None:
        """Say that nothing more comes, where the session has ended."""
        if self._then is not None:
            self.over = True
            self._then()

    def _take(self, event: Event) -> None:
        if isinstance(event, Final) and event.words:
            self._unsettled[event.seq] = event.end
            self._wake()


def hear_recording(
    blocks: Iterable[Float32Array], vector_of: VectorOf, known: Mapping[str, Float32Array], speech: SpeechSettings
) -> Hearing:
    """Hear all of a recording, shape (n,) a block, and return who speaks in it."""
    hearing, detector, gate = Hearing(known, ClusterSettings(keep_s=math.inf)), SpeechDetector(), SpeechGate(gate_settings(speech))
    ring, position = RingBuffer(120 * SAMPLE_RATE), 0

    def work() -> None:
        while (window := hearing.next_window(position)) is not None:
            samples = ring.read(*window)
            hearing.take(window, samples, vector_of(samples))

    for block in blocks:
        for first in range(0, len(block), WINDOW_SAMPLES):
            piece = block[first : first + WINDOW_SAMPLES]
            ring.write(piece)
            for probability in detector.process(piece):
                match gate.feed(position, position + CHUNK_SAMPLES, probability):
                    case SpeechStart(start):
                        hearing.begin(start)
                    case SpeechEnd(end):
                        hearing.end(end)
                position += CHUNK_SAMPLES
            work()
    hearing.end(position)
    work()
    return hearing
