"""Measures the daemon as its clients see it: words, delay, flicker, cost and memory (docs/metrics.md).

    python tools/benchmark.py stream [FILE...]   real-time pace, one client, a wall clock
    python tools/benchmark.py soak [--hours H]   one long file as fast as it can be transcribed, memory over time
    python tools/benchmark.py beams [--beams N]  beam search against greedy decoding, the same windows in turn

`stream` starts `streamer run --input none` as a process of its own and sends it audio over `/v1/stream` at the pace at
which it was recorded; all delays are from the moment the audio was sent to the moment the event arrived. A word's end
is where the model's own alignment in the final puts it.
"""

import argparse
import asyncio
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import jiwer
import numpy as np
import psutil
import soundfile
import soxr
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import connect
from whisper.normalizers import EnglishTextNormalizer

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.events import Event, Final, Partial, Speech, Word, from_json
from streamer.whisper.decoding.window import WindowOptions, decode_window
from streamer.whisper.devices import DeviceSettings
from streamer.whisper.model import load_model

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT.parent / "shared" / "audio"

CHUNK_SAMPLES = SAMPLE_RATE // 50  # 20 ms, what a browser or a sound card delivers at a time
READY_TIMEOUT_S = 300.0  # an NPU may compile for minutes

normalise = EnglishTextNormalizer()


@dataclass
class StreamFigures:
    """What one recording gave."""

    name: str
    audio_s: float
    wer_offline: float | None = None
    wer_streamed: float | None = None
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    # Seconds from the end of each word to the event that first shows it, and to the one after which it cannot change.
    first_seen_s: list[float] = field(default_factory=list)
    stable_s: list[float] = field(default_factory=list)

    # Seconds from where speech starts to the first partial with a word, and from where it ends to the final.
    first_partial_s: list[float] = field(default_factory=list)
    finalisation_s: list[float] = field(default_factory=list)

    # Words taken back over all revisions, and words in the finals.
    n_erased: int = 0
    n_words: int = 0
    cpu_per_audio: float = 0.0
    peak_rss_mb: float = 0.0

    # The finals, joined.
    streamed_text: str = ""


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file as well")
    commands = parser.add_subparsers(dest="command")
    stream = commands.add_parser("stream", help="delay, flicker, accuracy and cost at real-time pace")
    stream.add_argument("files", nargs="*", type=Path, help="recordings, each with its text beside it as .txt")
    stream.add_argument("--flags", default="", help="further flags of `streamer run`, in one word")
    soak = commands.add_parser("soak", help="memory over hours of audio")
    soak.add_argument("--hours", type=float, default=1.0, help="hours of audio (default 1)")
    soak.add_argument("files", nargs="*", type=Path, help="recordings to repeat")
    beams = commands.add_parser("beams", help="time of beam search over that of greedy decoding")
    beams.add_argument("--beams", type=int, default=5, help="beams that are followed (default 5)")
    beams.add_argument("files", nargs="*", type=Path, help="recordings, of which the first 30 s are decoded")
    args = parser.parse_args()
    files = getattr(args, "files", None) or _default_files()
    console = Console()
    if args.command == "soak":
        figures: object = measure_soak(files, args.hours, console)
    elif args.command == "beams":
        figures = measure_beams(files, args.beams, console)
    else:
        figures = [asdict(f) for f in measure_streams(files, getattr(args, "flags", "").split(), console)]
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


def measure_streams(files: Sequence[Path], flags: Sequence[str], console: Console) -> list[StreamFigures]:
    """Send each file to a daemon in real time and print what came of it."""
    results = []
    for path in files:
        with _daemon(["--input", "none", "--port", "0", *flags]) as (process, url):
            console.print(f"{path.name}: {soundfile.info(path).duration:.0f} s at real-time pace …")
            results.append(asyncio.run(_stream(path, url, psutil.Process(process.pid))))
        _add_wer(results[-1], path)
    _print_streams(results, console)
    return results


def measure_beams(files: Sequence[Path], n_beams: int, console: Console, n_rounds: int = 3) -> dict[str, float]:
    """Encode and decode each recording's first window greedily and along beams in turn; print the ratio of times.

    Of each window the fastest round counts: whatever else the machine does only adds.
    """
    model = load_model("nano.en", DeviceSettings("CPU"), n_beams=n_beams)
    decoder = model.runtime.decoder
    totals = {1: 0.0, n_beams: 0.0}
    for path in files:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        audio = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)[: 30 * SAMPLE_RATE]
        mel = log_mel(audio.astype(np.float32), model.dims.n_mels)
        fastest = dict.fromkeys(totals, float("inf"))
        for _ in range(n_rounds):
            for n in totals:
                options = WindowOptions(
                    language="en", timestamps=True, n_beams=n, max_tokens=224, text_only=False, keep_attention=False
                )
                begin = time.perf_counter()
                decoder.use(model.runtime.encode(mel, 0))
                decode_window(decoder, model.tokenizer, model.generation, options)
                fastest[n] = min(fastest[n], time.perf_counter() - begin)
        for n, time_s in fastest.items():
            totals[n] += time_s
        console.print(f"{path.name}: {fastest[n_beams] / fastest[1]:.2f} times as long with {n_beams} beams")
    ratio = totals[n_beams] / totals[1]
    console.print(f"all recordings: {ratio:.2f} times as long with {n_beams} beams as greedily")
    return {"n_beams": n_beams, "ratio": ratio}


