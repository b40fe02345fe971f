"""Who speaks in live sessions, computed in a thread of its own, and in recordings."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import msgspec

from streamer.after.correct.pipeline import CorrectionFollower
from streamer.after.queues import ModelQueue, QueuedFollower, attempt
from streamer.after.speakers.clusters import ClusteringSettings
from streamer.after.speakers.diarization import Diarization
from streamer.after.speakers.encoder import SpeakerEncoder
from streamer.after.speakers.enrolled import enrolled_folder, read_enrolled
from streamer.arrays import Float32Array
from streamer.audio.ring import RingBuffer
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.engine.live_session import LiveSession
from streamer.events import Event, Final, Speakers, Speech
from streamer.health import Health
from streamer.offline.speech import SpeechFinder
from streamer.packed_models import SPEAKERS
from streamer.session.gate import SpeechStart
from streamer.settings.table import Settings
from streamer.whisper.device.devices import the_core
from streamer.whisper.weights import torch

logger = logging.getLogger(__name__)

NAME = "speakers"

# How long the end of a session waits for its labels at most.
END_S = 5.0

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
    return msgspec.structs.replace(final, words=diarization.label(final.words))


class SpeakerModel:
    """The model of speakers, its queue, and the enrolled people, shared by all sessions."""

    def __init__(self, vector_of: VectorOf, known: Mapping[str, Float32Array], health: Health) -> None:
        self.known = known
        # Computes a window of each session in turn. One waiting step of a session is enough: it does all there is.
        self.queue = ModelQueue(NAME, limit=1)
        self._vector_of, self._health = vector_of, health

    def vector_of(self, samples: Float32Array) -> Float32Array | None:
        """Return the vector of the speaker; None if no one speaks, or the model fails, which is reported."""
        return attempt(self._health, NAME, partial(self._vector_of, samples))


class SpeakerFollower(QueuedFollower):
    """Recognizes who speaks in one session, and labels the words of its finals."""

    def __init__(
        self,
        model: SpeakerModel,
        live: LiveSession,
        log: EventLog,
        diarization: Diarization,
        corrections: CorrectionFollower,
    ) -> None:
        """`corrections` publishes finals again whose labels are others than they had."""
        super().__init__(live, log)
        self.failed = False
        self._model, self._diarization, self._corrections = model, diarization, corrections
        # The finals whose labels may still change, by their numbers; oldest first.
        self._recent: dict[int, Final] = {}
        self._n_settled = 0
        # Deadline for the last labels; infinity before the end.
        self._until_s = math.inf

    def label(self, event: Event) -> Event:
        """Return a final with who says each word, from what is known by now. It waits for nothing."""
        if not self.failed:
            if isinstance(event, Speech):
                turn = self._diarization.begin if event.state == "start" else self._diarization.end
                turn(round(event.time * SAMPLE_RATE))
            self._go_on()  # events come often during speech
        return label_final(event, self._diarization) if isinstance(event, Final) else event

    def see(self, event: Event) -> None:
        if isinstance(event, Final) and event.words and not self.failed:
            self._recent[event.seq] = event

    def finish(self, then: Callable[[], object]) -> None:
        self._diarization.end(self.live.ring.head)
        self._until_s = time.monotonic() + END_S
        if not self.failed:
            self._go_on()
        self.finish_within(END_S, then, late=self._relabel_recent)

    def _go_on(self) -> None:
        self._model.queue.put(self, self._step, self._until_s)

    def _step(self) -> None:
        """Compute a window, if there is one, and publish what follows from it."""
        try:
            if self._take_window():
                self._go_on()
        except Exception:
            self.failed = True
            logger.exception("who speaks in a session cannot be recognized")

    def _take_window(self) -> bool:
        """Do a little work; return whether there may be more."""
        diarization, head, has_ended = self._diarization, self.live.ring.head, self._until_s < math.inf
        window = diarization.next_window(head if has_ended else min(self.live.position, head))
        if window is not None:
            samples = self.audio(window[0] / SAMPLE_RATE, window[1] / SAMPLE_RATE)
            diarization.take(window, samples, None if samples is None else self._model.vector_of(samples))
        for same in diarization.take_merged():
            self.log.append(Speakers(same=same))
        if self._n_settled != diarization.n_settled or (window is None and has_ended):
            self._n_settled = diarization.n_settled
            self._relabel_recent()
        return window is not None

    def _relabel_recent(self) -> None:
        recent = tuple(self._recent.values())
        self._corrections.relabel(recent)
        since_s = max((final.end for final in recent), default=0.0) - RECENT_S
        for final in recent:
            if final.end < since_s:
                self._recent.pop(final.seq, None)


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
