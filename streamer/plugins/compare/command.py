"""`streamer compare`: recordings through several models or settings.

Each has a process of its own, one after the other, so that its memory is its own and the others take none of its time.
"""

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from streamer import log
from streamer.audio.sources.file import Recording
from streamer.bench.compare import Run, Runs, compare, parse_candidates, words
from streamer.bench.compare_table import print_comparison
from streamer.check import check_options
from streamer.commands.apart import apart
from streamer.commands.bench import LiveCaptions, PeakMemory
from streamer.commands.files import check_recordings, check_target, opened, read_spoken
from streamer.commands.invocation import Invocation
from streamer.constants import SAMPLE_RATE
from streamer.errors import PeerError, StreamerError, UsageError
from streamer.extras import requires
from streamer.offline import transcribe
from streamer.settings.table import Settings
from streamer.setup.loading import load_chosen
from streamer.setup.progress import show_progress
from streamer.whisper.locate import find_or_pull
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import resolve_decoding

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a process is to do."""

    name: str
    settings: Settings
    paths: Sequence[str]
    streaming: bool


def compare_models(
    invocation: Invocation,
    files: Sequence[Path],
    *,
    models: Sequence[str],
    references: Sequence[Path] | None,
    streaming: bool,
    format: str,
    output: Path | None,
    console: Console,
) -> int:
    """Compare models over recordings, and print or write the comparison.

    references : files with what is said in each of the recordings; or None
    streaming : whether they are played at real-time pace, as live captions

    Returns the exit code: 1 if a model could not transcribe everything. Raises StreamerError if none could.
    """
    requires("rapidfuzz", extra="compare", purpose="streamer compare")
    texts = _check(files, references or (), output)
    jobs = _jobs(models, invocation.load, files, streaming=streaming)
    # Before anything is measured: a slip in the last name should not cost the time of the others.
    unreached = {job.name: error for job in jobs if (error := _pull(job.settings.model.name))}
    found = []
    for job in jobs:
        if job.name in unreached:
            found.append(Runs(name=job.name, runs=[Run(error=unreached[job.name])] * len(files)))
        else:
            found.append(measure_apart(job))
    comparison = compare([path.name for path in files], texts, found)
    with opened(output) as stream:
        if format == "json":
            stream.write(comparison.to_json())
        else:
            print_comparison(comparison, Console(file=stream, width=console.width) if output else console)
    return 1 if comparison.failed else 0


def measure_apart(job: Measurement) -> Runs:
    """Do a job in another process. What it did before it failed is kept."""
    command = apart("streamer.plugins.compare.command:answer")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
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
        process.kill()  # if this one is interrupted
        process.wait()
        process.stdout.close()
    missing = len(job.paths) - len(found.runs)
    error = f"its process ended with exit code {exit_code}: expected 0; see whether there was memory enough"
    found.runs += [Run(error=error)] * missing
    return found


def answer() -> None:
    """Do the job on standard input; write what is measured so far to standard output, a line a recording."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Measurement)
    with os.fdopen(os.dup(1), "wb") as stdout:
        os.dup2(2, 1)  # what a library prints is no answer

        def report(runs: Runs) -> None:
            stdout.write(msgspec.json.encode(runs) + b"\n")
            stdout.flush()

        # The parent was interrupted, too, and says so.
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            log.configure(job.settings.log)
            measure(job, report)
            log.close()


def measure(job: Measurement, report: Callable[[Runs], None]) -> None:
    """Transcribe the recordings of a job; `report` is called with what is known, after each of them."""
    found = Runs(name=job.name, runs=[])
    begin_s = time.perf_counter()
    try:
        settings, model = load_chosen(job.settings, live=job.streaming)
        found.load_s = time.perf_counter() - begin_s
        live = LiveCaptions(settings, model) if job.streaming else None
    except StreamerError as error:
        found.runs = [Run(error=str(error))] * len(job.paths)
        report(found)
        return
    with live or contextlib.nullcontext(), PeakMemory() as memory:
        for path in map(Path, job.paths):
            try:
                found.runs.append(live.run(path) if live else _transcribe(path, settings, model))
            except StreamerError as error:
                found.runs.append(Run(error=str(error)))
            found.peak_rss_mb = memory.peak_mb
            report(found)


def _transcribe(path: Path, settings: Settings, model: WhisperModel) -> Run:
    """Transcribe a recording as openai-whisper does. Raises StreamerError."""
    decoding = resolve_decoding(settings.decoding, model)
    logger.info("%s transcribes %s", model.name, path)
    recording = Recording(path)
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    first_text_s = None
    finals = []
    for final in transcribe(model, recording.read(), decoding):
        if first_text_s is None:
            first_text_s = time.perf_counter() - begin_s
        finals.append(final)
    if recording.truncated is not None:
        logger.warning("%s", recording.truncated)
    return Run(
        segments=[(final.start, final.text) for final in finals],
        language=finals[0].language if finals else "",
        audio_s=recording.n_samples / SAMPLE_RATE,
        first_text_s=first_text_s,
        wall_s=time.perf_counter() - begin_s,
        cpu_s=time.process_time() - cpu_s,
    )


def _check(paths: Sequence[Path], references: Sequence[Path], output: Path | None) -> list[str]:
    """Return the references' texts. Raises UsageError or AudioFileError for what can be seen before anything is run."""
    check_recordings(paths)
    check_target(output, "--output")
    if len(references) not in (0, len(paths)):
        raise UsageError(
            f"{len(references)} references for {len(paths)} recordings: expected one for each, in their order, or none"
        )
    texts = list(map(read_spoken, references))
    for path, text in zip(references, texts, strict=True):
        if not words([(0.0, text)]):
            raise UsageError(f"{path} has no words: expected what is said in the recording, as plain text")
    return texts


def _jobs(
    models: Sequence[str],
    settings_of: Callable[[Mapping[str, str]], Settings],
    paths: Sequence[Path],
    *,
    streaming: bool,
) -> list[Measurement]:
    """Return what the process of each candidate is to do. Raises UsageError if the settings of one are wrong."""
    jobs = []
    for name, own in parse_candidates(models).items():
        try:
            settings = settings_of(own)
            check_options(settings, streaming=streaming)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
        if settings.decoding.task == "both":
            raise UsageError("task is both, and one text of each model is compared: expected transcribe or translate")
        jobs.append(Measurement(name, settings, [str(path.absolute()) for path in paths], streaming))
    return jobs


def _pull(name: str) -> str:
    """Fetch a model unless it is here; return why that fails, or an empty text. Raises ModelError for unknown names."""
    try:
        with show_progress(name) as shown:
            find_or_pull(name, shown.fetched)
    except PeerError as error:
        return str(error)
    return ""
