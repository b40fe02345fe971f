"""How a session listens: speech detection over its audio, and how much of its time somebody speaks."""

from collections.abc import Callable

import numpy as np

from streamer.audio.ring import RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.engine.load import Activity

WARMING_CHUNKS = 32  # a second of audio, which a new detector processes first for a session that was moved here


class Ear:
    """Runs a detector over the audio in a ring, with a new one behind each hole and failure. Not thread-safe."""

    def __init__(self, ring: RingBuffer, new_detector: Callable[[], SpeechDetector], *, start: int | None) -> None:
        """Begin at sample `start`; None: anywhere, and what came before was processed on another machine."""
        self._ring = ring
        self._new_detector = new_detector
        self._detector = new_detector()
        # End of the audio that the detector has processed.
        self._end = start
        # Set anew when an engine begins to serve the session.
        self.activity = Activity(0.0)

    def probability(self, begin: int, end: int) -> float:
        """Return how probably some audio, a chunk at most, is speech. Raises Overrun."""
        samples = self._ring.read(begin, end)
        if begin != self._end:
            self._detector = self._new_detector()
            n_chunks = min(WARMING_CHUNKS, (begin - self._ring.oldest) // CHUNK_SAMPLES) if self._end is None else 0
            for start in range(begin - n_chunks * CHUNK_SAMPLES, begin, CHUNK_SAMPLES):
                self._detector.process(self._ring.read(start, start + CHUNK_SAMPLES))
        if len(samples) < CHUNK_SAMPLES:
            samples = np.pad(samples, (0, CHUNK_SAMPLES - len(samples)))
        (probability,) = self._detector.process(samples)
        self._end = end
        return probability