def measure_soak(files: Sequence[Path], hours: float, console: Console) -> dict[str, float]:
    """Play hours of audio as fast as the daemon takes it; print how its memory went."""
    with tempfile.TemporaryDirectory() as folder:
        long = Path(folder) / "long.flac"
        audio_s = _concatenate(files, round(hours * 3600), long)
        command = [*_STREAMER, "run", "--input", str(long), "--speed", "0", "--exit-at-end", "--port", "0"]
        samples: list[tuple[float, float]] = []
        begin = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            watched = psutil.Process(process.pid)
            while process.poll() is None:
                try:
                    samples.append((time.monotonic() - begin, watched.memory_info().rss / 2**20))
                except psutil.NoSuchProcess:
                    break
                time.sleep(1.0)
            errors = process.stderr.read() if process.stderr else ""
        if process.returncode != 0:
            raise SystemExit(f"the daemon ended with {process.returncode}: {errors.strip().splitlines()[-1:]}")
    wall_s = time.monotonic() - begin
    # The first quarter is the start: graphs are compiled, buffers fill, allocators find their size.
    t, m = np.array(samples).T
    settled = t > wall_s / 4
    slope = float(np.polyfit(t[settled] * audio_s / wall_s / 3600, m[settled], 1)[0])
    figures = {
        "audio_s": audio_s,
        "wall_s": wall_s,
        "real_time_factor": wall_s / audio_s,
        **{
            f"rss_at_{q}%_mb": float(np.quantile(m[np.abs(t / wall_s - q / 100) < 0.05], 0.5))
            for q in range(5, 100, 15)
        },
        "rss_peak_mb": float(max(m)),
        "slope_mb_per_audio_hour, behind the first quarter": slope,
    }
    table = Table("figure", "value", title="soak")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}")
    console.print(table)
    return figures


_STREAMER = [sys.executable, "-m", "streamer"]


@contextmanager
def _daemon(flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([*_STREAMER, "run", *flags], stderr=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if url := re.search(r"http://\S+", line):
                break
        else:
            raise SystemExit("the daemon did not start")
        yield process, url[0]
    finally:
        process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))  # on Windows, elsewhere
        process.communicate(timeout=60)


async def _stream(path: Path, url: str, process: psutil.Process) -> StreamFigures:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    audio = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)
    figures = StreamFigures(path.name, len(audio) / SAMPLE_RATE)
    events: list[tuple[float, Event]] = []
    before = process.cpu_times()
    async with connect(f"ws://{urlsplit(url).netloc}/v1/stream", open_timeout=READY_TIMEOUT_S) as socket:
        await socket.send('{"type":"start","format":"f32le","sample_rate":16000}')
        begin = time.monotonic()

        async def receive() -> None:
            async for message in socket:
                events.append((time.monotonic() - begin, from_json(message)))

        receiver = asyncio.create_task(receive())
        for first in range(0, len(audio), CHUNK_SAMPLES):
            chunk = audio[first : first + CHUNK_SAMPLES]
            # A chunk can be sent when its last sample has been spoken.
            await asyncio.sleep(max(0.0, begin + (first + len(chunk)) / SAMPLE_RATE - time.monotonic()))
            await socket.send(chunk.astype("<f4").tobytes())
            figures.peak_rss_mb = max(figures.peak_rss_mb, process.memory_info().rss / 2**20)
        await socket.send('{"type":"finish"}')
        await receiver
    after = process.cpu_times()
    figures.cpu_per_audio = (after.user + after.system - before.user - before.system) / figures.audio_s
    _add_delays(figures, events)
    figures.name = path.stem
    figures.streamed_text = " ".join(event.text for _, event in events if isinstance(event, Final))
    return figures


