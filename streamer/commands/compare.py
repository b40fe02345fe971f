"""`streamer compare`: recordings through several models or settings.

Each has a process of its own, one after the other, so that its memory is its own and the others take none of its time.
"""

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import psutil
from rich.console import Console

from streamer import log
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.sources.file import Recording
from streamer.bench.compare import Candidate, Run, Runs, check_reference, compare, parse_candidates
from streamer.bench.compare_table import print_comparison
from streamer.bench.figures import Figures, pool
from streamer.commands.bench import play, progress
from streamer.commands.files import check_recordings, check_target, opened, read_spoken
from streamer.commands.loading import load
from streamer.commands.progress import show_progress
from streamer.errors import PeerError, StreamerError, UsageError
from streamer.events import Event, Final
from streamer.live.decoder import make_engine
from streamer.settings.apply import resolve_decoding
from streamer.settings.check import check_options, check_options_of_model
from streamer.settings.table import Settings
from streamer.transcribe import transcribe
from streamer.whisper.locate import find_or_pull
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

# Between two looks at the memory.
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do."""

    name: str
    settings: Settings
    paths: Sequence[str]
    streaming: bool


def compare_models(
    settings_of: Callable[[Mapping[str, str]], Settings],
    paths: Sequence[Path],
    *,
    models: Sequence[str],
    references: Sequence[Path] = (),
    streaming: bool = False,
    format: str = "table",
    output: Path | None = None,
    console: Console,
) -> int:
    """Compare models over recordings, and print or write what came of it.

    settings_of : what the settings are with some of a candidate's own
    references : files with what is said in each of the recordings; or none
    streaming : whether they are played at real-time pace, as live captions

    Returns the exit code: 1 where a model could not transcribe everything. Raises StreamerError where nothing can be.
    """
    texts = _check(paths, references, output)
    candidates = parse_candidates(models)
    jobs = [_job(candidate, settings_of, paths, streaming=streaming) for candidate in candidates]
    # Before anything is measured: a slip in the last name should not cost the time of the others.
    unreached = {job.name: error for job in jobs if (error := _pull(job.settings.model.name))}
    found = []
    for job in jobs:
        if job.name in unreached:
            found.append(Runs(name=job.name, runs=[Run(error=unreached[job.name])] * len(paths)))
        else:
            found.append(measure_apart(job))
    comparison = compare([path.name for path in paths], texts, found)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(opened(output))
        if format == "json":
            stream.write(comparison.to_json())
        else:
            print_comparison(comparison, Console(file=stream, width=console.width) if output else console)
    return 1 if comparison.failed else 0


def measure_apart(job: Job) -> Runs:
    """Measure in another process. What it did before it failed is kept."""
    command = [sys.executable, "-I", "-c", _CHILD, msgspec.json.encode(sys.path).decode()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - this very program
    found = Runs(name=job.name, runs=[])
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin, contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(job))
        for line in process.stdout:
            found = msgspec.json.decode(line, type=Runs)
        exit_code = process.wait()
    finally:
        process.kill()  # where this one is interrupted
        process.wait()
        process.stdout.close()
    missing = len(job.paths) - len(found.runs)
    error = f"its process ended with exit code {exit_code}: expected 0; see whether there was memory enough"
    found.runs += [Run(error=error)] * missing
    return found


_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\nfrom streamer.commands.compare import answer\nanswer()"
)


def answer() -> None:
    """Do the job on standard input; write what is measured so far to standard output, a line a recording."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with os.fdopen(os.dup(1), "wb") as stdout:
        os.dup2(2, 1)  # what a library prints is no answer

        def tell(runs: Runs) -> None:
            stdout.write(msgspec.json.encode(runs) + b"\n")
            stdout.flush()

        # The parent was interrupted, too, and says so.
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            log.configure(job.settings.log)
            measure(job, tell)
            log.close()


def measure(job: Job, tell: Callable[[Runs], None]) -> None:
    """Transcribe the recordings of a job; `tell` is told what is known, after each of them."""
    settings = job.settings
    found = Runs(name=job.name, runs=[])
    begin_s = time.perf_counter()
    try:
        model = load(settings.model, n_beams=settings.decoding.beam_size, live=job.streaming)
        check_options_of_model(settings.decoding, model)
        found.load_s = time.perf_counter() - begin_s
        hear = _Live(settings, model) if job.streaming else _Offline(settings, model)
    except StreamerError as error:
        found.runs = [Run(error=str(error))] * len(job.paths)
        tell(found)
        return
    with contextlib.closing(hear), _PeakMemory() as memory:
        for path in job.paths:
            try:
                found.runs.append(hear.run(Path(path)))
            except StreamerError as error:
                found.runs.append(Run(error=str(error)))
            found.peak_rss_mb, found.delays = memory.peak_mb, hear.delays()
            tell(found)


