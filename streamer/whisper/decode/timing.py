"""Word times from the decoder's cross-attention, by dynamic time warping.

Source: openai-whisper's `timing.py`: normalise each alignment head over the tokens, median-filter along time, average
the heads, and find the monotonic path of least cost. The furthest position that a word attended to is from
AlignAtt: Papi et al. (2023), arXiv:2305.11408.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.constants import N_SAMPLES_PER_TOKEN
from streamer.whisper.decode.fallback import compression_ratio
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.result import Hypothesis, TimedWord
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import Spelling, split_to_words

MEDIAN_FILTER_WIDTH = 7  # encoder positions (140 ms), as in openai-whisper

# Comparisons of neighbours that leave the median of seven in the middle (Devillard, "Fast median search", 1998).
_MEDIAN_OF_7 = ((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4))

IntArray = NDArray[np.intp]


def dtw(cost: FloatArray) -> tuple[IntArray, IntArray]:
    """Find the monotonic path of least cost through a matrix, from its first to its last corner.

    cost : shape = (n_rows, n_columns)

    Returns the row and the column of each step of the path. On a tie a step along the columns is taken, then a
    diagonal one. (openai-whisper steps along the columns also if the two others tie below it, at a higher cost.)
    A row is computed at once: within it a path runs along the columns from its entry, at the difference of two sums.
    """
    n_rows, n_columns = cost.shape
    # sums[r, c]: the row's cells before column c.
    sums = np.zeros((n_rows, n_columns + 1))
    np.cumsum(cost, axis=1, out=sums[:, 1:])
    # total[r, c]: least cost of a path to cell (r - 1, c - 1); row and column 0 are outside the matrix.
    total = np.full((n_rows + 1, n_columns + 1), np.inf)
    total[0, 0] = 0
    # entry[r, c]: least cost of a path that enters row r at column c, less the row's cells before that.
    entry = np.empty((n_rows, n_columns))
    for row, above in enumerate(total[:-1]):
        np.minimum(above[:-1], above[1:], out=entry[row])
        entry[row] -= sums[row, :-1]
        np.add(sums[row, 1:], np.minimum.accumulate(entry[row]), out=total[row + 1, 1:])

    runs: list[IntArray] = []
    last = n_columns - 1
    for row in range(n_rows - 1, -1, -1):
        first = int(entry[row, : last + 1].argmin())
        runs.append(np.arange(first, last + 1))
        from_above = total[row, first + 1] < total[row, first]
        last = first if from_above else first - 1
    runs.reverse()
    return np.repeat(np.arange(n_rows), [len(run) for run in runs]), np.concatenate(runs)


def smooth(weights: FloatArray) -> FloatArray:
    """Return weights, shape (n_heads, n_rows, n_positions), median-filtered along the positions.

    The ends are mirrored, as in openai-whisper; fewer positions than half a filter are left as they are.
    """
    half = MEDIAN_FILTER_WIDTH // 2
    n_positions = weights.shape[-1]
    if n_positions <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (half, half)), mode="reflect")
    near = [padded[..., i : i + n_positions] for i in range(MEDIAN_FILTER_WIDTH)]
    for i, j in _MEDIAN_OF_7:
        near[i], near[j] = np.minimum(near[i], near[j]), np.maximum(near[i], near[j])
    smoothed: FloatArray = near[half]
    return smoothed


def word_spans(
    attention: FloatArray, n_prompt: int, word_lengths: Sequence[int], n_samples: int
) -> list[tuple[int, int]]:
    """Find where each word begins and ends.

    attention : shape = (n_heads, n_rows, n_audio_ctx)
        The alignment heads' weights for every token fed to the decoder from the start of the transcript on. In row i
        the decoder predicted token i + 1. The row of the last text token marks the end of the last word; without it
        the last word ends with the audio. Rows after it, such as that of the end of text, only take part in the
        normalisation.
    n_prompt : rows of tokens before the first text token
    word_lengths : tokens of each word
    n_samples : length of the audio; the window's padding is not searched

    Returns first and last sample of each word, counted from the start of the window, monotonic.
    """
    if not word_lengths:
        return []
    n_positions = max(1, min(attention.shape[-1], n_samples // N_SAMPLES_PER_TOKEN))
    weights = attention[:, :, :n_positions].astype(np.float64)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-12)
    deviation = weights.std(axis=-2, keepdims=True)
    weights = (weights - weights.mean(axis=-2, keepdims=True)) / np.maximum(deviation, 1e-12)
    # Head by head: the filter takes nine times the memory of what it filters.
    smoothed: FloatArray = sum(smooth(head[np.newaxis])[0] for head in weights) / len(weights)
    rows, columns = dtw(-smoothed[n_prompt - 1 : n_prompt + sum(word_lengths)])
    # Where the path enters each row, and the end of the audio behind the last.
    first = columns[np.searchsorted(rows, np.arange(rows[-1] + 1))] * N_SAMPLES_PER_TOKEN
    first = np.minimum(np.append(first, n_samples), n_samples)
    bounds = np.minimum(np.cumsum([0, *word_lengths]), len(first) - 1)
    return [(int(a), int(b)) for a, b in itertools.pairwise(first[bounds])]


def attended_samples(attention: FloatArray, n_prompt: int, word_lengths: Sequence[int], n_samples: int) -> list[int]:
    """Find the end of the audio that the decoder attended to for each word.

    For a token it is the end of the encoder position with most of the heads' average attention, in the row that
    predicted the token; for a word, the furthest of its tokens'. Unlike a word's end it does not depend on other words,
    and is not monotonic. The window's padding is left out: near the end of a short window some positions get attention
    at any word.

    Arguments are those of `word_spans`; returns samples from the start of the window, at most `n_samples`.
    """
    if not word_lengths:
        return []
    *firsts, n_text = itertools.accumulate(word_lengths, initial=0)
    n_positions = max(1, min(attention.shape[-1], -(-n_samples // N_SAMPLES_PER_TOKEN)))
    rows = attention[:, n_prompt - 1 : n_prompt - 1 + n_text, :n_positions]
    positions = rows.mean(axis=0).argmax(axis=-1)
    # A text may be longer than what was fed.
    furthest = np.maximum.reduceat(positions, np.minimum(firsts, len(positions) - 1))
    attended: list[int] = np.minimum((furthest + 1) * N_SAMPLES_PER_TOKEN, n_samples).tolist()
    return attended


def to_hypothesis(window: DecodedWindow, tokenizer: Tokenizer, language: str, n_samples: int) -> Hypothesis:
    """Turn tokens without timestamps into words with times, for a window of `n_samples`.

    Punctuation after a word is a word of its own: at the end of the audio Whisper often takes it back.
    """
    spellings = split_to_words(tokenizer, window.tokens, language)
    attention = window.attention[:, : window.n_start + sum(len(tokens) for _, tokens in spellings)]
    words = time_words(spellings, attention, window.n_start, window.log_probs, n_samples)
    ratio = compression_ratio("".join(word.text for word in words))
    return Hypothesis(
        tuple(words),
        language,
        window.no_speech_prob,
        window.avg_logprob,
        ratio,
        window.looped,
        temperature=window.temperature,
        failed=window.failed,
        n_sampled=window.n_sampled,
        n_given=window.n_given,
        n_begins_with=window.n_begins_with,
    )


def time_words(
    words: Sequence[Spelling], attention: FloatArray, n_start: int, log_probs: Sequence[float], n_samples: int
) -> list[TimedWord]:
    """Give words their times and probabilities.

    attention, n_start, n_samples : as `word_spans` takes them
    log_probs : of each token of the words
    """
    lengths = [len(tokens) for _, tokens in words]
    spans = word_spans(attention, n_start, lengths, n_samples)
    attended = attended_samples(attention, n_start, lengths, n_samples)
    timed: list[TimedWord] = []
    remaining = iter(log_probs)
    for (text, tokens), (start, end), furthest in zip(words, spans, attended, strict=True):
        own = list(itertools.islice(remaining, len(tokens)))
        probability = sum(map(math.exp, own)) / len(own)
        timed.append(TimedWord(text, tokens, start, end, probability, furthest, sum(own)))
    return timed