def _add_delays(figures: StreamFigures, events: Sequence[tuple[float, Event]]) -> None:
    revisions: list[tuple[float, tuple[Word, ...], int]] = []  # when, words, how many of them were stable
    onset: float | None = None
    ended: float | None = None
    for when, event in events:
        match event:
            case Speech(state="start"):
                onset = event.time
            case Speech(state="end"):
                ended = event.time
            case Partial():
                if onset is not None and event.words:
                    figures.first_partial_s.append(when - onset)
                    onset = None
                revisions.append((when, event.words, sum(word.stable for word in event.words)))
            case Final():
                revisions.append((when, event.words, len(event.words)))
                if ended is not None and event.end >= ended:
                    figures.finalisation_s.append(when - ended)
                    ended = None
                _add_words(figures, event.words, revisions)
                # Words behind a cut go on in the next segment, where they are seen again at once.
                revisions = []
    assert figures.n_words == len(figures.stable_s)


def _add_words(
    figures: StreamFigures, words: Sequence[Word], revisions: Sequence[tuple[float, tuple[Word, ...], int]]
) -> None:
    figures.n_words += len(words)
    for i, word in enumerate(words):
        seen = next(when for when, shown, _ in revisions if i < len(shown) and shown[i].word == word.word)
        stable = next(when for when, _, n_stable in revisions if i < n_stable)
        figures.first_seen_s.append(seen - word.end)
        figures.stable_s.append(stable - word.end)
    for (_, earlier, _), (_, later, _) in itertools.pairwise(revisions):
        kept = 0
        for a, b in zip(earlier, later, strict=False):
            if a.word != b.word:
                break
            kept += 1
        # A final after a cut is shorter than the partial before it: what is behind the cut was not taken back.
        figures.n_erased += max(0, min(len(earlier), len(later)) - kept)


def _add_wer(figures: StreamFigures, path: Path) -> None:
    reference_path = path.with_suffix(".txt")
    if not reference_path.is_file():
        return
    reference = normalise(reference_path.read_text(encoding="utf-8"))
    measured = jiwer.process_words(reference, normalise(figures.streamed_text) or "-")
    figures.wer_streamed = 100 * measured.wer
    figures.substitutions, figures.deletions, figures.insertions = (
        measured.substitutions,
        measured.deletions,
        measured.insertions,
    )
    command = [*_STREAMER, "transcribe", str(path)]
    offline = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    figures.wer_offline = 100 * jiwer.wer(reference, normalise(offline) or "-")


def _print_streams(results: Sequence[StreamFigures], console: Console) -> None:
    delays = Table(
        "recording",
        "first partial, worst",
        "seen p50",
        "seen p90",
        "stable p50",
        "stable p90",
        "final after speech p50",
        title="delay in seconds, by a wall clock (speech onset: the speech gate's)",
    )
    quality = Table(
        "recording",
        "WER offline",
        "WER streamed",
        "S/D/I",
        "erased/word",
        "CPU s/audio s",
        "peak MB",
        title="text, flicker and cost",
    )
    for f in results:
        delays.add_row(
            f.name,
            f"{max(f.first_partial_s, default=float('nan')):.2f}",
            *(f"{_quantile(d, q):.2f}" for d in (f.first_seen_s, f.stable_s) for q in (0.5, 0.9)),
            f"{_quantile(f.finalisation_s, 0.5):.2f}",
        )
        quality.add_row(
            f.name,
            "-" if f.wer_offline is None else f"{f.wer_offline:.1f} %",
            "-" if f.wer_streamed is None else f"{f.wer_streamed:.1f} %",
            f"{f.substitutions}/{f.deletions}/{f.insertions}",
            f"{f.n_erased / max(1, f.n_words):.2f}",
            f"{f.cpu_per_audio:.2f}",
            f"{f.peak_rss_mb:.0f}",
        )
    console.print(delays)
    console.print(quality)
    stable = [delay for f in results for delay in f.stable_s]
    first = [delay for f in results for delay in f.first_partial_s]
    console.print(
        f"all recordings: first partial p50 {_quantile(first, 0.5):.2f} s, worst {max(first, default=0):.2f} s;"
        f" stable p50 {_quantile(stable, 0.5):.2f} s, p90 {_quantile(stable, 0.9):.2f} s"
    )


def _quantile(values: Sequence[float], q: float) -> float:
    if len(values) < 2:
        return statistics.fmean(values) if values else float("nan")
    return float(np.quantile(values, q))


def _concatenate(files: Sequence[Path], length_s: int, target: Path) -> float:
    """Repeat recordings until there is enough; return the length in seconds."""
    written = 0
    with soundfile.SoundFile(target, "w", SAMPLE_RATE, 1) as out:
        while written < length_s * SAMPLE_RATE:
            for path in files:
                samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
                audio = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)
                out.write(audio)
                written += len(audio)
    return written / SAMPLE_RATE


def _default_files() -> list[Path]:
    shared = sorted(RECORDINGS.glob("*.flac")) if RECORDINGS.is_dir() else []
    return [ROOT / "models" / "nano.en" / "sample.flac", *shared]


if __name__ == "__main__":
    sys.exit(main())
