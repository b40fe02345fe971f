"""Rounds of windows through several systems, with drivers that are scripted."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tools.benchmarks.peers.environment import Environment, PeerUnavailable
from tools.benchmarks.raw import OURS, SYSTEMS, RawSystem, measure_raw
from tools.benchmarks.windows import Window

DRIVER = "tests.tools.benchmarks.scripted_driver"


def system(model: str, environment: Environment | None = None) -> RawSystem:
    return RawSystem(DRIVER, lambda weights: Path(model), environment)


def test_systems_take_turns_and_one_that_cannot_be_had_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(Environment):
        def python(self, folder: Path) -> Path:
            raise PeerUnavailable("absent: pip could not install it")

    systems = {
        OURS: system("well"),
        "absent": system("well", Absent("absent", ())),
        "short": system("short"),
        "broken": system("breaks"),
    }
    told = io.StringIO()
    samples = np.full(3, 1e-6, dtype=np.float32)
    figures = measure_raw(
        ["base"], samples, tmp_path, Console(file=told, width=200), systems=systems, n_rounds=2, n_tokens=9
    )
    assert [(entry["system"], entry.get("n_tokens"), entry.get("reason")) for entry in figures] == [
        (OURS, 9, None),
        ("absent", None, "absent: pip could not install it"),
        ("short", None, "it sampled 8 tokens instead of 9"),
        ("broken", None, "it ended: RuntimeError: out of memory"),
    ]
    # All of 30 s, whatever was given.
    assert figures[0]["encode_s"] == pytest.approx(0.48, rel=1e-3)
    printed = told.getvalue()
    assert "base: one window of 30 s, 9 tokens" in printed
    assert "short: not measured: it sampled 8 tokens instead of 9" in printed


def test_each_system_is_told_by_its_fastest_round_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.benchmarks import raw

    played: list[str] = []

    class Scripted:
        version = "1"

        def __init__(self, name: str, totals: list[float]) -> None:
            self.name, self.totals = name, iter(totals)

        def transcribe(self) -> Window:
            played.append(self.name)
            total_s = next(self.totals)
            return Window(5, total_s, mel_s=total_s / 10, cpu_s=2 * total_s, peak_rss_mb=100 - total_s)

    drivers = {"a": Scripted("a", [0.1, 4.0, 2.0, 3.0]), "b": Scripted("b", [9.0, 1.0, 1.0, 7.0])}
    a, b = raw._take_turns(drivers, [], "tiny", 3, 5)  # type: ignore[arg-type]
    assert played == ["a", "b"] * 4
    assert (a.best_s, a.median_s, a.mel_s, a.encode_s, a.cpu_s, a.peak_rss_mb) == (2.0, 3.0, 0.2, None, 4.0, 98.0)
    assert (b.best_s, b.median_s) == (1.0, 1.0)


def test_every_system_has_a_driver_of_its_own() -> None:
    modules = [about.module for about in SYSTEMS.values()]
    assert len(set(modules)) == len(modules) == 4
    root = Path(__file__).parents[3]
    assert all((root / module.replace(".", "/")).with_suffix(".py").is_file() for module in modules)
