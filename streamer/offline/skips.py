"""Speech that Whisper skips: its timestamps may jump over a sentence that the speech detector finds.

Whisper predicts times as tokens (Radford et al. 2022, arXiv:2212.04356, section 3.8), and the next window begins at the
last of them, so that a wrong one leaves out what comes before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz import fuzz, utils

from streamer.arrays import BoolArray
from streamer.audio.constants import FRAMES_PER_SECOND, HOP_LENGTH
from streamer.offline.segments import Segment
from streamer.settings.table import DecodingSettings

LEAST_FRAMES = FRAMES_PER_SECOND  # of speech without text, to be transcribed again
PAD_FRAMES = 20  # before and after it, as far as no other segment has them
MOST_ALIKE_PERCENT = 75  # of characters that a passage's text may share with its window's
LEAST_TOKENS_PER_SECOND = 1.0  # of text; people speak at 2 to 5 words a second
LONGEST_PIECE_FRAMES = 10 * FRAMES_PER_SECOND  # of a passage that is transcribed again


@dataclass(frozen=True, slots=True)
class SkippedPassage:
    """Frames with speech that Whisper skipped, and the segments in it that say too little."""

    begin: int
    end: int
    sparse: tuple[Segment, ...] = ()


def skipped(segments: Sequence[Segment], speech: BoolArray, begin: int, end_of_text: int) -> list[SkippedPassage]:
    """Return the passages between segments that hold a second or more of speech.

    A segment with less than a token a second of speech counts as part of the passage.

    segments : of one text, in order
    speech : which frames are speech, shape (n,); the first of them is frame `begin`
    end_of_text : first token that is no text
    """
    passages = []
    seek, sparse = 0, []
    for segment in [*segments, None]:
        first, behind = len(speech), len(speech)
        if segment is not None:
            first, behind = (
                min(max(position // HOP_LENGTH - begin, seek), len(speech))
                for position in (segment.start_samples, segment.end_samples)
            )
            n_tokens = sum(token < end_of_text for token in segment.tokens)
            n_speech = int(speech[first:behind].sum())
            if n_speech >= LEAST_FRAMES and n_tokens < LEAST_TOKENS_PER_SECOND * n_speech / FRAMES_PER_SECOND:
                sparse.append(segment)
                continue
        frames = np.flatnonzero(speech[seek:first])
        if len(frames) >= LEAST_FRAMES:
            passages.append(
                SkippedPassage(
                    begin + max(seek, seek + int(frames[0]) - PAD_FRAMES),
                    begin + min(first, seek + int(frames[-1]) + 1 + PAD_FRAMES),
                    tuple(sparse),
                )
            )
        seek, sparse = behind, []
    return passages


def repeats(text: str, others: str) -> bool:
    """Return whether other segments have a passage's text already: then their times are wrong, not their words."""
    return (
        bool(text and others)
        and fuzz.partial_ratio(text, others, processor=utils.default_process) >= MOST_ALIKE_PERCENT
    )


def is_trusted(segment: Segment, settings: DecodingSettings) -> bool:
    """Return whether a text passes the thresholds for its log-probability, its compression and silence."""
    logprob, ratio = settings.logprob_threshold, settings.compression_ratio_threshold
    silence = settings.no_speech_threshold
    return (
        (logprob is None or segment.avg_logprob >= logprob)
        and (ratio is None or segment.compression_ratio <= ratio)
        and (silence is None or segment.no_speech_prob <= silence)
    )
