"""Figures of runs: words as they compare, their delays, errors and how sure they are, cost and energy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from streamer.commands.energy import EnergyMeter
from streamer.commands.figures import Run, figures, interval, print_figures
from streamer.commands.words import word_delays, words
from streamer.events import Event, Final
from tests.builders import final, partial, timed_words
from tests.unit.commands.support import Paper

NONE: Mapping[str, Sequence[float]] = {}


def run(text: str, offline: str | None = None, *, energy_j: float | None = 3.0, delays_s: object = NONE) -> Run:
    segments = None if offline is None else [(0.0, offline)]
    figures = {"audio_s": 2.0, "wall_s": 1.0, "cpu_s": 5.0, "energy_j": energy_j, "delays_s": delays_s}
    return Run(segments=[(0.0, text)], offline=segments, language="en", **figures)  # type: ignore[arg-type]


def test_cost_is_that_of_all_audio() -> None:
    found = figures([run("a", delays_s={"stable": [1.0, 2.0]}), run("b", delays_s={"stable": [9.0]})], [])
    expected: dict[str, object] = {"audio_s": 4.0, "wall_s": 2.0, "real_time_factor": 0.5, "cpu_per_audio": 2.5}
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


def test_words_compare_without_case_and_punctuation_and_are_shown_with_both() -> None:
    found = words([(1.0, "“Don’t,” she said: well-known"), (3.0, "..."), (5.0, "漢字とGPU。")])
    assert [word.compared for word in found] == ["don't", "she", "said", "well", "known", "漢", "字", "と", "gpu"]
    assert [word.shown for word in found[:5]] == ["“Don’t,”", "she", "said:", "well-", "known"]
    assert [word.start_s for word in found] == [1.0, None, None, None, None, 5.0, None, None, None]


def final_of(*spoken: tuple[str, float, float]) -> Final:
    words = timed_words(*((f" {word}", start, end) for word, start, end in spoken))
    return final(" ".join(word for word, _, _ in spoken), end=5.0, words=words)


GREETING: list[tuple[float, Event]] = [
    (1.6, partial("God", 0)),
    (2.1, partial("Good moaning", 4)),
    (2.9, partial("Good morning. Bye", 13)),
    (4.0, final_of(("Good", 1.0, 1.4), ("morning.", 1.4, 2.0))),
    (4.9, partial("Bye", 0)),
    (5.6, final_of(("Bye!", 4.0, 4.5))),
]


def test_delays_run_from_the_end_of_each_word() -> None:
    found = word_delays(GREETING)
    assert found["stable"] == pytest.approx([2.1 - 1.4, 2.9 - 2.0, 5.6 - 4.5])
    # What a text shows behind the words of its final stands at its place, too.
    assert found["first_seen"] == pytest.approx([2.1 - 1.4, 2.9 - 2.0, 2.9 - 4.5])
    # Of words before a pause, and of the last.
    assert found["finalisation"] == pytest.approx([2.9 - 2.0, 5.6 - 4.5])


def test_characters_are_the_words_of_scripts_without_spaces() -> None:
    events: list[tuple[float, Event]] = [(1.0, partial("漢", 1)), (2.0, final_of(("漢字", 0.5, 1.0)))]
    assert word_delays(events)["stable"] == pytest.approx([0.0, 1.0])


def test_without_words_there_are_no_delays() -> None:
    found = word_delays([(1.0, partial("Uh", 0)), (2.0, final_of())])
    assert found == {"first_seen": [], "stable": [], "finalisation": []}


def write_zone(folder: Path, name: str, energy_uj: int) -> Path:
    folder.mkdir(parents=True)
    for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", 1_000_000)):
        (folder / file).write_text(f"{value}\n", encoding="utf-8")
    return folder / "energy_uj"


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    """The counters of the packages of a machine with two."""
    # In a package, the same once more, and the whole machine.
    write_zone(tmp_path / "intel-rapl:0:0", "core", 500_000)
    write_zone(tmp_path / "intel-rapl-mmio:0", "package-0", 900_000)
    write_zone(tmp_path / "intel-rapl:2", "psys", 900_000)
    return [write_zone(tmp_path / f"intel-rapl:{k}", f"package-{k}", 900_000) for k in range(2)]


def test_packages_count_once_and_a_counter_that_begins_anew_goes_on(tmp_path: Path, packages: list[Path]) -> None:
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0
    for path in tmp_path.glob("*/energy_uj"):
        path.write_text("950000\n", encoding="utf-8")
    assert meter.joules() == pytest.approx(0.1)
    for value, more_j in (("50000\n", 0.1), ("990000\n", 0.94), ("20000\n", 0.03)):
        before_j = meter.joules()
        packages[0].write_text(value, encoding="utf-8")
        assert meter.joules() == pytest.approx((before_j or 0) + more_j)


def test_a_machine_that_reports_no_energy_or_a_counter_that_goes_away_has_no_figure(
    tmp_path: Path, packages: list[Path]
) -> None:
    assert EnergyMeter(tmp_path / "missing").joules() is None
    meter = EnergyMeter(tmp_path)
    for text in ("broken", "950000"):
        packages[1].write_text(text, encoding="utf-8")
        assert meter.joules() is None
    packages[1].unlink()  # as one that only root may read
    assert EnergyMeter(tmp_path).joules() is None
