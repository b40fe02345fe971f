"""Where somebody speaks in a recording: what is left of it where only speech is heard, and how that falls into windows.

Source: speech is found before it is transcribed, and cut at silences into windows that are heard each for itself, as in
WhisperX (Bain et al. 2023, arXiv:2303.00747) and faster-whisper.
"""

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.constants import HOP_LENGTH, N_FRAMES
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.stream.gate import GateSettings, SpeechEnd, SpeechGate, SpeechStart
from streamer.transcribe.segments import Segment

# First frame, and the one behind the last.
Span = tuple[int, int]

# Where nobody pauses, a window is cut at the end of these frames, in which speech is least likely.
QUIET_FRAMES = 16


class SpeechFinder:
    """Finds speech in a recording that goes by."""

    def __init__(self, settings: GateSettings) -> None:
        self._detector = SpeechDetector()
        self._gate = SpeechGate(settings)
        # Probability of speech in each 512 samples, and first sample and end of what was said.
        self._probabilities: list[float] = []
        self._spans: list[Span] = []
        self._begin = 0

    def hear(self, samples: Float32Array) -> None:
        """Hear further audio, 16 kHz mono, shape (n,)."""
        for probability in self._detector.process(samples):
            begin = len(self._probabilities) * CHUNK_SAMPLES
            self._probabilities.append(probability)
            self._take(self._gate.feed(begin, begin + CHUNK_SAMPLES, probability))

    def finish(self, n_frames: int, clips: Sequence[Span]) -> "Speech":
        """Return the speech in some clips of a recording of so many frames, when all of it was heard."""
        self._take(self._gate.close(n_frames * HOP_LENGTH))
        spoken = [(begin // HOP_LENGTH, -(-end // HOP_LENGTH)) for begin, end in self._spans]
        both = [(max(a, c), min(b, d)) for a, b in clips for c, d in spoken]
        return Speech([(begin, end) for begin, end in both if begin < end], self._probabilities)

    def _take(self, change: SpeechStart | SpeechEnd | None) -> None:
        if isinstance(change, SpeechStart):
            self._begin = change.position
        elif isinstance(change, SpeechEnd):
            self._spans.append((self._begin, change.position))


class Speech:
    """The spans of a recording in which somebody speaks, put together."""

    def __init__(self, spans: Sequence[Span], probabilities: Sequence[float]) -> None:
        """Take frames of the recording, in order, and the probability of speech in each 512 samples of it."""
        self.spans = spans
        # Frame of what is put together at which each span begins, and behind the last.
        self._starts = [0, *itertools.accumulate(end - begin for begin, end in spans)]
        self._probabilities = np.array(probabilities, dtype=np.float32)

    @property
    def n_frames(self) -> int:
        """Frames of all spans."""
        return self._starts[-1]

    def pieces(self, begin: int, end: int) -> Iterator[Span]:
        """Yield the frames of the recording that some frames of what is put together are."""
        for (first, behind), start in zip(self.spans, self._starts, strict=False):
            piece = (max(first, first + begin - start), min(behind, first + end - start))
            if piece[0] < piece[1]:
                yield piece

    def windows(self) -> list[Span]:
        """Cut all of it into windows of 15 to 30 s, but the last: at a silence, else where speech is least likely."""
        cuts = [0]
        while self.n_frames - cuts[-1] > N_FRAMES:
            earliest, latest = cuts[-1] + N_FRAMES // 2, cuts[-1] + N_FRAMES
            silence = self._starts[bisect_right(self._starts, latest) - 1]
            cuts.append(silence if silence >= earliest else self._quietest(earliest, latest))
        return list(itertools.pairwise([*cuts, self.n_frames])) if self.n_frames else []

    def position(self, frame: int) -> int:
        """Return the sample of the recording at which a frame of what is put together begins."""
        return self._moved(frame * HOP_LENGTH, self._span(frame * HOP_LENGTH))

    def place(self, segment: Segment) -> None:
        """Move a segment to the recording's clock: each word to the span of its middle, its ends to its words'."""
        spans = [self._span((word.start_samples + word.end_samples) // 2) for word in segment.words]
        first = max(self._span(segment.start_samples), spans[0] if spans else 0)
        last = max(first, bisect_left(self._starts, -(-segment.end_samples // HOP_LENGTH)) - 1)
        last = min(last, spans[-1] if spans else last, len(self.spans) - 1)
        segment.seek = self.position(segment.seek) // HOP_LENGTH
        segment.start_samples = self._moved(segment.start_samples, first)
        segment.end_samples = self._moved(segment.end_samples, max(first, last))
        segment.words = tuple(
            dataclasses.replace(
                word,
                start_samples=self._moved(word.start_samples, span),
                end_samples=self._moved(word.end_samples, span),
            )
            for word, span in zip(segment.words, spans, strict=True)
        )

    def _span(self, position: int) -> int:
        """Return the number of the span that a sample of what is put together is in; the last behind its end."""
        return max(0, min(bisect_right(self._starts, position // HOP_LENGTH), len(self.spans)) - 1)

    def _moved(self, position: int, span: int) -> int:
        """Return where a sample lies in the recording, and in a span."""
        begin, end = self.spans[span]
        moved = position + (begin - self._starts[span]) * HOP_LENGTH
        return min(max(moved, begin * HOP_LENGTH), end * HOP_LENGTH)

    def _quietest(self, earliest: int, latest: int) -> int:
        frames = np.concatenate([np.arange(*piece) for piece in self.pieces(earliest, latest)])
        chunks = np.minimum(frames * HOP_LENGTH // CHUNK_SAMPLES, len(self._probabilities) - 1)
        mean = np.convolve(self._probabilities[chunks], np.ones(QUIET_FRAMES), "valid")
        return earliest + int(mean.argmin()) + QUIET_FRAMES // 2
