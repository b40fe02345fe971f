"""Memory by graph."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.whisper.support import NANO
from tools.benchmarks import memory, memory_steps
from tools.benchmarks.corpus import Recording
from tools.benchmarks.memory import StepFailed, measure_memory, run_step
from tools.benchmarks.memory_steps import Memory, Step

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@linux
def test_a_graph_alone_is_measured_before_and_behind_its_first_call(tmp_path: Path) -> None:
    answer = run_step(Step(str(NANO), "graphs", "decoder", str(tmp_path), (30,)))
    assert {"encoder", "cross_kv", "decoder"} <= set(answer["graphs"])
    readings = answer["readings"]
    assert list(readings) == ["program", "compiled", "used"]
    assert 0 < readings["program"]["private"] < readings["compiled"]["private"]
    with pytest.raises(StepFailed, match="nowhere could not be measured: streamer"):
        run_step(Step("nowhere", "graphs", "", str(tmp_path)))


def test_the_sum_of_all_graphs_is_told_beside_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(asked: Step) -> dict[str, Any]:
        def reading(private: float) -> dict[str, float]:
            return {"private": private, "mapped": private / 2}

        if asked.what == "model":
            return {"readings": {"program": reading(40), "loaded": reading(90), "used": reading(95)}}
        kept = {"": 0.0, "encoder": 10.0, "decoder": 20.0}[asked.graph]
        readings = {"program": reading(40), "compiled": reading(60 + kept)}
        return {"readings": {**readings, "used": reading(63 + kept)}, "graphs": ["encoder", "decoder"]}

    monkeypatch.setattr(memory, "run_step", step)
    peaks = {"start": {"private": 99.0, "mapped": 9.0}, "captions": {"private": 98.0, "mapped": 9.0}}
    monkeypatch.setattr(memory, "_daemon", lambda *asked: peaks)
    monkeypatch.setattr(memory_steps.Memory, "of", classmethod(lambda cls: Memory(1.0, 1.0)))
    told = io.StringIO()
    figures = measure_memory("small", Path("model"), None, Console(file=told, width=120))  # type: ignore[arg-type]
    graphs: Any = figures["graphs"]
    assert graphs["decoder"] == {"compiled": {"private": 20, "mapped": 10}, "used": {"private": 23, "mapped": 11.5}}
    (line,) = [line for line in told.getvalue().splitlines() if "sum of these" in line]
    assert [int(cell) for cell in line.replace("│", " ").split()[3:]] == [36, 18, 30]


def test_where_the_system_does_not_tell_it_is_said(monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    def absent(cls: type[Memory], pid: object = "self") -> Memory:
        raise FileNotFoundError

    monkeypatch.setattr(Memory, "of", classmethod(absent))
    with pytest.raises(StepFailed, match="smaps_rollup, which is not there: measure on Linux"):
        measure_memory("small", Path("model"), recording, Console())


@pytest.fixture
def recording() -> Recording:
    return Recording("it", np.zeros(16, dtype=np.float32), "", (), "held", "clean", "", "", 0)
