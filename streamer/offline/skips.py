"""Speech that Whisper skips: its timestamps or its words may leave out a sentence that the speech detector finds.

Whisper predicts times as tokens (Radford et al. 2022, arXiv:2212.04356, section 3.8), and the next window begins at the
last of them, so that a wrong one leaves out what comes before it.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

from streamer.arrays import BoolArray
from streamer.constants import FRAMES_PER_SECOND, HOP_LENGTH, SAMPLE_RATE
from streamer.offline.segments import Segment
from streamer.settings.table import DecodingSettings
from streamer.whisper.plausible import without_marks
from streamer.whisper.result import TimedWord

LEAST_FRAMES = FRAMES_PER_SECOND  # of speech without text, to be transcribed again
LEAST_HOLE_FRAMES = 2 * FRAMES_PER_SECOND  # of it between words, whose times are less sure
LONGEST_WORD_SAMPLES = SAMPLE_RATE  # times leave nothing between words: a longer one reaches over what is left out
PAD_FRAMES = 20  # before and after it, as far as no other segment has them
MOST_ALIKE = 0.75  # of characters that a passage's text may share with its window's
LEAST_TOKENS_PER_SECOND = 1.0  # of text; people speak at 2 to 5 words a second
LONGEST_PIECE_FRAMES = 10 * FRAMES_PER_SECOND  # of a passage that is transcribed again


@dataclass(frozen=True, slots=True)
class SkippedPassage:
    """Frames with speech that Whisper skipped, and the segments in it that say too little."""

    begin: int
    end: int
    sparse: tuple[Segment, ...] = ()


def skipped(segments: Sequence[Segment], speech: BoolArray, begin: int, end_of_text: int) -> list[SkippedPassage]:
    """Return the passages between segments that hold a second or more of speech, and between words two seconds or more.

    A segment with less than a token a second of speech counts as part of the passage.

    segments : of one text, in order
    speech : which frames are speech, shape (n,); the first of them is frame `begin`
    end_of_text : first token that is no text
    """
    passages = []
    seek, sparse = 0, []

    def to_frame(position: int) -> int:
        return min(max(position // HOP_LENGTH - begin, seek), len(speech))

    for segment in [*segments, None]:
        parts = [segment]
        if segment is not None:
            n_speech = int(speech[to_frame(segment.start_samples) : to_frame(segment.end_samples)].sum())
            n_tokens = sum(token < end_of_text for token in segment.tokens)
            if n_speech >= LEAST_FRAMES and n_tokens < LEAST_TOKENS_PER_SECOND * n_speech / FRAMES_PER_SECOND:
                sparse.append(segment)
                continue
            parts = [*split_at_holes(segment, speech, begin)]
        for part in parts:
            first = to_frame(part.start_samples) if part is not None else len(speech)
            frames = np.flatnonzero(speech[seek:first])
            if len(frames) >= LEAST_FRAMES:
                passages.append(
                    SkippedPassage(
                        begin + max(seek, seek + int(frames[0]) - PAD_FRAMES),
                        begin + min(first, seek + int(frames[-1]) + 1 + PAD_FRAMES),
                        tuple(sparse),
                    )
                )
            seek, sparse = to_frame(part.end_samples) if part is not None else first, []
    return passages


def split_at_holes(segment: Segment, speech: BoolArray, begin: int) -> list[Segment]:
    """Return a segment in the parts between which its words leave out two seconds of speech or more.

    speech : which frames are speech, shape (n,); the first of them is frame `begin`
    """
    words = [_shortened(word) for word in segment.words]
    # Before each word, and behind the last, text ends and begins again.
    ends = [segment.start_samples, *(word.end_samples for word in words)]
    begins = [*(word.start_samples for word in words), segment.end_samples]
    frames = [[max(0, position // HOP_LENGTH - begin) for position in pair] for pair in zip(ends, begins, strict=True)]
    holes = [i for i, pair in enumerate(frames) if speech[slice(*pair)].sum() >= LEAST_HOLE_FRAMES]
    if not words or not holes:
        return [segment]
    parts = []
    for first, behind in pairwise(sorted({0, *holes, len(words)})):
        part = dataclasses.replace(
            segment,
            tokens=tuple(token for word in words[first:behind] for token in word.tokens),
            text="".join(word.text for word in words[first:behind]),
            words=segment.words[first:behind],
            token_probabilities=segment.token_probabilities[first:behind],
        )
        part.cut(
            begins[first] if first in holes else segment.start_samples,
            ends[behind] if behind in holes else segment.end_samples,
        )
        parts.append(part)
    return parts


def _shortened(word: TimedWord) -> TimedWord:
    """Return a word with the second of a longer one that lies around what the decoder attended to."""
    latest = word.end_samples - LONGEST_WORD_SAMPLES
    if latest <= word.start_samples:
        return word
    start = min(max(word.attended_samples - LONGEST_WORD_SAMPLES // 2, word.start_samples), latest)
    return dataclasses.replace(word, start_samples=start, end_samples=start + LONGEST_WORD_SAMPLES)


def repeats(text: str, others: str) -> bool:
    """Return whether other segments have a passage's text already: then their times are wrong, not their words."""
    short, long = sorted((without_marks(text), without_marks(others)), key=len)
    if not short:
        return False
    # Each piece that both have says where in the longer text the shorter one may begin.
    blocks = SequenceMatcher(None, short, long, autojunk=False).get_matching_blocks()
    places = {max(0, block.b - block.a) for block in blocks}
    alike = (SequenceMatcher(None, short, long[at : at + len(short)], autojunk=False).ratio() for at in places)
    return any(ratio >= MOST_ALIKE for ratio in alike)


def is_trusted(segment: Segment, settings: DecodingSettings) -> bool:
    """Return whether a text passes the thresholds for its log-probability, its compression and silence."""
    logprob, ratio = settings.logprob_threshold, settings.compression_ratio_threshold
    silence = settings.no_speech_threshold
    return (
        (logprob is None or segment.avg_logprob >= logprob)
        and (ratio is None or segment.compression_ratio <= ratio)
        and (silence is None or segment.no_speech_prob <= silence)
    )
