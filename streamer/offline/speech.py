"""The speech in a recording, joined without the long silences in it, and cut into windows.

Source: speech is detected before it is transcribed, and cut at silences into windows that are decoded independently, as
in WhisperX (Bain et al. 2023, arXiv:2303.00747) and faster-whisper.
"""

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from streamer.arrays import BoolArray, Float32Array
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import FRAMES_PER_SECOND, HOP_LENGTH, N_FRAMES
from streamer.offline.segments import Segment
from streamer.session.gate import Gate, SpeechEnd, SpeechStart
from streamer.settings.table import SpeechSettings

# First frame, and the one behind the last.
Span = tuple[int, int]

# Less speech than this at the end of a recording is part of the window before: alone, Whisper makes a sentence of it.
LEAST_REST_FRAMES = FRAMES_PER_SECOND // 2

# Without a silence, a window is cut at the end of the 16 frames in which speech is least likely.
QUIET_FRAMES = 16


class SpeechFinder:
    """Finds the speech in a recording, block by block."""

    def __init__(self, settings: SpeechSettings) -> None:
        self._detector = SpeechDetector()
        self._settings, self._gate = settings, Gate()
        # Probability of speech in each 512 samples; where speech begins, ends, begins, ...
        self._probabilities: list[float] = []
        self._bounds: list[int] = []

    @property
    def position(self) -> int:
        """End of the samples of which it is known whether they are speech."""
        return len(self._probabilities) * CHUNK_SAMPLES

    def process(self, samples: Float32Array) -> list[SpeechStart | SpeechEnd]:
        """Process the next block, 16 kHz mono, shape (n,); return where speech begins and ends in it."""
        changes = []
        for probability in self._detector.process(samples):
            begin, end = self.position, self.position + CHUNK_SAMPLES
            self._gate, change = self._gate.feed(self._settings, begin, end, probability)
            self._probabilities.append(probability)
            if change is not None:
                changes.append(change)
        self._bounds += [change.position for change in changes]
        return changes

    def passing(self, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """Process blocks as they pass by."""
        for block in blocks:
            self.process(block)
            yield block

    def finish(self, n_frames: int, clips: Sequence[Span]) -> "JoinedSpeech":
        """Return the speech in some clips of a recording of `n_frames`, after the last block."""
        self._gate, end = self._gate.close(self._settings, n_frames * HOP_LENGTH)
        if end is not None:
            self._bounds.append(end.position)
        bounds = zip(self._bounds[::2], self._bounds[1::2], strict=True)
        spoken = [(begin // HOP_LENGTH, -(-end // HOP_LENGTH)) for begin, end in bounds]
        both = [[(max(a, c), min(b, d)) for c, d in spoken] for a, b in clips]
        return JoinedSpeech(
            [[span for span in clip if span[0] < span[1]] for clip in both],
            self._probabilities,
            self._settings.threshold,
        )


class JoinedSpeech:
    """The speech of a recording, joined: its frames are counted without the silence between them."""

    def __init__(self, clips: Sequence[Sequence[Span]], probabilities: Sequence[float], threshold: float) -> None:
        """Join the spans of each clip, frames of the recording in order.

        probabilities : of speech, in each 512 samples of the recording
        threshold : least probability of a frame of speech
        """
        self.spans = [span for spans in clips for span in spans]
        # Joined frame at which each span begins, and the end of the last.
        self._starts = [0, *itertools.accumulate(end - begin for begin, end in self.spans)]
        n_spans = [0, *itertools.accumulate(len(spans) for spans in clips)]
        # Joined frames of each clip.
        self.clips = list(itertools.pairwise(self._starts[n] for n in n_spans))
        self._probabilities: Float32Array = np.array(probabilities, dtype=np.float32)
        self._threshold = threshold

    @property
    def n_frames(self) -> int:
        """Number of joined frames."""
        return self._starts[-1]

    def pieces(self, begin: int, end: int) -> Iterator[Span]:
        """Yield the frames of the recording from one joined frame to another."""
        for (first, behind), start in zip(self.spans, self._starts, strict=False):
            piece = (max(first, first + begin - start), min(behind, first + end - start))
            if piece[0] < piece[1]:
                yield piece

    def detected(self, begin: int, end: int) -> BoolArray:
        """Return which joined frames are speech, shape (end - begin,): pauses within a span are not."""
        return self._probability(begin, end) >= self._threshold

    def windows(self) -> Iterator[Span]:
        """Cut each clip into windows of 15 to 30 s."""
        return (window for clip in self.clips for window in self.cut(*clip, N_FRAMES))

    def cut(self, begin: int, end: int, longest: int) -> Iterator[Span]:
        """Cut joined frames into spans of `longest` at most: at a silence, else where speech is least likely."""
        while end - begin > longest:
            earliest, latest = begin + longest // 2, min(begin + longest, end - LEAST_REST_FRAMES)
            silence = self._starts[bisect_right(self._starts, latest) - 1]
            cut = silence if silence >= earliest else self._quietest(earliest, latest)
            yield begin, cut
            begin = cut
        if begin < end:
            yield begin, end

    def position(self, frame: int) -> int:
        """Return the sample of the recording at which a joined frame begins."""
        return self._moved(frame * HOP_LENGTH, self._span(frame * HOP_LENGTH))

    def place(self, segment: Segment) -> None:
        """Move a segment to the recording's clock: each word into the span of its middle, its ends to its words'."""
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
        """Return the number of the span with a sample of the joined speech; the last one for samples behind the end."""
        return max(0, min(bisect_right(self._starts, position // HOP_LENGTH), len(self.spans)) - 1)

    def _moved(self, position: int, span: int) -> int:
        """Return the position in the recording of a sample of the joined speech, clamped to a span."""
        begin, end = self.spans[span]
        moved = position + (begin - self._starts[span]) * HOP_LENGTH
        return min(max(moved, begin * HOP_LENGTH), end * HOP_LENGTH)

    def _quietest(self, earliest: int, latest: int) -> int:
        mean = np.convolve(self._probability(earliest, latest), np.ones(QUIET_FRAMES), "valid")
        return earliest + int(mean.argmin()) + QUIET_FRAMES // 2

    def _probability(self, begin: int, end: int) -> Float32Array:
        """Return the probability of speech of joined frames, shape (end - begin,)."""
        frames = np.concatenate([np.empty(0, int), *(np.arange(*piece) for piece in self.pieces(begin, end))])
        chunks = np.minimum(frames * HOP_LENGTH // CHUNK_SAMPLES, len(self._probabilities) - 1)
        found: Float32Array = self._probabilities[chunks]
        return found
