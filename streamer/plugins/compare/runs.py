"""What a model makes of recordings: `streamer` in a process of its own, which is measured from outside."""

import contextlib
import logging
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec
import psutil

from streamer import log
from streamer.commands.figures import Run
from streamer.commands.measure import PeakMemory
from streamer.events import End, Final, Ready, from_json

logger = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "streamer")

# What the program writes in front of what went wrong.
_ERROR = "streamer: error: "


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate made of all recordings, as the JSON of `streamer bench` has it. None: not measured."""

    # In their order; None: it failed.
    recordings: Sequence[Run | None]

    # Why something failed; empty if nothing did.
    error: str = ""

    # Seconds until the model was there; if files are transcribed, the start of the program included.
    load_s: float | None = None

    # Mean over the recordings, in seconds from the beginning of each.
    first_text_s: float | None = None

    # Highest resident memory of the process while it transcribed, in units of 2**20 bytes.
    peak_rss_mb: float | None = None


def failed(paths: Sequence[Path], error: str) -> Runs:
    """Return what a candidate that has done nothing made of recordings."""
    return Runs(recordings=[None] * len(paths), error=error)


def transcribed(paths: Sequence[Path], environ: Mapping[str, str]) -> Runs:
    """Let `streamer transcribe` transcribe recordings, and keep what was done before it failed."""
    started_s, cpu_s = time.perf_counter(), 0.0
    runs: list[Run | None] = []
    load_s, firsts_s = None, []
    command = _streamer(environ, "transcribe", *map(str, paths), "--format", "jsonl")
    with command as (pid, output, errors), contextlib.ExitStack() as stack:
        measured, memory = psutil.Process(pid), PeakMemory(pid)
        for line in output:
            at_s = time.perf_counter()
            with contextlib.suppress(psutil.Error):  # it has ended: what was known last holds
                cpu_s = sum(measured.cpu_times()[:2])
            match from_json(line):
                case Ready():
                    if load_s is None:
                        load_s = at_s - started_s
                        stack.enter_context(memory)
                    begin_s, begin_cpu_s = at_s, cpu_s
                    finals: list[Final] = []
                    runs.append(None)
                case Final() as final:
                    finals.append(final)
                    if len(finals) == 1:
                        firsts_s.append(at_s - begin_s)
                case End() as end:
                    runs[-1] = Run(
                        segments=[(final.start, final.text) for final in finals],
                        language=finals[0].language if finals else "",
                        audio_s=end.time,
                        wall_s=at_s - begin_s,
                        cpu_s=cpu_s - begin_cpu_s,
                    )
    runs += [None] * (len(paths) - len(runs))
    error = "; ".join(errors)
    if error and None not in runs:
        logger.warning("%s", error)  # a recording ends too early, and is transcribed up to there
        error = ""
    return Runs(
        recordings=runs,
        error=error,
        load_s=load_s,
        first_text_s=statistics.mean(firsts_s) if firsts_s else None,
        peak_rss_mb=memory.peak_mb if load_s is not None else None,
    )


def played(paths: Sequence[Path], environ: Mapping[str, str]) -> Runs:
    """Let `streamer bench` play recordings at real-time pace."""
    with tempfile.TemporaryDirectory(prefix="streamer-compare-", ignore_cleanup_errors=True) as folder:
        target = Path(folder) / "figures.json"
        with _streamer(environ, "bench", *map(str, paths), "--json", str(target)) as (_, output, errors):
            for _ in output:
                pass  # its table
        return failed(paths, "; ".join(errors)) if errors else msgspec.json.decode(target.read_bytes(), type=Runs)


@contextlib.contextmanager
def _streamer(environ: Mapping[str, str], *arguments: str) -> Iterator[tuple[int, IO[bytes], list[str]]]:
    """Run a command of the program, which ends with the block; what it logs is logged here.

    Yields the number of its process, its output, and a list that has its errors behind the block.
    """
    process = subprocess.Popen(  # noqa: S603 - this very program
        [*PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=_read_log, args=(process.stderr, errors), name="log of a model", daemon=True)
    reader.start()
    try:
        with process.stdout:
            yield process.pid, process.stdout, errors
        exit_code = process.wait()
        reader.join()
        if exit_code and not errors:
            said = f"its process ended with exit code {exit_code}"
            errors.append(f"{said}: expected 0; see whether there was memory enough")
    finally:
        process.kill()  # if this one is interrupted
        process.wait()


def _read_log(stderr: IO[bytes], errors: list[str]) -> None:
    with stderr:
        for line in stderr:
            text = line.decode("utf-8", "replace").rstrip()
            if text.startswith(_ERROR):
                errors.append(text.removeprefix(_ERROR))
            else:
                log.say(text)
