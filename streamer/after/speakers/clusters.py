"""Clustering of speaker vectors as they come. Pure: times are arguments, and no audio is seen here."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from streamer.arrays import Float32Array

# A voice that was enrolled counts as this many windows: later ones move it, and move it little.
_ENROLLED_WINDOWS = 10

# At most this many windows of a speaker, the newest, are checked for a second voice: five minutes of speech.
_MAX_SPLIT_WINDOWS = 600

# Similarity of clear windows of one person to their voice, and the least windows that show how clear a voice is.
_CLEAR = 0.85
_LEAST = 0.5
_MIN_WINDOWS = 4

# A window says who speaks near its middle: less and less up to this distance, nothing beyond.
_REACH_S = 0.75

# How far from speech a word may be: times of words are not exact.
_BESIDE_S = 0.5

# Least similarity of a word's windows to the speaker whose label it has.
_UNSURE_BELOW = 0.3

_middle = attrgetter("middle_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringSettings:
    """When two voices are one person's. Similarities are cosines; those to a speaker are shares of their `clarity`."""

    # A window that is less similar to all speakers is of a new one, if this much of it is speech and the next such
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
    # A window is surely of a voice, and changes what is known of it, if it is more similar than this and no other
    # speaker is within the margin.
    sure_above: float = 0.55
    margin: float = 0.1
    # Windows that are older are forgotten; beyond this many speakers, the one with the fewest windows.
    keep_s: float = 300.0
    n_kept: int = 500


@dataclass(slots=True, eq=False)
class VoiceWindow:
    """A span of audio within speech, and the vector of who speaks in it, of length 1."""

    start_s: float
    end_s: float
    vector: Float32Array
    # Whose voice it is part of; None if that is not sure.
    speaker: "Speaker | None" = None

    @property
    def middle_s(self) -> float:
        return (self.start_s + self.end_s) / 2


