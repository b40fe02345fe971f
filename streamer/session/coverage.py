"""Detected speech that no word covers: Whisper has skipped it. Sans-I/O, positions in absolute samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from streamer.constants import SAMPLE_RATE
from streamer.whisper.result import TimedWord, is_mark

# Least speech without a word that is a hole, and in a text without any word. People say two to five words a second.
HOLE_SAMPLES = 3 * SAMPLE_RATE // 2
EMPTY_SAMPLES = SAMPLE_RATE

# Longest audio that a word covers, and more for each of its digits. Times of words next to skipped speech include it.
LONGEST_WORD_SAMPLES = SAMPLE_RATE
DIGIT_SAMPLES = SAMPLE_RATE // 2


@dataclass(frozen=True, slots=True)
class Hole:
    """Audio between two words, or at an end of a text, with speech that no word covers."""

    index: int  # of the first word behind it
    start: int
    end: int


class DetectedSpeech(msgspec.Struct, frozen=True, array_like=True):
    """Where the detector has found speech: spans of chunks, oldest first."""

    spans: tuple[tuple[int, int], ...] = ()

    def with_more(self, start: int, end: int) -> Self:
        """Add speech behind all that is known."""
        known = self.spans
        if known and known[-1][1] >= start:
            return type(self)((*known[:-1], (known[-1][0], end)))
        return type(self)((*known, (start, end)))

    def since(self, position: int) -> Self:
        """Forget spans that end before a position."""
        return type(self)(tuple(span for span in self.spans if span[1] > position))

    def between(self, start: int, end: int) -> int:
        """Return how many samples from one position to another are speech."""
        return sum(max(0, min(end, behind) - max(start, first)) for first, behind in self.spans)

    def holes(self, words: Sequence[TimedWord], start: int, end: int) -> Iterator[Hole]:
        """Yield the holes of a text, whose words lie between two positions."""
        spoken = [(i, *_covered(word)) for i, word in enumerate(words) if not is_mark(word.text)]
        least = HOLE_SAMPLES if spoken else EMPTY_SAMPLES
        reached = start
        for i, first, behind in (*spoken, (len(words), end, end)):
            first = min(first, end)
            if first - reached >= least and self.between(reached, first) >= least:
                yield Hole(i, reached, first)
            reached = max(reached, behind)


def _covered(word: TimedWord) -> tuple[int, int]:
    """Return what a word covers: if it is too long for a word, the audio that the decoder attended to for it."""
    longest = LONGEST_WORD_SAMPLES + DIGIT_SAMPLES * sum(map(str.isdigit, word.text))
    if word.duration_samples <= longest:
        return word.start_samples, word.end_samples
    end = min(max(word.attended_samples, word.start_samples + longest), word.end_samples)
    return end - longest, end