class _Offline:
    """Transcribes as openai-whisper does."""

    def __init__(self, settings: Settings, model: WhisperModel) -> None:
        self._model = model
        self._decoding = resolve_decoding(settings.decoding, model)

    def run(self, path: Path) -> Run:
        recording = Recording(path)
        logger.info("%s transcribes %s", self._model.name, path)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        first_text_s = None
        finals = []
        for final in transcribe(self._model, recording.read(), self._decoding):
            if first_text_s is None:
                first_text_s = time.perf_counter() - begin_s
            finals.append(final)
        if recording.truncated is not None:
            logger.warning("%s", recording.truncated)
        return _run(
            finals,
            audio_s=recording.n_samples / SAMPLE_RATE,
            first_text_s=first_text_s,
            wall_s=time.perf_counter() - begin_s,
            cpu_s=time.process_time() - cpu_s,
        )

    def delays(self) -> dict[str, float | None]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


class _Live:
    """Transcribes as live captions are made, at real-time pace."""

    def __init__(self, settings: Settings, model: WhisperModel) -> None:
        self._settings = settings
        self._model = model
        self._engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
        self._engine.start()
        self._figures: list[Figures] = []

    def run(self, path: Path) -> Run:
        finals: list[Final] = []

        def keep(event: Event) -> None:
            if isinstance(event, Final) and event.text:
                finals.append(event)

        with progress(path) as on_progress:
            played = play(path, self._settings, self._model, self._engine, on_progress, keep)
        figures = played.figures()
        self._figures.append(figures)
        return _run(finals, audio_s=figures.audio_s, cpu_s=figures.cpu_s)

    def delays(self) -> dict[str, float | None]:
        summary = pool(self._figures).summary() if self._figures else {}
        names = ("first_seen_p50_s", "stable_p50_s", "stable_p90_s", "finalisation_p50_s")
        return {name: summary.get(name) for name in names}

    def close(self) -> None:
        self._engine.stop()


def _run(finals: Sequence[Final], **measured: float | None) -> Run:
    language = finals[0].language if finals else ""
    return Run(segments=[(final.start, final.text) for final in finals], language=language, **measured)  # type: ignore[arg-type]


class _PeakMemory:
    """The most memory that this process has resident, from where the block is entered."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._peak_bytes = 0

    @property
    def peak_mb(self) -> float:
        """In units of 2**20 bytes."""
        return self._peak_bytes / 2**20

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._left.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self._me.memory_info().rss)


def _check(paths: Sequence[Path], references: Sequence[Path], output: Path | None) -> list[str]:
    """Return the references' texts. Raises UsageError or AudioFileError for what can be seen before anything is run."""
    check_recordings(paths)
    check_target(output, "--output")
    if len(references) not in (0, len(paths)):
        raise UsageError(
            f"{len(references)} references for {len(paths)} recordings: expected one for each, in their order, or none"
        )
    return [check_reference(read_spoken(path), str(path)) for path in references]


def _job(
    candidate: Candidate,
    settings_of: Callable[[Mapping[str, str]], Settings],
    paths: Sequence[Path],
    *,
    streaming: bool,
) -> Job:
    """Return what the process of a candidate is to do. Raises UsageError where its settings cannot be."""
    try:
        settings = settings_of(candidate.settings)
        check_options(settings, streaming=streaming)
    except UsageError as error:
        raise UsageError(f"{candidate.name}: {error}") from None
    if settings.decoding.task == "both":
        raise UsageError("task is both, and one text of each model is compared: expected transcribe or translate")
    return Job(candidate.name, settings, [str(path.absolute()) for path in paths], streaming)


def _pull(name: str) -> str:
    """See that a model is here; return why it cannot be fetched, or nothing. Raises ModelError: there is none."""
    try:
        with show_progress(name) as shown:
            find_or_pull(name, shown.fetched)
    except PeerError as error:
        return str(error)
    return ""
