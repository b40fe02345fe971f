"""Slopes of what tools/soak.py saw."""

import numpy as np
import pytest

from tools.soak import Slope, slope

HOURS = list(np.linspace(0, 1, 361))


def fitted(per_hour: float, noise: float = 0.0) -> Slope:
    rng = np.random.default_rng(0)
    values = [500.0 + per_hour * hour + noise * float(rng.standard_normal()) for hour in HOURS]
    found = slope("rss_mb", HOURS, values)
    assert found is not None
    return found


def test_a_leak_is_found_in_noise() -> None:
    found = fitted(20.0, noise=2.0)
    assert found.per_hour == pytest.approx(20.0, abs=3.0)
    assert found.grows


@pytest.mark.parametrize(("per_hour", "noise"), [(0.0, 2.0), (-20.0, 0.1), (1.0, 0.01), (0.0, 0.0)])
def test_noise_a_fall_and_a_little_are_no_growth(per_hour: float, noise: float) -> None:
    assert not fitted(per_hour, noise).grows


def test_the_start_does_not_count() -> None:
    found = slope("rss_mb", HOURS, [100.0 if hour < 0.09 else 500.0 for hour in HOURS])
    assert found is not None
    assert not found.grows


def test_a_pool_that_fills_up_once_is_no_growth() -> None:
    found = slope("rss_mb", HOURS, [500.0 if hour < 0.4 else 520.0 for hour in HOURS])
    assert found is not None
    assert found.per_hour > 10.0
    assert not found.grows


def test_too_little_is_no_line() -> None:
    assert slope("rss_mb", HOURS[:10], [1.0] * 10) is None
