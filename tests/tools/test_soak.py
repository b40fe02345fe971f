"""Slopes of what tools/soak.py saw."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tools import soak

RNG = np.random.default_rng(0)
HOURS = np.linspace(0, 1, 361)


@pytest.mark.parametrize(
    ("rss_mb", "grows"),
    [
        (500 + 20 * HOURS + 2 * RNG.standard_normal(361), True),  # a leak in noise
        (500 + 2 * RNG.standard_normal(361), False),
        (500 - 20 * HOURS, False),
        (np.where(HOURS < 0.09, 100, 500), False),  # the start does not count
        (np.where(HOURS < 0.4, 500, 520), False),  # a pool that filled up once
    ],
)
def test_a_leak_is_told_from_noise_and_from_a_pool_that_fills_up(
    rss_mb: "np.ndarray[tuple[int], np.dtype[np.float64]]", grows: bool, tmp_path: Path
) -> None:
    with (tmp_path / "soak.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(soak.COLUMNS)
        writer.writerows((60 * hour, rss, 300, 20, 16, 25, "1.5 2.0") for hour, rss in zip(HOURS, rss_mb, strict=True))
    assert soak.main(["--read", str(tmp_path / "soak.csv")]) == grows
