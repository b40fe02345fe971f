"""Speakers from speaker vectors, as they come. Pure: times are arguments, and no audio is seen here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from streamer.arrays import Float32Array

# A voice that was enrolled counts as so many windows: what is heard moves it, and moves it little.
_ENROLLED_WINDOWS = 10

# At most this many windows of a speaker, the newest, are checked for a second voice: five minutes of speech.
_MAX_SPLIT_WINDOWS = 600

# How similar windows of one person are to their voice where it is heard clearly, and how many windows tell it.
_CLEAR = 0.85
_LEAST = 0.5
_MIN_WINDOWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """When two voices are one person's. Similarities are cosines; those to a speaker are shares of their `clarity`."""

    # A window that is less similar to everybody is of somebody new, where so much of it is speech and the next such
    # window is surely of the same voice.
    new_below: float = 0.4
    min_speech_s: float = 0.9
    # Speakers who are more similar than this are one: the second limit is for those with fewer than `few_windows`,
    # whose voice is not known well. A speaker whose windows fall into two parts that are less similar than
    # `split_below`, neither of few windows, is two: those that made the speaker known had both voices in them.
    merge_above: float = 0.7
    merge_few_above: float = 0.55
    few_windows: int = 16
    split_below: float = 0.62
    # A window is surely of a voice, and changes what is known of it, where it is more similar than this and nobody else
    # is nearly so.
    sure_above: float = 0.55
    margin: float = 0.1
    # Windows that are older are forgotten; beyond so many speakers, whoever was heard least.
    keep_s: float = 300.0
    n_kept: int = 500


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
    n_windows: int = 0
    enrolled: bool = False

    @property
    def voice(self) -> Float32Array:
        """Their vector, of length 1."""
        return self.total / np.float32(max(float(np.linalg.norm(self.total)), 1e-6))

    @property
    def clarity(self) -> float:
        """How similar their windows are to each other, as a share of what it is without noise; up to 1."""
        n = self.n_windows
        if n < _MIN_WINDOWS:
            return 1.0
        squared = (float(self.total @ self.total) / n - 1.0) / (n - 1)  # the mean similarity of two windows
        return min(math.sqrt(max(squared, _LEAST**2)) / _CLEAR, 1.0)


