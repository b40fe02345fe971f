"""The words of a window's segments with their times, as openai-whisper's `word_timestamps=True` gives them.

Source: openai-whisper's `timing.py` (`find_alignment`, `merge_punctuations`, `add_word_timestamps`). All times are
whole multiples of 10 ms. There they are floats of seconds, so that a comparison of two equal times goes either way;
here they are samples, and equal times are equal.
"""

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamer.constants import SAMPLE_RATE
from streamer.whisper.decode.options import WindowTask
from streamer.whisper.decode.probabilities import log_prob
from streamer.whisper.decode.search import TokenDecoder
from streamer.whisper.decode.timing import time_words
from streamer.whisper.result import TimedWord
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_at_marks

SENTENCE_ENDS = ".。!！?？"
MAX_MEDIAN_SAMPLES = SAMPLE_RATE * 7 // 10  # 0.7 s: the usual word of even a slow speaker is no longer
SLACK_SAMPLES = SAMPLE_RATE // 2  # 0.5 s: words further outside of a segment are cut to its timestamps


class TimedSegment(Protocol):
    """Text between two timestamps; positions are counted from the start of the recording."""

    start_samples: int
    end_samples: int
    tokens: tuple[int, ...]  # including timestamps


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A segment with its words; all positions are counted from the start of the recording."""

    start_samples: int
    end_samples: int
    words: tuple[TimedWord, ...]


def add_word_timestamps(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    segments: Sequence[TimedSegment],
    task: WindowTask,
    *,
    begin_samples: int,
    n_samples: int,
    last_speech_samples: int,
    punctuation: tuple[str, str],
) -> list[SpokenSegment]:
    """Find the words of all segments of the window that the decoder holds, and place the segments by their words.

    task : as the window was decoded
    begin_samples : where the window begins in the recording
    n_samples : length of its audio, without padding
    last_speech_samples : where the last word before the window ended in the recording
    punctuation : marks that belong to the word behind them, and marks that belong to the word before them
    """
    lengths = [sum(map(tokenizer.is_text, segment.tokens)) for segment in segments]
    text = [token for segment in segments for token in segment.tokens if tokenizer.is_text(token)]
    words = find_alignment(decoder, tokenizer, text, language=task.language, task=task.task, n_samples=n_samples)
    median = median_duration(words)
    words = _with_punctuation(_without_pauses(words, 2 * median), *punctuation)
    words = [word.moved_by(begin_samples) for word in words]
    remaining = deque(words)
    spoken = []
    for segment, length in zip(segments, lengths, strict=True):
        mine = []
        n_tokens = 0
        # A word that goes on into the next segment belongs to this one.
        while remaining and n_tokens < length:
            word = remaining.popleft()
            n_tokens += len(word.tokens)
            if word.text:
                mine.append(word)
        spoken.append(_fitted(segment, mine, median, last_speech_samples))
        last_speech_samples = spoken[-1].end_samples if mine else last_speech_samples
    return spoken


def find_alignment(
    decoder: TokenDecoder, tokenizer: Tokenizer, text: Sequence[int], *, language: str, task: str, n_samples: int
) -> list[TimedWord]:
    """Find the words of known text in the window that the decoder holds; each mark of punctuation is a word.

    text : tokens without special ones; those for which the decoder has no room get no length, at the end

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
    """Return the median length of the words that have one, in samples, at most 0.7 s; 0 if none has."""
    durations = [word.duration_samples for word in words if word.duration_samples]
    return min(int(np.median(durations)), MAX_MEDIAN_SAMPLES) if durations else 0


def _without_pauses(words: Sequence[TimedWord], longest: int) -> list[TimedWord]:
    """Shorten a mark that ends a sentence, and the word behind it, to `longest` samples: a pause is no part of them."""
    shortened = list(words[:1])
    for before, word in itertools.pairwise(words):
        if word.duration_samples > longest and word.text in SENTENCE_ENDS:
            word = _moved(word, word.start_samples, word.start_samples + longest)
        elif word.duration_samples > longest and before.text in SENTENCE_ENDS:
            word = _moved(word, word.end_samples - longest, word.end_samples)
        shortened.append(word)
    return shortened


def _with_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> list[TimedWord]:
    """Join punctuation to the word that it belongs to, which keeps its own times and mean probability."""
    backwards: list[TimedWord] = []
    for word in reversed(words):
        if backwards and word.text.startswith(" ") and word.text.strip() in prepended:
            backwards[-1] = _joined(backwards[-1], word, backwards[-1])
        else:
            backwards.append(word)
    merged: list[TimedWord] = []
    for word in reversed(backwards):
        if merged and not merged[-1].text.endswith(" ") and word.text in appended:
            merged[-1] = _joined(merged[-1], merged[-1], word)
        else:
            merged.append(word)
    return merged


def _fitted(segment: TimedSegment, words: list[TimedWord], median: int, last_speech_samples: int) -> SpokenSegment:
    """Give a segment its words, shorten those beside a pause, and place it by its words.

    median : usual length of a word, in samples
    last_speech_samples : where the last word before the segment ended
    """
    start, end = segment.start_samples, segment.end_samples
    if not words:
        return SpokenSegment(start, end, ())
    _shorten_after_pause(words, median, last_speech_samples)
    first = words[0]
    if first.start_samples < start - SLACK_SAMPLES and start < first.end_samples:
        words[0] = _moved(first, max(0, min(first.end_samples - median, start)), first.end_samples)
    else:
        start = first.start_samples
    last = words[-1]
    if last.start_samples < end and end + SLACK_SAMPLES < last.end_samples:
        words[-1] = _moved(last, last.start_samples, max(last.start_samples + median, end))
    else:
        end = last.end_samples
    return SpokenSegment(start, end, tuple(words))


def _shorten_after_pause(words: list[TimedWord], median: int, last_speech_samples: int) -> None:
    """Shorten a segment's first two words if they reach into a pause before it."""
    longest = 2 * median
    first, *others = words[:2]
    both = others[0].end_samples - first.start_samples if others else 0
    if first.end_samples - last_speech_samples <= 4 * median:
        return
    if first.duration_samples <= longest and both <= 2 * longest:
        return
    end = first.end_samples
    if others and others[0].duration_samples > longest:
        end = others[0].end_samples - longest
        words[1] = _moved(others[0], end, others[0].end_samples)
    words[0] = _moved(first, end - longest, end)


def _moved(word: TimedWord, start: int, end: int) -> TimedWord:
    return dataclasses.replace(word, start_samples=start, end_samples=end)


def _joined(word: TimedWord, left: TimedWord, right: TimedWord) -> TimedWord:
    return dataclasses.replace(
        word, text=left.text + right.text, tokens=left.tokens + right.tokens, log_prob=left.log_prob + right.log_prob
    )
