"""Figures of runs, and how sure they are."""

import numpy as np
import pytest
import scipy.stats

from streamer.commands.figures import interval


def test_an_interval_is_that_of_scipys_paired_bootstrap() -> None:
    random = np.random.default_rng(1)
    n_words = random.integers(5, 30, 60)
    more = random.binomial(n_words, 0.1) - random.binomial(n_words, 0.05)
    expected = scipy.stats.bootstrap(
        (more, n_words),
        lambda more, n_words, axis: more.sum(axis) / n_words.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    low, high = interval(more.tolist(), n_words.tolist())
    # A percentile of 2,000 resamples is a tenth of the standard error or so off, a fortieth of the interval.
    assert (low, high) == pytest.approx(tuple(expected), abs=(expected.high - expected.low) / 20)


def test_one_unit_has_no_interval_and_units_without_words_are_no_reason_to_fail() -> None:
    assert interval([3], [10]) == (None, None)
    assert interval([1, 2], [0, 10]) == pytest.approx((0.2, 0.3))
