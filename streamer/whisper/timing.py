"""Word times from the decoder's cross-attention, by dynamic time warping.

Source: openai-whisper's `timing.py`: normalise each alignment head over the tokens, median-filter along time, average
the heads, and find the monotonic path of least cost.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from streamer.audio.constants import N_SAMPLES_PER_TOKEN

MEDIAN_FILTER_WIDTH = 7  # encoder positions (140 ms), as in openai-whisper

FloatArray = NDArray[np.floating]
IntArray = NDArray[np.intp]


def dtw(cost: FloatArray) -> tuple[IntArray, IntArray]:
    """Find the monotonic path of least cost through a matrix, from its first to its last corner.

    cost : shape = (n_rows, n_columns)

    Returns the row and the column of each step of the path. On a tie a step along the columns is taken, then a
    diagonal one. (openai-whisper steps along the columns also where the two others tie below it, at a higher cost.)
    Cells are computed an anti-diagonal at a time: those do not depend on each other.
    """
    n_rows, n_columns = cost.shape
    # total[r + c, r]: least cost of a path to cell (r - 1, c - 1); row and column 0 are outside the matrix.
    total = np.full((n_rows + n_columns + 1, n_rows + 1), np.inf)
    trace = np.full((n_rows + n_columns + 1, n_rows + 1), 2, dtype=np.int8)
    total[0, 0] = 0
    for diagonal in range(2, n_rows + n_columns + 1):
        r = np.arange(max(1, diagonal - n_columns), min(n_rows, diagonal - 1) + 1)
        both = total[diagonal - 2, r - 1]
        down = total[diagonal - 1, r - 1]
        right = total[diagonal - 1, r]
        step = np.where(right <= np.minimum(both, down), 2, np.where(down < both, 1, 0))
        trace[diagonal, r] = step
        total[diagonal, r] = cost[r - 1, diagonal - r - 1] + np.choose(step, (both, down, right))

    path: list[tuple[int, int]] = []
    row, column = n_rows, n_columns
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step_back = 1 if column == 0 else 2 if row == 0 else trace[row + column, row]
        row -= step_back != 2
        column -= step_back != 1
    steps = np.array(path[::-1], dtype=np.intp)
    return steps[:, 0], steps[:, 1]


def smooth(weights: FloatArray) -> FloatArray:
    """Return weights, shape (n_heads, n_rows, n_positions), median-filtered along the positions.

    The ends are mirrored, as in openai-whisper; fewer positions than half a filter are left as they are.
    """
    if weights.shape[-1] <= MEDIAN_FILTER_WIDTH // 2:
        return weights
    smoothed: FloatArray = median_filter(weights, size=(1, 1, MEDIAN_FILTER_WIDTH), mode="mirror")
    return smoothed


def word_spans(
    attention: FloatArray, n_prompt: int, word_lengths: Sequence[int], n_samples: int
) -> list[tuple[int, int]]:
    """Find where each word begins and ends.

    attention : shape = (n_heads, n_rows, n_audio_ctx)
        The alignment heads' weights for every token fed to the decoder from the start of the transcript on. Row i
        is where the decoder looked when it had token i and predicted token i + 1. The row of the last text token tells
        where the last word ends; without it the last word ends with the audio. Rows behind it, such as that of the end
        of text, only take part in the normalisation.
    n_prompt
        How many of the rows belong to tokens before the first text token.
    word_lengths
        Tokens of each word.
    n_samples
        Length of the audio; the window's padding is not searched.

    Returns first and last sample of each word, counted from the start of the window, monotonic.
    """
    if not word_lengths:
        return []
    n_positions = max(1, min(attention.shape[-1], n_samples // N_SAMPLES_PER_TOKEN))
    weights = attention[:, :, :n_positions].astype(np.float64)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-12)
    deviation = weights.std(axis=-2, keepdims=True)
    weights = (weights - weights.mean(axis=-2, keepdims=True)) / np.maximum(deviation, 1e-12)
    rows, columns = dtw(-smooth(weights).mean(axis=0)[n_prompt - 1 : n_prompt + sum(word_lengths)])
    # Where the path enters each row, and the end of the audio behind the last.
    first = columns[np.searchsorted(rows, np.arange(rows[-1] + 1))] * N_SAMPLES_PER_TOKEN
    first = np.minimum(np.append(first, n_samples), n_samples)
    bounds = np.minimum(np.cumsum([0, *word_lengths]), len(first) - 1)
    return [(int(a), int(b)) for a, b in itertools.pairwise(first[bounds])]
