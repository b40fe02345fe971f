"""Detected speech that a transcript leaves out without saying so: it is in no word and in no gap."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from streamer.arrays import Float32Array
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import SAMPLE_RATE
from streamer.settings.table import SpeechSettings

Span = tuple[float, float]  # start and end in seconds

# Less between two words is a pause that the detector missed, or a word whose times are not exact.
LEAST_S = 1.0


def detect_speech(samples: Float32Array) -> list[Span]:
    """Return where the detector finds speech in 16 kHz mono samples, shape (n,)."""
    chunk_s = CHUNK_SAMPLES / SAMPLE_RATE
    probabilities = SpeechDetector().process(samples[: len(samples) // CHUNK_SAMPLES * CHUNK_SAMPLES])
    threshold = SpeechSettings().threshold
    return [(i * chunk_s, (i + 1) * chunk_s) for i, found in enumerate(probabilities) if found >= threshold]


def unsaid(
    speech: Sequence[Span], covered: Sequence[Span], least_s: float = LEAST_S
) -> list[tuple[float, float, float]]:
    """Return start, end and seconds of speech wherever `least_s` or more of it lie between words and gaps.

    speech : in order, none within another
    covered : words and gaps, in any order
    """
    reached: list[Span] = [(0.0, 0.0)]
    for start, end in sorted(covered):
        reached.append((start, max(end, reached[-1][1])))
    starts, stops = [start for start, _ in speech], [stop for _, stop in speech]
    found = []
    for (_, begin), (end, _) in pairwise([*reached, (float("inf"), float("inf"))]):
        between = speech[bisect_right(stops, begin) : bisect_left(starts, end)]
        inside = [(max(start, begin), min(stop, end)) for start, stop in between]
        speech_s = sum(stop - start for start, stop in inside)
        if speech_s >= least_s:
            found.append((inside[0][0], inside[-1][1], speech_s))
    return found