@dataclass(slots=True, eq=False)
class Speaker:
    """A speaker of the session, or one who is enrolled."""

    label: str
    # Sum of the vectors of the windows that are surely theirs; it points along their voice.
    total: Float32Array
    n_windows: int = 0
    enrolled: bool = False

    @property
    def clarity(self) -> float:
        """How similar their windows are to each other, as a share of what it is without noise; up to 1."""
        n = self.n_windows
        if n < _MIN_WINDOWS:
            return 1.0
        squared = (float(self.total @ self.total) / n - 1.0) / (n - 1)  # the mean similarity of two windows
        return min(math.sqrt(max(squared, _LEAST**2)) / _CLEAR, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class KnownVoices:
    """What the windows so far say of who speaks. Nothing changes it: any thread may read it."""

    # In order.
    windows: Sequence[VoiceWindow]
    # Of the speakers, and their voices, each of length 1: shape (n_speakers, n_values).
    labels: Sequence[str]
    voices: Float32Array

    def label(self, start_s: float, end_s: float) -> str | None:
        """Return the label of who speaks from one second to another; None if that is not sure.

        The speaker to whom the windows around it are most similar on average, each by its nearness.
        """
        windows, middle_s = self.windows, (start_s + end_s) / 2
        first = bisect_right(windows, middle_s - _REACH_S, key=_middle)
        last = bisect_left(windows, middle_s + _REACH_S, key=_middle)
        near = windows[first:last]
        if not near:
            # At the ends of a region: any window that has it, or nearly.
            around = windows[max(first - 1, 0) : last + 1]
            near = [w for w in around if w.start_s - _BESIDE_S <= middle_s <= w.end_s + _BESIDE_S]
        if not near or not self.labels:
            return None
        weights = [max(_REACH_S - abs(window.middle_s - middle_s), 0.01) for window in near]
        means = np.average(np.stack([window.vector for window in near]) @ self.voices.T, axis=0, weights=weights)
        best = int(np.argmax(means))
        return self.labels[best] if means[best] >= _UNSURE_BELOW else None


class Clusters:
    """The speakers of one session. Windows come in order, region by region; a region is speech between two silences.

    One thread at a time may use it; `known` is for the others.
    """

    def __init__(self, known: Mapping[str, Float32Array], settings: ClusteringSettings | None = None) -> None:
        """Begin with people who are known by name, from their vectors, each of length 1."""
        self._settings = settings or ClusteringSettings()
        n = _ENROLLED_WINDOWS
        # The enrolled come first.
        self.speakers = [Speaker(name, n * vector, n, enrolled=True) for name, vector in known.items()]
        # Newest windows, in order; those from `_open` on are of the region that goes on.
        self.windows: list[VoiceWindow] = []
        self._open = 0
        self._n_labels = 0
        # A window of a new speaker that no second one has confirmed yet.
        self._unconfirmed: VoiceWindow | None = None

    def add(self, window: VoiceWindow, speech_s: float) -> None:
        """Add the next window of the open region, of which `speech_s` seconds are speech."""
        settings = self._settings
        self.windows.append(window)
        (similar,) = self._similarities([window])
        if any(s >= settings.new_below * speaker.clarity for s, speaker in zip(similar, self.speakers, strict=True)):
            self._assign([window])
        elif speech_s >= settings.min_speech_s:
            first, self._unconfirmed = self._unconfirmed, window
            if first is not None and float(first.vector @ window.vector) >= settings.sure_above:
                speaker = self._new_speaker(window.vector)
                _move(first, speaker)
                _move(window, speaker)
                self._unconfirmed = None

    def end_region(self) -> list[tuple[str, str]]:
        """End the open region: assign its windows again. Returns labels that are one person, (gone, kept)."""
        windows = self.windows[self._open :]
        self._assign(windows)
        for speaker in tuple(self.speakers):
            if any(window.speaker is speaker for window in windows):
                self._split(speaker)
        merged = []
        while (pair := self._most_similar()) is not None:
            merged.append(self._merge(*pair))
        if windows:
            oldest_s = windows[-1].end_s - self._settings.keep_s
            self.windows = [window for window in self.windows if window.end_s > oldest_s]
        self._open = len(self.windows)
        return merged

    @property
    def known(self) -> KnownVoices:
        """What is known by now."""
        return KnownVoices(tuple(self.windows), [speaker.label for speaker in self.speakers], self._voices())

    def _similarities(self, windows: Sequence[VoiceWindow]) -> Float32Array:
        """Return how similar windows are to the speakers, in their order: shape (n_windows, n_speakers)."""
        if not windows or not self.speakers:
            return np.zeros((len(windows), len(self.speakers)), dtype=np.float32)
        return np.stack([window.vector for window in windows]) @ self._voices().T

    def _voices(self) -> Float32Array:
        if not self.speakers:
            return np.zeros((0, 0), dtype=np.float32)
        return _unit_rows(speaker.total for speaker in self.speakers)

    def _assign(self, windows: Sequence[VoiceWindow]) -> None:
        """Make windows part of the voice that each is surely of, and of no other."""
        if not self.speakers:
            return
        for window, similar in zip(windows, self._similarities(windows), strict=True):
            nearest = int(np.argmax(similar))
            speaker, best = self.speakers[nearest], similar[nearest]
            others = max(np.delete(similar, nearest), default=-1.0)
            sure = best >= self._settings.sure_above * speaker.clarity and best - others >= self._settings.margin
            _move(window, speaker if sure else None)

    def _split(self, speaker: Speaker) -> None:
        """Make two speakers of one whose windows are of two voices, and assign the windows again."""
        windows = [window for window in self.windows if window.speaker is speaker][-_MAX_SPLIT_WINDOWS:]
        least = self._settings.few_windows
        if len(windows) < 2 * least:
            return
        vectors = np.stack([window.vector for window in windows])
        from scipy.cluster.hierarchy import fcluster, linkage  # late: it takes 20 MB

        second = fcluster(linkage(vectors, "ward"), 2, "maxclust") == 2
        voices = _unit_rows(vectors[part].sum(axis=0) for part in (~second, second))
        if min(np.sum(~second), np.sum(second)) < least or voices[0] @ voices[1] >= self._settings.split_below:
            return
        stays = bool(np.argmax(voices @ speaker.total))
        other = self._new_speaker(vectors[0])
        for window, is_second in zip(windows, second, strict=True):
            _move(window, speaker if is_second == stays else other)
        self._assign(windows)

    def _new_speaker(self, like: Float32Array) -> Speaker:
        """Add a speaker with the next label, without a window yet. Beyond `n_kept`, forget another."""
        learnt = [speaker for speaker in self.speakers if not speaker.enrolled]
        if len(learnt) >= self._settings.n_kept:
            self.speakers.remove(min(learnt, key=lambda speaker: speaker.n_windows))
        self._n_labels += 1
        self.speakers.append(Speaker(f"S{self._n_labels}", np.zeros_like(like)))
        return self.speakers[-1]

    def _most_similar(self) -> tuple[Speaker, Speaker] | None:
        """Return the two speakers who are most surely one, the earlier first; no later one is enrolled."""
        if len(self.speakers) < 2:
            return None
        settings, voices = self._settings, self._voices()
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
        return gone.label, kept.label


def _move(window: VoiceWindow, speaker: Speaker | None) -> None:
    """Make a window part of a voice, or of none, and no longer of the one that it was part of."""
    for each, sign in ((window.speaker, -1), (speaker, 1)):
        if each is not None and window.speaker is not speaker:
            each.total = each.total + sign * window.vector
            each.n_windows += sign
    window.speaker = speaker


def _unit_rows(vectors: Iterable[Float32Array]) -> Float32Array:
    """Return vectors of length 1, one a row."""
    rows = np.stack(list(vectors))
    unit: Float32Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-6))
    return unit
