"""Speed of one window of 30 s from audio to a fixed number of tokens, beside other programs, 8 bits against 8 bits.

Every system runs in a process of its own with as many threads as the others, and they take turns: what else the machine
does meets all of them. Greedy, without timestamps, without a second try; the end of text is forbidden, so that each
samples exactly as many tokens as the others.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from streamer.audio.constants import N_SAMPLES
from tools.benchmarks.model_files import ModelFiles
from tools.benchmarks.peers.environment import Environment, PeerUnavailable, variables_of_peer
from tools.benchmarks.windows import Driver, DriverError, Task, Window

OURS = "streamer"


@dataclass(frozen=True, slots=True)
class RawSystem:
    """A system, with the module that drives it and the model's files that it takes."""

    module: str
    model: Callable[[ModelFiles], Path]

    # What it is installed in; None: our own interpreter.
    environment: Environment | None = None

    def python(self, folder: Path) -> str:
        """Return its interpreter. Raises PeerUnavailable where it cannot be installed."""
        return sys.executable if self.environment is None else str(self.environment.python(folder))


SYSTEMS = {
    OURS: RawSystem("tools.benchmarks.ours", ModelFiles.streamer),
    "faster-whisper": RawSystem(
        "tools.benchmarks.peers.faster_whisper",
        ModelFiles.ctranslate2,
        Environment("faster-whisper", (("faster-whisper==1.2.1", "ctranslate2==4.8.5"),)),
    ),
    "openvino-genai": RawSystem(
        "tools.benchmarks.peers.openvino_genai",
        ModelFiles.openvino_genai,
        Environment("openvino-genai", (("openvino-genai==2026.4.1.0", "numpy"),)),
    ),
    "pywhispercpp": RawSystem(
        "tools.benchmarks.peers.pywhispercpp",
        ModelFiles.whisper_cpp,
        Environment("pywhispercpp", (("pywhispercpp==1.5.1",),)),
    ),
}


@dataclass(frozen=True, slots=True)
class RawResult:
    """What a system gave over all rounds; seconds for one window of 30 s."""

    system: str
    version: str
    model: str
    n_tokens: int

    # Fastest and median round.
    best_s: float
    median_s: float

    # Of the parts that the system tells, each its own fastest round.
    mel_s: float | None
    encode_s: float | None
    decode_s: float | None

    # Least processor time of a round.
    cpu_s: float
    peak_rss_mb: float


@dataclass(frozen=True, slots=True)
class Missing:
    """A system that could not be measured, and why."""

    system: str
    model: str
    reason: str


def measure_raw(
    models: Sequence[str],
    samples: NDArray[np.float32],
    folder: Path,
    console: Console,
    *,
    systems: Mapping[str, RawSystem] = SYSTEMS,
    n_rounds: int = 5,
    n_tokens: int = 100,
    n_threads: int = 2,
) -> list[dict[str, object]]:
    """Measure all systems on each model and print a table for each; return the figures.

    models : of `model_files.NAMES`
    samples : shape = (n,)
        What is transcribed, repeated or cut to 30 s.
    folder : where the peers' environments are
    """
    figures: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        audio = Path(temporary) / "window.npy"
        np.save(audio, np.resize(samples, N_SAMPLES).astype(np.float32))
        for name in models:
            weights = ModelFiles(name, folder)
            console.print(f"{name}: preparing {len(systems)} systems …", markup=False, highlight=False)
            with ExitStack() as stack:
                drivers: dict[str, Driver] = {}
                missing: list[Missing] = []
                for system, about in systems.items():
                    try:
                        task = Task(str(about.model(weights)), str(audio), n_tokens, n_threads)
                        driver = Driver(about.python(folder), about.module, task, _variables(about, n_threads))
                        drivers[system] = stack.enter_context(closing(driver))
                    except (PeerUnavailable, DriverError) as error:
                        missing.append(Missing(system, name, str(error)))
                results = _take_turns(drivers, missing, name, n_rounds, n_tokens)
            _show(name, results, missing, console)
            figures += [*map(asdict, results), *map(asdict, missing)]
    return figures


def _take_turns(
    drivers: dict[str, Driver], missing: list[Missing], model: str, n_rounds: int, n_tokens: int
) -> list[RawResult]:
    """Have each system transcribe once to warm up, then once a round; those that fail go to the missing."""
    windows: dict[str, list[Window]] = {system: [] for system in drivers}
    for _ in range(1 + n_rounds):
        for system, driver in list(drivers.items()):
            try:
                window = driver.transcribe()
                if window.n_tokens != n_tokens:
                    raise DriverError(f"it sampled {window.n_tokens} tokens instead of {n_tokens}")
                windows[system].append(window)
            except DriverError as error:
                missing.append(Missing(system, model, str(error)))
                del drivers[system]
    return [_result(system, driver.version, model, windows[system][1:]) for system, driver in drivers.items()]


def _result(system: str, version: str, model: str, windows: Sequence[Window]) -> RawResult:
    def fastest(part: str) -> float | None:
        told = [value for window in windows if (value := getattr(window, part)) is not None]
        return min(told, default=None)

    return RawResult(
        system=system,
        version=version,
        model=model,
        n_tokens=windows[0].n_tokens,
        best_s=min(window.total_s for window in windows),
        median_s=statistics.median(window.total_s for window in windows),
        mel_s=fastest("mel_s"),
        encode_s=fastest("encode_s"),
        decode_s=fastest("decode_s"),
        cpu_s=min(window.cpu_s for window in windows),
        peak_rss_mb=max(window.peak_rss_mb for window in windows),
    )


def _variables(about: RawSystem, n_threads: int) -> dict[str, str]:
    """Return the environment variables of a driver."""
    threads = {"OMP_NUM_THREADS": str(n_threads)}
    return variables_of_peer(threads) if about.environment is not None else {**os.environ, **threads}


def _show(model: str, results: Sequence[RawResult], missing: Sequence[Missing], console: Console) -> None:
    n_tokens = results[0].n_tokens if results else 0
    columns = ("system", "best s", "median s", "of ours", "mel s", "encoder s", "decoder s", "CPU s", "peak MB")
    table = Table(*columns, title=f"{model}: one window of 30 s, {n_tokens} tokens, weights of 8 bits")
    ours = next((result.best_s for result in results if result.system == OURS), None)
    for result in results:
        table.add_row(
            f"{result.system} {result.version}",
            f"{result.best_s:.3f}",
            f"{result.median_s:.3f}",
            "-" if ours is None else f"{result.best_s / ours:.2f}",
            *("-" if part is None else f"{part:.3f}" for part in (result.mel_s, result.encode_s, result.decode_s)),
            f"{result.cpu_s:.2f}",
            f"{result.peak_rss_mb:.0f}",
        )
    console.print(table)
    for absent in missing:
        console.print(f"{absent.system}: not measured: {absent.reason}", markup=False, highlight=False)
