"""The words of a window's segments with their times, as openai-whisper's `word_timestamps=True` gives them.

Source: openai-whisper's `timing.py` (`find_alignment`, `merge_punctuations`, `add_word_timestamps`). All times are
whole multiples of 10 ms. There they are floats of seconds, so that a comparison of two equal times goes either way;
here they are samples, and equal times are equal.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamer.audio.constants import SAMPLE_RATE
from streamer.whisper.decode.probabilities import log_prob
from streamer.whisper.decode.search import TokenDecoder
from streamer.whisper.decode.timing import time_words
from streamer.whisper.result import TimedWord
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_at_marks

SENTENCE_ENDS = ".。!！?？"
MAX_MEDIAN_SAMPLES = SAMPLE_RATE * 7 // 10  # 0.7 s: however slowly somebody speaks, the usual word is no longer
SLACK_SAMPLES = SAMPLE_RATE // 2  # 0.5 s: words this far outside of a segment are held against its timestamps


class Segment(Protocol):
    """What was said between two timestamps; positions are counted from the start of the recording."""

    start_samples: int
    end_samples: int
    tokens: tuple[int, ...]  # timestamps and all


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A segment as its words place it; positions, its words' too, are counted from the start of the recording."""

    start_samples: int
    end_samples: int
    words: tuple[TimedWord, ...]


def add_word_timestamps(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    segments: Sequence[Segment],
    *,
    language: str,
    task: str = "transcribe",
    begin_samples: int,
    n_samples: int,
    last_speech_samples: int,
    prepend_punctuations: str,
    append_punctuations: str,
) -> list[SpokenSegment]:
    """Find the words of all segments of the window that the decoder holds, and place the segments by their words.

    begin_samples : where the window begins in the recording
    n_samples : length of its audio, without padding
    last_speech_samples : where the last word before the window ended in the recording
    prepend_punctuations, append_punctuations : marks that belong to the word behind them, and to that before them
    """
    lengths = [sum(map(tokenizer.is_text, segment.tokens)) for segment in segments]
    text = [token for segment in segments for token in segment.tokens if tokenizer.is_text(token)]
    words = find_alignment(decoder, tokenizer, text, language=language, task=task, n_samples=n_samples)
    median = median_duration(words)
    words = shorten_at_sentence_ends(words, 2 * median)
    words = merge_punctuation(words, prepend_punctuations, append_punctuations)
    words = [
        dataclasses.replace(
            word, start_samples=begin_samples + word.start_samples, end_samples=begin_samples + word.end_samples
        )
        for word in words
    ]
    return fit_to_segments(words, segments, lengths, median=median, last_speech_samples=last_speech_samples)


def find_alignment(
    decoder: TokenDecoder, tokenizer: Tokenizer, text: Sequence[int], *, language: str, task: str, n_samples: int
) -> list[TimedWord]:
    """Find the words of known text in the window that the decoder holds, punctuation apart.

    text : tokens without special ones; those that the decoder has no room for have no length, at the end

    A word's probability is the arithmetic mean of its tokens', each among text tokens alone.
    """
    special = tokenizer.special
    words = split_at_marks(tokenizer, text, language)
    if not words:
        return []
    start = [*tokenizer.start_sequence(language, task), special.no_timestamps]
    fed = list(text[: decoder.capacity - len(start) - 1])
    decoder.begin()
    (logits,), (attention,) = decoder.feed([*start, *fed, special.end_of_text])
    logits[:, special.end_of_text : special.timestamp_end] = -np.inf
    log_probs = [log_prob(row, token) for row, token in zip(logits[len(start) - 1 :], fed, strict=False)]
    log_probs += [-math.inf] * (len(text) - len(fed))
    return time_words(words, attention, len(start), log_probs, n_samples)


def median_duration(words: Sequence[TimedWord]) -> int:
    """Return the median length of the words that have one, in samples, at most 0.7 s; 0 where none has."""
    durations = [length for word in words if (length := word.end_samples - word.start_samples)]
    return min(int(np.median(durations)), MAX_MEDIAN_SAMPLES) if durations else 0


