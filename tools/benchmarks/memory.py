"""Memory of a model by stage and graph, and of the daemon that captions with it.

What a graph costs is read with that graph alone, so that the sum of all is more than they take together where they
share weights. All graphs come from the cache, as at every start of the daemon but the first.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from tools.benchmarks.corpus import Recording
from tools.benchmarks.memory_steps import Memory, Step
from tools.benchmarks.systems import Streamer

ROOT = Path(__file__).parents[2]

STEP_TIMEOUT_S = 900.0  # a large model may compile for minutes
LOOK_S = 0.05  # between two looks at the daemon
CAPTIONED_S = 20.0  # of the recording: long enough for windows of all lengths


class StepFailed(StreamerError):  # noqa: N818 - what happened to it, not a fault of ours
    """A step ended without an answer; the message holds its last line."""

    code = "step_failed"


def measure_memory(
    name: str, model: Path, recording: Recording, console: Console, *, windows: str = "", flags: Sequence[str] = ()
) -> dict[str, object]:
    """Measure a directory of saved graphs, and print what each part takes; return the figures.

    name : what people call the model
    windows : of live captions, as `streamer run --windows` takes them; empty: the model's own
    flags : more of `streamer run`

    Raises StepFailed where the model does not load, or the system does not tell what memory processes have.
    """
    try:
        Memory.of()
    except OSError:
        raise StepFailed("memory is read from /proc/self/smaps_rollup, which is not there: measure on Linux") from None
    windows_s = tuple(map(int, windows.split(","))) if windows else None
    with tempfile.TemporaryDirectory() as cache_dir:

        def do(what: str, graph: str = "") -> dict[str, Any]:
            return run_step(Step(str(model), what, graph, cache_dir, windows_s))

        do("graphs")  # fills the cache
        none = do("graphs")
        graphs = {}
        for graph in none["graphs"]:
            alone = do("graphs", graph)["readings"]
            base = none["readings"]["compiled"]
            graphs[graph] = {done: _difference(alone[done], base) for done in ("compiled", "used")}
        whole = do("model")
    readings = {"no graph": none["readings"]["compiled"], **whole["readings"]}
    figures: dict[str, object] = {"model": name, "windows": windows, "readings": readings, "graphs": graphs}
    figures["daemon"] = _daemon(model, recording, windows, flags)
    _show(figures, console)
    return figures


def run_step(step: Step) -> dict[str, Any]:
    """Do a step in a process of its own. Raises StepFailed."""
    command = [sys.executable, "-m", "tools.benchmarks.memory_steps", json.dumps(asdict(step))]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=STEP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"{step.model} was not measured within {STEP_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise StepFailed(f"{step.model} could not be measured: {last[0]:.300}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _daemon(model: Path, recording: Recording, windows: str, flags: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the largest memory of a daemon until it is ready, and while it captions a recording."""
    command = ["--model", str(model), *(["--windows", windows] if windows else []), *flags]
    daemon = Streamer(command)
    try:
        daemon.start()  # the next one finds its graphs in the cache
        daemon.stop()
        with peak_of_children() as start:
            daemon.start()
        with peak_of_children() as captions:
            daemon.stream(recording.name, recording.samples[: round(CAPTIONED_S * SAMPLE_RATE)])
    finally:
        daemon.stop()
    return {"start": asdict(start()), "captions": asdict(captions())}


@contextlib.contextmanager
def peak_of_children() -> Iterator[Callable[[], Memory]]:
    """Watch all processes that this one has started; what is yielded tells their memory when it was largest."""
    peak = [0.0, 0.0]
    left = threading.Event()

    def watch() -> None:
        while not left.is_set():
            private = mapped = 0.0
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(OSError, KeyError):  # it has just ended
                    memory = Memory.of(child.pid)
                    private, mapped = private + memory.private, mapped + memory.mapped
            if private + mapped > sum(peak):
                peak[:] = [private, mapped]
            time.sleep(LOOK_S)

    thread = threading.Thread(target=watch, name="memory", daemon=True)
    thread.start()
    try:
        yield lambda: Memory(*peak)
    finally:
        left.set()
        thread.join()


def _difference(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {kind: one[kind] - other[kind] for kind in one}


def _sum(memories: Iterable[dict[str, float]]) -> dict[str, float]:
    told = list(memories)
    return {kind: sum(memory[kind] for memory in told) for kind in ("private", "mapped")}


def _show(figures: dict[str, Any], console: Console) -> None:
    columns = ("MB of 2^20 bytes", "private", "mapped files", "before its first call: private")
    table = Table(*columns, title=f"{figures['model']}: memory, all graphs from the cache", title_justify="left")

    def row(label: str, memory: dict[str, float], before: dict[str, float] | None = None) -> None:
        cells = [memory["private"], memory["mapped"], *([before["private"]] if before else [])]
        table.add_row(label, *(f"{value:.0f}" for value in cells))

    readings = figures["readings"]
    row("program, before a model is loaded", readings["program"])
    row("model read, OpenVINO at work, no graph kept", readings["no graph"])
    table.add_section()
    for graph, costs in figures["graphs"].items():
        row(f"{graph}, alone", costs["used"], costs["compiled"])
    row("sum of these", *(_sum(costs[done] for costs in figures["graphs"].values()) for done in ("used", "compiled")))
    table.add_section()
    row("model loaded and checked", readings["loaded"])
    row("and windows of all lengths decoded", readings["used"])
    row("daemon, largest: starting, with some speech", figures["daemon"]["start"])
    row("daemon, largest: captioning", figures["daemon"]["captions"])
    console.print(table)
