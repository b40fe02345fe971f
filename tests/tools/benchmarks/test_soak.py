"""Slopes of memory and delay."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.tools.benchmarks.played import Shows, write_corpus
from tools.benchmarks import corpus
from tools.benchmarks.soak import measure_soak, repeat, soak_figures
from tools.benchmarks.timeline import Revision, Timeline


def an_hour(delay_s: float, growth_s_per_hour: float) -> Timeline:
    walls_s = np.arange(10.0, 3600.0, 10.0)
    revisions = [Revision(float(t), float(t - delay_s - growth_s_per_hour * t / 3600), (), 0) for t in walls_s]
    return Timeline("streamer", "soak", 3600.0, revisions, [], [(1.0, 3.0)], 360.0, 0.0, None, None, None)


def test_the_slope_is_that_behind_the_start() -> None:
    memory = [(float(t), 100.0 + min(t, 600) + 6.0 * t / 3600) for t in range(0, 3600, 60)]
    figures = soak_figures(an_hour(0.5, 0.25), memory)
    assert figures["rss_slope_mb_per_hour"] == pytest.approx(6.0)
    assert figures["delay_slope_s_per_hour"] == pytest.approx(0.25)
    assert figures["delay_p50_s"] == pytest.approx(0.5 + 0.125, abs=0.01)
    assert figures["gaps_s"] == 2.0
    assert figures["cpu_per_audio"] == pytest.approx(0.1)


def test_without_measurements_there_is_no_slope() -> None:
    figures = soak_figures(dataclasses.replace(an_hour(0.5, 0.0), revisions=[]), [])
    assert figures["rss_slope_mb_per_hour"] is None
    assert figures["delay_p50_s"] is None


def test_recordings_are_repeated() -> None:
    assert repeat([np.array([1, 2], dtype=np.float32), np.array([3], dtype=np.float32)], 5).tolist() == [1, 2, 3, 1, 2]


def test_a_system_is_soaked_and_stopped(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    recordings = [corpus.read(path) for path in corpus.find(tmp_path)]
    system = Shows("streamer")
    figures = measure_soak(system, recordings, 0.001, Console(file=io.StringIO()))
    assert figures["audio_s"] == pytest.approx(3.6)
    assert system.stopped
