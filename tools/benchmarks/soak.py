"""An hour of speech in one session: whether memory or delay grows."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import psutil
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.corpus import Recording
from tools.benchmarks.systems import StreamingSystem
from tools.benchmarks.timeline import Timeline

# How often memory is looked at.
LOOK_S = 1.0

# The first part is the start: buffers fill, allocators find their size.
START_SHARE = 0.25


def measure_soak(
    system: StreamingSystem, recordings: Sequence[Recording], hours: float, console: Console
) -> dict[str, float | None]:
    """Play recordings again and again in one session at real-time pace; print how memory and delay went.

    Raises StreamerError where the system cannot be started or fails.
    """
    samples = repeat([recording.samples for recording in recordings], round(hours * 3600 * SAMPLE_RATE))
    try:
        system.start()
        # Its processes are children of ours.
        with _Memory(psutil.Process()) as memory:
            console.print(f"{system.name}: {len(samples) / SAMPLE_RATE / 3600:.2f} h at real-time pace")
            timeline = system.stream("soak", samples)
    finally:
        system.stop()
    figures = soak_figures(timeline, memory.seen)
    table = Table("figure", "value", title=f"soak of {system.name}", title_justify="left")
    for name, value in figures.items():
        table.add_row(name, "–" if value is None else f"{value:.3f}")
    console.print(table)
    return figures


def soak_figures(timeline: Timeline, memory: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """Return how memory and delay went over a timeline.

    `memory` has (seconds since the start, MB) in order. The delay is how far what had been heard lay behind the clock
    when a revision was shown.
    """
    delays = [(r.wall_s, r.wall_s - r.audio_s) for r in timeline.revisions if r.audio_s is not None]
    return {
        "audio_s": timeline.audio_s,
        "cpu_per_audio": timeline.cpu_s / timeline.audio_s,
        "gaps_s": sum(end - start for start, end in timeline.gaps),
        "rss_first_mb": memory[0][1] if memory else None,
        "rss_last_mb": memory[-1][1] if memory else None,
        "rss_peak_mb": max((mb for _, mb in memory), default=None),
        "rss_slope_mb_per_hour": _slope_per_hour(memory),
        "delay_p50_s": float(np.median([delay for _, delay in delays])) if delays else None,
        "delay_worst_s": max((delay for _, delay in delays), default=None),
        "delay_slope_s_per_hour": _slope_per_hour(delays),
    }


def repeat(pieces: Sequence[NDArray[np.float32]], n_samples: int) -> NDArray[np.float32]:
    """Return pieces one after the other, again and again, until there are `n_samples`."""
    whole = np.concatenate(pieces)
    return np.resize(whole, n_samples)  # repeats what there is


def _slope_per_hour(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of a line through what lies behind the start; None for fewer than two points."""
    settled = [(t, value) for t, value in points if t >= START_SHARE * points[-1][0]]
    if len({t for t, _ in settled}) < 2:
        return None
    times_s, values = np.array(settled).T
    return float(np.polyfit(times_s / 3600, values, 1)[0])


class _Memory:
    """Looks at the memory of a process's children, in a thread of its own."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

        # (seconds since the start, MB of all children).
        self.seen: list[tuple[float, float]] = []

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        begin = time.monotonic()
        while not self._done.wait(LOOK_S):
            self.seen.append((time.monotonic() - begin, self._rss_mb()))

    def _rss_mb(self) -> float:
        total = 0
        for child in self._process.children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total / 2**20