class Clusters:
    """The speakers of one session. Windows come in order, region by region; a region is speech between two silences."""

    def __init__(self, known: Mapping[str, Float32Array], settings: ClusterSettings | None = None) -> None:
        """Begin with people who are known by name, from their vectors, each of length 1."""
        self._settings = settings or ClusterSettings()
        n = _ENROLLED_WINDOWS
        self.speakers = [Speaker(name, n * vector, n, enrolled=True) for name, vector in known.items()]
        # Their vectors, shape (n_speakers, n_values); None where they have changed.
        self._voices: Float32Array | None = None
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
        (similar,) = self.similarities([window])
        if any(s >= settings.new_below * speaker.clarity for s, speaker in zip(similar, self.speakers, strict=True)):
            self._assign(window, similar)
        elif speech_s >= settings.min_speech_s:
            first, self._unconfirmed = self._unconfirmed, window
            if first is not None and float(first.vector @ window.vector) >= settings.sure_above:
                speaker = self._new_speaker(window.vector)
                self._count(first, speaker)
                self._count(window, speaker)
                self._unconfirmed = None

    def end_region(self) -> list[tuple[str, str]]:
        """The open region is over: assign its windows again. Returns labels that are one person, (gone, kept)."""
        windows = self.windows[self._open :]
        for window, similar in zip(windows, self.similarities(windows), strict=True):
            self._assign(window, similar)
        for speaker in tuple(self.speakers):
            if any(window.speaker is speaker for window in windows):
                self._split(speaker)
        merged = []
        while (pair := self._same()) is not None:
            merged.append(self._merge(*pair))
        if windows:
            oldest_s = windows[-1].end_s - self._settings.keep_s
            self.windows = [window for window in self.windows if window.end_s > oldest_s]
        self._open = len(self.windows)
        return merged

    def similarities(self, windows: Sequence[Window]) -> Float32Array:
        """Return how similar windows are to the speakers, in their order: shape (n_windows, n_speakers)."""
        if not windows or not self.speakers:
            return np.zeros((len(windows), len(self.speakers)), dtype=np.float32)
        if self._voices is None:
            self._voices = np.stack([speaker.voice for speaker in self.speakers])
        return np.stack([window.vector for window in windows]) @ self._voices.T

    def _assign(self, window: Window, similar: Float32Array) -> None:
        """Make a window part of the voice that it is surely of, and of no other."""
        if not len(similar):
            return
        nearest = int(np.argmax(similar))
        speaker, best = self.speakers[nearest], similar[nearest]
        others = max(np.delete(similar, nearest), default=-1.0)
        sure = best >= self._settings.sure_above * speaker.clarity and best - others >= self._settings.margin
        self._count(window, speaker if sure else None)

    def _count(self, window: Window, speaker: Speaker | None) -> None:
        if window.speaker is speaker:
            return
        self._voices = None
        if window.speaker is not None:
            window.speaker.total = window.speaker.total - window.vector
            window.speaker.n_windows -= 1
        if speaker is not None:
            speaker.total = speaker.total + window.vector
            speaker.n_windows += 1
        window.speaker = speaker

    def _split(self, speaker: Speaker) -> None:
        """Make two speakers of one whose windows are of two voices, and assign the windows again."""
        windows = [window for window in self.windows if window.speaker is speaker][-_MAX_SPLIT_WINDOWS:]
        least = self._settings.few_windows
        if len(windows) < 2 * least:
            return
        vectors = np.stack([window.vector for window in windows])
        part = fcluster(linkage(vectors, "ward"), 2, "maxclust")
        totals = np.stack([vectors[part == number].sum(axis=0) for number in (1, 2)])
        voices = totals / np.linalg.norm(totals, axis=1, keepdims=True)
        if min(np.sum(part == 1), np.sum(part == 2)) < least or voices[0] @ voices[1] >= self._settings.split_below:
            return
        stays = 1 + int(np.argmax(voices @ speaker.voice))
        other = self._new_speaker(vectors[0])
        for window, number in zip(windows, part, strict=True):
            self._count(window, speaker if number == stays else other)
        for window, similar in zip(windows, self.similarities(windows), strict=True):
            self._assign(window, similar)

    def _new_speaker(self, like: Float32Array) -> Speaker:
        """Add a speaker with the next label, of whom nothing is known yet. Beyond `n_kept`, forget another."""
        heard = [speaker for speaker in self.speakers if not speaker.enrolled]
        if len(heard) >= self._settings.n_kept:
            self.speakers.remove(min(heard, key=lambda speaker: speaker.n_windows))
        self._n_new += 1
        self.speakers.append(Speaker(f"S{self._n_new}", np.zeros_like(like)))
        self._voices = None
        return self.speakers[-1]

    def _same(self) -> tuple[Speaker, Speaker] | None:
        """Return the two speakers who are most surely one, the earlier first. Who is enrolled stays."""
        if len(self.speakers) < 2:
            return None
        settings = self._settings
        voices = np.stack([speaker.voice for speaker in self.speakers])
        n_windows = np.array([speaker.n_windows for speaker in self.speakers])
        few = np.minimum.outer(n_windows, n_windows) < settings.few_windows
        excess = voices @ voices.T - np.where(few, settings.merge_few_above, settings.merge_above)
        excess[np.tril_indices(len(voices))] = -1.0
        excess[:, : sum(speaker.enrolled for speaker in self.speakers)] = -1.0
        earlier, later = np.unravel_index(int(np.argmax(excess)), excess.shape)
        return (self.speakers[earlier], self.speakers[later]) if excess[earlier, later] > 0 else None

    def _merge(self, kept: Speaker, gone: Speaker) -> tuple[str, str]:
        kept.total = kept.total + gone.total
        kept.n_windows += gone.n_windows
        for window in self.windows:
            if window.speaker is gone:
                window.speaker = kept
        self.speakers.remove(gone)
        self._voices = None
        return gone.label, kept.label
