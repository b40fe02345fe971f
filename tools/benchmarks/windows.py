"""One window of 30 s after another through one system, in a process of its own.

`serve` is that process: a driver gives it what loads a system. It runs under the Python of the system, which may have
nothing but NumPy. `Driver` is the other end. They speak JSON, a line each way for every window.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]

# Of the standard vocabulary: start of transcript, English, transcribe, no timestamps; the end of text.
PROMPT = (50258, 50259, 50359, 50363)
END_OF_TEXT = 50257

# Longest time for a system to load its model, or to transcribe a window.
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Task:
    """What a driver is to load and do."""

    # Directory or file of the model, in the system's own format.
    model: str

    # 30 s of audio at 16 kHz in float32, as NumPy writes it.
    audio: str

    # Tokens to sample for each window, no more and no less.
    n_tokens: int = 100
    n_threads: int = 2

    # The system's own options, as texts.
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """What one window cost."""

    # Tokens that were sampled.
    n_tokens: int

    # Seconds by a wall clock: all of it, and its parts where the system tells them.
    total_s: float = 0.0
    mel_s: float | None = None
    encode_s: float | None = None
    decode_s: float | None = None

    # Seconds of processor time of the whole process.
    cpu_s: float = 0.0

    # The process's largest memory so far.
    peak_rss_mb: float = 0.0


Samples = NDArray[np.float32]
Transcribe = Callable[[Samples], Window]


class DriverError(Exception):
    """A driver's process ended, or said something else than was expected."""


def serve(load: Callable[[Task], tuple[str, Transcribe]]) -> None:
    """Load a system as the command line says; then transcribe the window once for each line of standard input.

    load : returns the system's version, and what transcribes a window and tells its parts
    """
    # What libraries print would get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    task = Task(**json.loads(sys.argv[1]))
    samples: Samples = np.load(task.audio)
    version, transcribe = load(task)
    print(json.dumps({"version": version}), file=answers, flush=True)
    for _ in sys.stdin:
        cpu_s, begin_s = time.process_time(), time.perf_counter()
        window = transcribe(samples)
        cost = {
            **asdict(window),
            "total_s": time.perf_counter() - begin_s,
            "cpu_s": time.process_time() - cpu_s,
            "peak_rss_mb": peak_rss_mb(),
        }
        print(json.dumps(cost), file=answers, flush=True)


def peak_rss_mb() -> float:
    """Return the largest memory that this process has had; 0 where the system does not tell, as only Linux does."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    # getrusage would count what the process that started this one had.
    kilobytes = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), "0")
    return int(kilobytes) / 1024


class Driver:
    """A driver's process, started and ready for windows."""

    def __init__(self, python: str, module: str, task: Task, environment: Mapping[str, str] | None = None) -> None:
        """Raise DriverError where it does not start."""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        self._process = subprocess.Popen(
            [python, "-m", module, json.dumps(asdict(task))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        try:
            self.version = str(self._answer()["version"])
        except DriverError:
            self.close()
            raise

    def transcribe(self) -> Window:
        """Transcribe the window once. Raises DriverError where the driver ends, or takes for ever."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("it ended") from None
        return Window(**self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        # Its pipes as well.
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            raise self._failure(f"it said {line!r:.80}" if line else "it ended") from None
        assert isinstance(answer, dict)
        return answer

    def _failure(self, what: str) -> DriverError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return DriverError(f"{what}: {lines[-1] if lines else 'without a word'}"[:300])