def shorten_at_sentence_ends(words: Sequence[TimedWord], longest: int) -> list[TimedWord]:
    """Shorten what ends a sentence, and the word behind it, to `longest` samples: a pause is no part of a word."""
    shortened = list(words)
    for i in range(1, len(words)):
        word = shortened[i]
        if word.end_samples - word.start_samples <= longest:
            continue
        if word.text in SENTENCE_ENDS:
            shortened[i] = dataclasses.replace(word, end_samples=word.start_samples + longest)
        elif shortened[i - 1].text in SENTENCE_ENDS:
            shortened[i] = dataclasses.replace(word, start_samples=word.end_samples - longest)
    return shortened


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> list[TimedWord]:
    """Join punctuation to the word that it belongs to, which keeps its own times and mean probability."""
    merged = list(words)
    behind = len(merged) - 1
    for i in range(len(merged) - 2, -1, -1):
        if merged[i].text.startswith(" ") and merged[i].text.strip() in prepended:
            merged[behind] = _joined(merged[behind], merged[i], merged[behind])
            merged[i] = dataclasses.replace(merged[i], text="", tokens=())
        else:
            behind = i
    before = 0
    for i in range(1, len(merged)):
        if not merged[before].text.endswith(" ") and merged[i].text in appended:
            merged[before] = _joined(merged[before], merged[before], merged[i])
            merged[i] = dataclasses.replace(merged[i], text="", tokens=())
        else:
            before = i
    return [word for word in merged if word.tokens]


def fit_to_segments(
    words: Sequence[TimedWord],
    segments: Sequence[Segment],
    lengths: Sequence[int],
    *,
    median: int,
    last_speech_samples: int,
) -> list[SpokenSegment]:
    """Give each segment its words, shorten those beside a pause, and place the segment by its words.

    lengths : text tokens of each segment
    median : length of a usual word, in samples
    last_speech_samples : where the last word before these ended

    All positions are counted from the start of the recording.
    """
    fitted = []
    index = 0
    for segment, length in zip(segments, lengths, strict=True):
        mine = []
        n_tokens = 0
        # A word that goes on into the next segment belongs to this one.
        while index < len(words) and n_tokens < length:
            if words[index].text:
                mine.append(words[index])
            n_tokens += len(words[index].tokens)
            index += 1
        start, end = segment.start_samples, segment.end_samples
        if mine:
            _shorten_after_pause(mine, median, last_speech_samples)
            first = mine[0]
            if first.start_samples < start - SLACK_SAMPLES and start < first.end_samples:
                mine[0] = dataclasses.replace(first, start_samples=max(0, min(first.end_samples - median, start)))
            else:
                start = first.start_samples
            last = mine[-1]
            if last.start_samples < end and end + SLACK_SAMPLES < last.end_samples:
                mine[-1] = dataclasses.replace(last, end_samples=max(last.start_samples + median, end))
            else:
                end = last.end_samples
            last_speech_samples = end
        fitted.append(SpokenSegment(start, end, tuple(mine)))
    return fitted


def _shorten_after_pause(words: list[TimedWord], median: int, last_speech_samples: int) -> None:
    """Shorten a segment's first two words where they reach into a pause before it."""
    longest = 2 * median
    first, *others = words[:2]
    span = first.end_samples - first.start_samples
    both = others[0].end_samples - first.start_samples if others else 0
    if first.end_samples - last_speech_samples <= 4 * median or (span <= longest and both <= 2 * longest):
        return
    if others and others[0].end_samples - others[0].start_samples > longest:
        boundary = others[0].end_samples - longest
        first = dataclasses.replace(first, end_samples=boundary)
        words[1] = dataclasses.replace(others[0], start_samples=boundary)
    words[0] = dataclasses.replace(first, start_samples=first.end_samples - longest)


def _joined(word: TimedWord, left: TimedWord, right: TimedWord) -> TimedWord:
    return dataclasses.replace(
        word, text=left.text + right.text, tokens=left.tokens + right.tokens, log_prob=left.log_prob + right.log_prob
    )
