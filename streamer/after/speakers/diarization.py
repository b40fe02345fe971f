"""Who speaks in a session: which window of its speech is due, and the labels that are known by now."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from streamer.after.speakers.clusters import ClusteringSettings, Clusters, VoiceWindow
from streamer.after.speakers.fbank import WINDOW_SAMPLES
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.events import Word

# From one window to the next.
HOP_SAMPLES = SAMPLE_RATE // 2

# What is left of a region behind its last window gets one more if it is longer.
_REST_SAMPLES = SAMPLE_RATE // 10

# Less than this has no vector.
_SHORTEST_SAMPLES = SAMPLE_RATE // 4

# Windows of speech without a silence are assigned again after parts of this length.
_PART_SAMPLES = 30 * SAMPLE_RATE

# What is quieter than the loudest part of a window by more is no speech: 30 dB.
_SPEECH_RANGE = 1e-3


@dataclass(slots=True)
class _Region:
    """Speech between two silences, in samples of the session's audio."""

    # Start of the part whose windows were not assigned again.
    start: int
    # None while it goes on.
    end: int | None
    # Start of its next window, and end of the last one.
    next: int
    done: int


class Diarization:
    """What is known of who speaks in a session.

    Any thread may call `begin`, `end`, `speaker` and `label`, which wait for nothing; one thread at a time the others,
    which may take long.
    """

    def __init__(self, known: Mapping[str, Float32Array], settings: ClusteringSettings | None = None) -> None:
        """Begin with people who are known by name."""
        self._clusters = Clusters(known, settings)
        # What `speaker` reads; replaced when the clusters have changed.
        self._known = self._clusters.known
        # Regions with windows that are due, in order; only the last may be open.
        self._regions: deque[_Region] = deque()
        # Guards which regions there are, and their ends; held for a moment only.
        self._lock = threading.Lock()
        # Labels that turned out to be one person, not taken yet.
        self._merged: list[tuple[str, str]] = []
        # How often windows were assigned again: labels may be others since.
        self.n_settled = 0

    @property
    def is_open(self) -> bool:
        """Whether there is speech whose windows are not all taken."""
        return bool(self._regions)

    def begin(self, position: int) -> None:
        """Begin speech at a sample; what was spoken before has ended."""
        self.end(position)
        with self._lock:
            self._regions.append(_Region(position, None, position, position))

    def end(self, position: int) -> None:
        """End speech at a sample; harmless in silence."""
        with self._lock:
            if self._regions and self._regions[-1].end is None:
                self._regions[-1].end = max(position, self._regions[-1].start)

    def speaker(self, start_s: float, end_s: float) -> str | None:
        """Return who speaks from one second of the session to another; None if that is not sure."""
        return self._known.label(start_s, end_s)

    def label(self, words: Iterable[Word]) -> tuple[Word, ...]:
        """Return words with who says them, as far as that is known."""
        said_by = ((word, self.speaker(word.start, word.end) or word.speaker) for word in words)
        return tuple(
            word if speaker == word.speaker else msgspec.structs.replace(word, speaker=speaker)
            for word, speaker in said_by
        )

    def next_window(self, head: int) -> tuple[int, int] | None:
        """Return the next window of the audio up to `head`, first sample and end; None if it is not complete."""
        while self._regions:
            region = self._regions[0]
            if region.next - region.start >= _PART_SAMPLES:
                self._settle()
                region.start = region.next
            region_end, end = region.end, region.next + WINDOW_SAMPLES
            if end <= (head if region_end is None else min(head, region_end)):
                return region.next, end
            if region_end is None or region_end > head:
                return None
            if region_end - region.done > _REST_SAMPLES:
                start = max(region_end - WINDOW_SAMPLES, region.start)
                if region_end - start >= _SHORTEST_SAMPLES:
                    return start, region_end
            self._settle()
            with self._lock:
                self._regions.popleft()
        return None

    def take(self, window: tuple[int, int], samples: Float32Array | None, vector: Float32Array | None) -> None:
        """Take the audio and the vector of the window that was due; None if it has none."""
        start, end = window
        region = self._regions[0]
        region.next, region.done = start + HOP_SAMPLES, end
        if samples is not None and vector is not None:
            self._clusters.add(VoiceWindow(start / SAMPLE_RATE, end / SAMPLE_RATE, vector), _speech_s(samples))
            self._known = self._clusters.known

    @property
    def vectors(self) -> Float32Array:
        """The vectors of all windows, shape (n_windows, n_values)."""
        return np.array([window.vector for window in self._clusters.windows], dtype=np.float32)

    def take_merged(self) -> list[tuple[str, str]]:
        """Return the labels that turned out to be one person since the last time: (gone, kept)."""
        merged, self._merged = self._merged, []
        return merged

    def _settle(self) -> None:
        self._merged += self._clusters.end_region()
        self._known = self._clusters.known
        self.n_settled += 1


def _speech_s(samples: Float32Array) -> float:
    """Return how many seconds are not silent beside the loudest."""
    frames = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    power = np.mean(np.square(frames), axis=1)
    return float(np.sum(power > _SPEECH_RANGE * power.max(initial=0.0))) * 160 / SAMPLE_RATE
