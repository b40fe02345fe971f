"""Figures of runs, and how sure they are."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import scipy.stats

from streamer.commands.figures import Run, figures, interval, print_figures
from tests.unit.commands.support import Paper

NONE: Mapping[str, Sequence[float]] = {}


def run(text: str, offline: str | None = None, *, energy_j: float | None = 3.0, delays_s: object = NONE) -> Run:
    segments = None if offline is None else [(0.0, offline)]
    figures = {"audio_s": 2.0, "wall_s": 1.0, "cpu_s": 5.0, "energy_j": energy_j, "delays_s": delays_s}
    return Run(segments=[(0.0, text)], offline=segments, language="en", **figures)  # type: ignore[arg-type]


def test_cost_is_that_of_all_audio() -> None:
    found = figures([run("a", delays_s={"stable": [1.0, 2.0]}), run("b", delays_s={"stable": [9.0]})], [])
    expected = {"audio_s": 4.0, "wall_s": 2.0, "real_time_factor": 0.5, "cpu_per_audio": 2.5}
    expected |= {"energy_j_per_audio_s": 1.5, "stable_p50_s": 2.0, "stable_p90_s": pytest.approx(7.6), "words": 2}
    assert {name: value for name, value in found.items() if value is not None} == expected
    assert figures([run("a"), run("b", energy_j=None)], [])["energy_j_per_audio_s"] is None


def test_live_text_is_compared_with_the_offline_text() -> None:
    # 20 words of which one is exchanged, and 20 with one more, one less and one exchanged offline.
    said = [" ".join(f"{name}{k}" for k in range(20)) for name in "ab"]
    runs = [run(said[0].replace("a7", "x"), said[0]), run(f"{said[1][3:]} x", said[1].replace("b9", "x"))]
    found = figures(runs, said)
    assert (found["substitutions"], found["deletions"], found["insertions"]) == (1, 1, 1)
    assert (found["wer"], found["wer_offline"]) == pytest.approx((3 / 40, 1 / 40))
    # One word in each 20 more is wrong.
    assert (found["delta"], found["delta_low"], found["delta_high"]) == pytest.approx((1 / 20, 1 / 20, 1 / 20))
    (few, silence) = figures([run("a b", "a")], ["a b"]), figures([run("a b", "a"), run("c", "")], ["a b", ""])
    assert (few["delta"], few["delta_low"]) == (-1 / 2, None)
    assert (silence["insertions"], silence["delta"]) == (1, 0)


def test_without_offline_texts_nothing_is_compared_with_them() -> None:
    found = figures([run("a"), run("b", "b")], ["a", "b"])
    assert found["wer"] == 0
    assert found["wer_offline"] is found["delta"] is found["delta_low"] is None
    assert figures([run("a", "a")], [])["delta"] is None


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


def test_one_unit_has_no_interval_and_units_without_words_do_not_count() -> None:
    assert interval([3], [10]) == (None, None)
    assert interval([1, 2], [0, 10]) == pytest.approx((0.2, 0.3))


def test_figures_that_a_model_has_are_printed_in_their_units() -> None:
    paper = Paper()
    print_figures({"one\x1b": {"wer": 0.1234, "stable_p50_s": None}, "[two]": {"load_s": 1.25, "words": 7}}, paper)
    rows = paper.rows()
    assert rows == {"Words": ["–", "7"], "WER, %": ["12.3", "–"], "Load, s": ["–", "1.2"]}
    assert ("one " in paper.text, "[two]" in paper.text) == (True, True)
