"""Alignment against openai-whisper's and a plain dynamic program."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import whisper.timing
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from streamer.constants import N_SAMPLES_PER_TOKEN
from streamer.whisper.decode.timing import MEDIAN_FILTER_WIDTH, attended_samples, dtw, smooth, word_spans

Matrix = NDArray[np.floating]

SHAPES = [(1, 1), (1, 9), (9, 1), (2, 2), (5, 40), (40, 5), (30, 200)]
COSTS = [np.random.default_rng(1).standard_normal(shape) for shape in SHAPES]


def plain_dtw(cost: Matrix) -> float:
    """Return the least cost of a path, cell by cell."""
    total = np.full((cost.shape[0] + 1, cost.shape[1] + 1), np.inf)
    total[0, 0] = 0
    for r, c in itertools.product(range(cost.shape[0]), range(cost.shape[1])):
        total[r + 1, c + 1] = cost[r, c] + min(total[r, c], total[r, c + 1], total[r + 1, c])
    return float(total[-1, -1])


def assert_is_a_path(cost: Matrix, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> None:
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[-1], columns[-1]) == (cost.shape[0] - 1, cost.shape[1] - 1)
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}


@pytest.fixture
def reference_dtw(monkeypatch: pytest.MonkeyPatch) -> Callable[[Matrix], NDArray[np.intp]]:
    """openai-whisper's function, which numba would compile for seconds."""
    monkeypatch.setattr(whisper.timing, "backtrace", whisper.timing.backtrace.py_func)
    found: Callable[[Matrix], NDArray[np.intp]] = whisper.timing.dtw_cpu.py_func
    return found


@pytest.mark.parametrize("cost", [*COSTS, np.zeros((3, 5))], ids=lambda cost: str(cost.shape))
def test_the_path_equals_openai_whispers(cost: Matrix, reference_dtw: Callable[[Matrix], NDArray[np.intp]]) -> None:
    for found, expected in zip(dtw(cost), reference_dtw(cost), strict=True):
        np.testing.assert_array_equal(found, expected)


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.integers(-1, 1)))
def test_the_path_has_the_least_cost_where_there_are_ties(cost: Matrix) -> None:
    rows, columns = dtw(cost)
    assert_is_a_path(cost, rows, columns)
    assert cost[rows, columns].sum() == plain_dtw(cost)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 100])
def test_the_median_filter_equals_openai_whispers(length: int) -> None:
    values = np.random.default_rng(2).standard_normal((3, 6, length)).astype(np.float32)
    expected = whisper.timing.median_filter(torch.from_numpy(values), MEDIAN_FILTER_WIDTH).numpy()
    np.testing.assert_array_equal(smooth(values), expected)


def diagonal(centres: list[int], n_heads: int = 2, n_positions: int = 1500) -> Matrix:
    """Return attention whose row i looks at centres[i], a few positions wide."""
    x = np.arange(n_positions)
    rows = np.exp(-0.5 * ((x[None, :] - np.array(centres)[:, None]) / 4.0) ** 2) + 1e-4
    return np.asarray(np.repeat((rows / rows.sum(axis=1, keepdims=True))[None], n_heads, axis=0), dtype=np.float32)


def test_words_are_where_the_attention_is() -> None:
    # Two tokens of the start, then the row of each text token: row 1 predicts the first text token.
    centres = [0, 20, 60, 100, 140, 180]
    spans = word_spans(diagonal(centres), 2, [1, 2, 1], n_samples=200 * N_SAMPLES_PER_TOKEN)
    assert len(spans) == 3
    # The path changes rows half way between centres.
    expected = [(0, 40), (40, 120), (120, 160)]
    for (start, end), (a, b) in zip(spans, expected, strict=True):
        assert abs(start / N_SAMPLES_PER_TOKEN - a) <= 4
        assert abs(end / N_SAMPLES_PER_TOKEN - b) <= 4


@pytest.mark.parametrize(
    ("centres", "n_samples", "last"),
    [
        # A position that the audio fills in part is not searched, nor the padding of the window.
        ([0, 20, 49, 50], 51 * N_SAMPLES_PER_TOKEN - 1, 49 * N_SAMPLES_PER_TOKEN),
        ([0, 20, 900, 1200], 50 * N_SAMPLES_PER_TOKEN - 100, 50 * N_SAMPLES_PER_TOKEN - 100),
    ],
)
def test_what_is_behind_the_audio_is_not_searched(centres: list[int], n_samples: int, last: int) -> None:
    assert max(end for _, end in word_spans(diagonal(centres), 2, [1, 1], n_samples)) <= last


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    n_samples=st.integers(0, 480_000),
    complete=st.booleans(),
)
def test_times_never_go_back_nor_leave_the_audio(seed: int, lengths: list[int], n_samples: int, complete: bool) -> None:
    random = np.random.default_rng(seed)
    attention = random.random((2, 4 + sum(lengths) - (not complete), 1500), dtype=np.float32)
    spans = word_spans(attention, 4, lengths, n_samples)
    assert len(spans) == len(lengths)
    times = [time for span in spans for time in span]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= n_samples


def test_a_word_is_as_far_away_as_the_furthest_look_of_a_row_that_predicted_it() -> None:
    # The rows of the start, then those of the text tokens; the row of the last predicts what is not here.
    centres = [0, 20, 60, 140, 100, 190]
    ends = attended_samples(diagonal(centres), 2, [1, 2, 1], n_samples=200 * N_SAMPLES_PER_TOKEN)
    assert ends == [21 * N_SAMPLES_PER_TOKEN, 141 * N_SAMPLES_PER_TOKEN, 101 * N_SAMPLES_PER_TOKEN]


def test_positions_behind_the_sound_that_get_attention_at_any_word_are_left_out() -> None:
    attention = diagonal([0, 20, 30])
    attention[..., 55] = 2 * attention.max()
    n_samples = 50 * N_SAMPLES_PER_TOKEN
    expected = [21 * N_SAMPLES_PER_TOKEN, 31 * N_SAMPLES_PER_TOKEN]
    assert attended_samples(attention, 2, [1, 1], n_samples=n_samples) == expected


def test_the_average_of_the_heads_decides_how_far_a_word_is() -> None:
    heads = np.zeros((3, 2, 1500), dtype=np.float32)
    heads[0, 0, 700] = 0.9
    heads[1:, 0, 40] = 0.5
    assert attended_samples(heads, 1, [1], n_samples=480_000) == [41 * N_SAMPLES_PER_TOKEN]
