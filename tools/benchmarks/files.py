"""Time, words and memory of a long recording that is transcribed as a whole, beside other programs, in turns.

Each is a process from start to end: what somebody waits for who calls it once. All have the same weights in 8 bits, as
many threads, English as the language, and no timestamps.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from streamer.audio.constants import SAMPLE_RATE
from streamer.bench.text import Normaliser, errors
from tools.benchmarks.corpus import Recording
from tools.benchmarks.model_files import ModelFiles
from tools.benchmarks.peers.environment import PeerUnavailable, variables_of_peer
from tools.benchmarks.processes import Meter, Server, ServerFailure, our_python
from tools.benchmarks.raw import OURS, SYSTEMS
from tools.benchmarks.systems import without_settings

TIMEOUT_S = 6 * 3600.0  # for one recording
PAUSE_S = 0.5  # between two recordings that are joined

PEERS = Path(__file__).parent / "peers" / "whole_file.py"

# Ours, by the flags that it has: as it is, and as fast as it can be.
OUR_FLAGS: Mapping[str, tuple[str, ...]] = {OURS: (), f"{OURS} in batches": ("--vad-filter", "--batch-size", "8")}


@dataclass(frozen=True, slots=True)
class FileResult:
    """What a system gave, in its fastest round."""

    system: str
    size: str
    audio_s: float

    # From start to end of the process, loading included; of a wall clock, and of the processors.
    seconds: float
    cpu_s: float
    peak_rss_mb: float

    # Word error rate, over all recordings together.
    wer: float | None


def join(recordings: Sequence[Recording], minutes: float) -> tuple[NDArray[np.float32], str]:
    """Return recordings after one another, and again, until they last so long; and what is said in them."""
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), dtype=np.float32)
    samples: list[NDArray[np.float32]] = []
    texts: list[str] = []
    while sum(map(len, samples)) < minutes * 60 * SAMPLE_RATE:
        recording = recordings[len(texts) % len(recordings)]
        samples += [recording.samples, pause]
        texts.append(recording.text)
    return np.concatenate(samples), " ".join(texts)


def measure_files(
    sizes: Sequence[str],
    recordings: Sequence[Recording],
    minutes: float,
    folder: Path,
    normalise: Normaliser,
    console: Console,
    *,
    n_rounds: int = 1,
    n_threads: int = 2,
    n_beams: int = 1,
) -> list[dict[str, object]]:
    """Transcribe recordings that are joined with every system; print a table for each size, and return the figures.

    sizes : of `model_files.SPEAKING`
    folder : where the peers' environments are
    """
    samples, text = join(recordings, minutes)
    reference = normalise(text).split()
    audio_s = len(samples) / SAMPLE_RATE
    figures: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        audio = Path(temporary) / "speech.wav"
        soundfile.write(audio, samples, SAMPLE_RATE, subtype="PCM_16")
        for size in sizes:
            commands = _commands(ModelFiles(size, folder), audio, n_threads, n_beams, console)
            results: dict[str, FileResult] = {}
            for _ in range(n_rounds):
                for system, (command, variables) in list(commands.items()):
                    try:
                        seconds, cpu_s, peak_mb = _run(system, command, variables)
                    except ServerFailure as failure:
                        console.print(str(failure), markup=False, highlight=False)
                        del commands[system]
                        continue
                    said = audio.with_suffix(".txt").read_text(encoding="utf-8")
                    wer = errors(reference, normalise(said).split()).rate
                    result = FileResult(system, size, audio_s, seconds, cpu_s, peak_mb, wer)
                    results[system] = min(result, results.get(system, result), key=lambda result: result.seconds)
            _show(size, list(results.values()), n_beams, console)
            figures += map(asdict, results.values())
    return figures


def _commands(
    files: ModelFiles, audio: Path, n_threads: int, n_beams: int, console: Console
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return what can be run, with its environment variables; of what cannot, the reason is printed."""
    output = audio.with_suffix(".txt")
    ours = [our_python(), "-m", "streamer", "transcribe"]
    known = subprocess.run([*ours, "--help"], capture_output=True, encoding="utf-8", check=False).stdout
    ours += [str(audio), "--model", str(files.streamer()), "--output", str(output), "--language", "en"]
    ours += ["--without-timestamps", "--device", "CPU", "--beam-size", str(n_beams), "--best-of", str(n_beams)]
    variables = {**without_settings(), "STREAMER_MODEL_PROPERTIES": f"INFERENCE_NUM_THREADS={n_threads}"}
    commands = {
        system: ([*ours, *flags], variables)
        for system, flags in OUR_FLAGS.items()
        if all(flag in known for flag in flags if flag.startswith("--"))
    }
    task = {"audio": str(audio), "output": str(output), "n_threads": n_threads, "n_beams": n_beams}
    for system in ("faster-whisper", "openvino-genai"):
        about = SYSTEMS[system]
        try:
            python = about.python(files.folder)
            asked = json.dumps({**task, "model": str(about.model(files))})
        except PeerUnavailable as error:
            console.print(f"{system}: {error}", markup=False, highlight=False)
            continue
        # -P: beside the script lie modules of the libraries' names.
        commands[system] = (
            [python, "-P", str(PEERS), system, asked],
            variables_of_peer({"OMP_NUM_THREADS": str(n_threads)}),
        )
    return commands


def _run(system: str, command: Sequence[str], variables: Mapping[str, str]) -> tuple[float, float, float]:
    """Run a process to its end; return seconds, seconds of processor time, and its peak memory in MB.

    Raises ServerFailure where it fails.
    """
    begin_s = time.perf_counter()
    process = Server(system, command, variables)
    try:
        with Meter(process) as meter:
            process.wait_ended(TIMEOUT_S)
            seconds = time.perf_counter() - begin_s
    finally:
        process.stop()
    return seconds, meter.cpu_s(), meter.peak_rss_mb


def _show(size: str, results: Sequence[FileResult], n_beams: int, console: Console) -> None:
    minutes = results[0].audio_s / 60 if results else 0
    searched = "greedily" if n_beams == 1 else f"along {n_beams} beams"
    columns = ("system", "s", "times real time", "CPU s", "WER, %", "peak MB")
    table = Table(*columns, title=f"{size}: {minutes:.0f} minutes of speech, {searched}, weights of 8 bits")
    for result in results:
        table.add_row(
            result.system,
            f"{result.seconds:.1f}",
            f"{result.audio_s / result.seconds:.1f}",
            f"{result.cpu_s:.0f}",
            "-" if result.wer is None else f"{100 * result.wer:.1f}",
            f"{result.peak_rss_mb:.0f}",
        )
    console.print(table)
