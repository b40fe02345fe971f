"""Memory by graph and tensor."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from streamer.whisper.dims import ModelDimensions
from tests.whisper.support import NANO, random_checkpoint, start_runtime
from tools.benchmarks import memory, memory_steps
from tools.benchmarks.corpus import Recording
from tools.benchmarks.memory import StepFailed, measure_memory, run_step
from tools.benchmarks.memory_steps import Memory, Step, kind_of, tensors_by_kind

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@linux
def test_a_graph_alone_is_measured_before_and_behind_its_first_call(tmp_path: Path) -> None:
    answer = run_step(Step(str(NANO), "graphs", "decoder", str(tmp_path), (30,)))
    assert {"encoder", "cross_kv", "decoder", "block_decoder"} <= set(answer["graphs"])
    readings = answer["readings"]
    assert list(readings) == ["program", "compiled", "used"]
    assert 0 < readings["program"]["private"] < readings["compiled"]["private"]
    with pytest.raises(StepFailed, match="nowhere could not be measured: streamer"):
        run_step(Step("nowhere", "graphs", "", str(tmp_path)))


@linux
def test_tensors_are_found_by_kind_and_each_counts_once() -> None:
    dims = ModelDimensions(80, 1500, 64, 1, 1, 64, 448, 64, 1, 1)
    found = tensors_by_kind(start_runtime(random_checkpoint(dims), ((0, 0),)))
    # Two buffers of keys and values of 1500 positions, 64 wide, in float32; the decoder's inputs are the same memory.
    size, present = found["keys and values of windows"]
    assert size == pytest.approx(2 * 2 * 1500 * 64 * 4 / 2**20, rel=0.05)
    assert 0 < present <= size
    assert found["cached keys and values"][0] == pytest.approx(2 * 447 * 64 * 4 / 2**20, rel=0.1)
    assert kind_of("past_key_values.0.encoder.key") == kind_of("present_key_values.0.encoder.key")


def test_the_sum_of_all_graphs_is_told_beside_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(asked: Step) -> dict[str, Any]:
        def reading(private: float) -> dict[str, float]:
            return {"private": private, "mapped": private / 2}

        if asked.what == "model":
            return {
                "readings": {"program": reading(40), "loaded": reading(90), "used": reading(95)},
                "tensors": {"logits": (2.0, 1.0)},
            }
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
