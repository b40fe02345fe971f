"""Speakers from speaker vectors, as they come. Pure: times are arguments, and no audio is seen here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamer.arrays import Float32Array

# A voice that was enrolled counts as so many windows: what is heard moves it, and moves it little.
_ENROLLED_WINDOWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """When two voices are one person's. Similarities are cosines."""

    # A window that is less similar to everybody is of somebody new,
    new_below: float = 0.45
    # where so much of it is speech, and the next such window is as similar to it.
    min_speech_s: float = 0.9
    # Speakers who are more similar than this are one.
    merge_above: float = 0.65
    # A window changes what is known of a speaker only where nobody else is so similar, by this much.
    margin: float = 0.1
    # Windows that are older are forgotten.
    keep_s: float = 300.0


@dataclass(slots=True, eq=False)
class Window:
    """A stretch of audio within speech, and the vector of who speaks in it, of length 1."""

    start_s: float
    end_s: float
    vector: Float32Array
    # Whose voice it is part of; None where that is not sure.
    speaker: "Speaker | None" = None

    @property
    def middle_s(self) -> float:
        return (self.start_s + self.end_s) / 2


@dataclass(slots=True, eq=False)
class Speaker:
    """Somebody who was heard, or who is known."""

    label: str
    # Sum of the vectors of the windows that are surely theirs.
    total: Float32Array
    enrolled: bool = False

    @property
    def voice(self) -> Float32Array:
        """Their vector, of length 1."""
        return self.total / np.float32(max(float(np.linalg.norm(self.total)), 1e-6))


class Clusters:
    """The speakers of one session. Windows come in order, region by region; a region is speech between two silences."""

    def __init__(self, known: Mapping[str, Float32Array], settings: ClusterSettings | None = None) -> None:
        """Begin with people who are known by name, from their vectors, each of length 1."""
        self._settings = settings or ClusterSettings()
        self.speakers = [Speaker(name, _ENROLLED_WINDOWS * vector, enrolled=True) for name, vector in known.items()]
        # Newest windows, in order; those from `_open` on are of the region that goes on.
        self.windows: list[Window] = []
        self._open = 0
        # How many labels were given away.
        self._n_new = 0
        # A window of somebody new that no second has confirmed yet.
        self._unconfirmed: Window | None = None

    def add(self, window: Window, speech_s: float) -> None:
        """Take the next window of the open region, of which `speech_s` seconds are speech."""
        settings = self._settings
        self.windows.append(window)
        best = max(self.similarities([window])[0], default=-1.0)
        if best >= settings.new_below:
            self._assign(window)
        elif speech_s >= settings.min_speech_s:
            first, self._unconfirmed = self._unconfirmed, window
            if first is not None and float(first.vector @ window.vector) >= settings.new_below:
                self._n_new += 1
                speaker = Speaker(f"S{self._n_new}", np.zeros_like(window.vector))
                self.speakers.append(speaker)
                self._count(first, speaker)
                self._count(window, speaker)
                self._unconfirmed = None

    def end_region(self) -> list[tuple[str, str]]:
        """The open region is over: assign its windows again. Returns labels that are one person, (gone, kept)."""
        for window in self.windows[self._open :]:
            self._assign(window)
        merged = self._merge()
        if self.windows:
            oldest_s = self.windows[-1].end_s - self._settings.keep_s
            self.windows = [window for window in self.windows if window.end_s > oldest_s]
        self._open = len(self.windows)
        return merged

    def similarities(self, windows: Sequence[Window]) -> Float32Array:
        """Return how similar windows are to the speakers, in their order: shape (n_windows, n_speakers)."""
        if not windows or not self.speakers:
            return np.zeros((len(windows), len(self.speakers)), dtype=np.float32)
        voices = np.stack([speaker.voice for speaker in self.speakers])
        return np.stack([window.vector for window in windows]) @ voices.T

    def _assign(self, window: Window) -> None:
        """Make a window part of the voice that it is surely of, and of no other."""
        similar = self.similarities([window])[0]
        if not len(similar):
            return
        nearest = int(np.argmax(similar))
        others = max(np.delete(similar, nearest), default=-1.0)
        sure = similar[nearest] >= self._settings.new_below and similar[nearest] - others >= self._settings.margin
        self._count(window, self.speakers[nearest] if sure else None)

    @staticmethod
    def _count(window: Window, speaker: Speaker | None) -> None:
        if window.speaker is speaker:
            return
        if window.speaker is not None:
            window.speaker.total = window.speaker.total - window.vector
        if speaker is not None:
            speaker.total = speaker.total + window.vector
        window.speaker = speaker

    def _merge(self) -> list[tuple[str, str]]:
        merged = []
        while (pair := self._same()) is not None:
            kept, gone = pair
            kept.total = kept.total + gone.total
            for window in self.windows:
                if window.speaker is gone:
                    window.speaker = kept
            self.speakers.remove(gone)
            merged.append((gone.label, kept.label))
        return merged

    def _same(self) -> tuple[Speaker, Speaker] | None:
        """Return two speakers who are one, the earlier first. Who was enrolled comes before all others, and stays."""
        for number, later in enumerate(self.speakers):
            for earlier in self.speakers[:number]:
                if not later.enrolled and float(earlier.voice @ later.voice) > self._settings.merge_above:
                    return earlier, later
        return None
