"""What a model's weights in f16 and int8 cost on recordings of people: words, logits, time, memory and disk.

Recordings are cut into windows of 30 s, each decoded greedily and alone: what `streamer transcribe` makes of a whole
recording depends on single repeated or skipped sentences, which hides small losses. Logits are compared on the text of
the first precision, so that both precisions predict the same tokens ("teacher forcing").
"""

import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from streamer.arrays import Float32Array, FloatArray
from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.audio.sources.file import read_audio
from streamer.commands.convert import convert_model
from streamer.commands.files import find_recordings, plan_texts, read_spoken
from streamer.errors import UsageError
from streamer.whisper.decode.window import WindowOptions, decode_window
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import WhisperModel, load_model
from tools.benchmarks.processes import Meter, Server, our_python
from tools.benchmarks.systems import without_settings
from tools.benchmarks.text import Errors, Normaliser, errors

TIMEOUT_S = 6 * 3600.0  # for all recordings


@dataclass(frozen=True, slots=True)
class Run:
    """`streamer transcribe` of all recordings."""

    wrong: Errors
    cpu_s: float  # processor time of the process, loading included
    peak_rss_mb: float


@dataclass(frozen=True, slots=True)
class Window:
    """30 s of a recording, or what is left of it."""

    mel: Float32Array  # shape = (n_mels, 3000)
    tokens: list[int]  # text of the first precision


@dataclass(frozen=True, slots=True)
class Difference:
    """How far logits are from the first precision's, over all tokens of its text."""

    mean: float = 0.0  # absolute difference, over tokens and vocabulary
    largest: float = 0.0
    other_tokens: float = 0.0  # share of tokens for which another one is the likeliest


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a model in one precision."""

    model: str
    weights: str
    audio_s: float
    alone: Errors  # of windows that are decoded alone
    logits: Difference
    runs: Mapping[int, Run]  # by number of beams
    disk_mb: float  # of what `streamer models convert` writes


def measure_weights(
    models: Sequence[str],
    recordings: Sequence[str],
    precisions: Sequence[str],
    beams: Sequence[int],
    language: str,
    device: str,
    normalise: Normaliser,
) -> list[Row]:
    """Measure checkpoints, and print a table in Markdown for each.

    models : directories, files or names of checkpoints
    recordings : files and folders of them; NAME.txt beside each says what is said
    precisions : such as f16 and int8; logits are compared with the first one's
    beams : numbers of beams to transcribe whole recordings with; 1 is greedy

    Raises UsageError for a recording without its text, ServerFailure where `streamer transcribe` fails.
    """
    said = {path: words(read_spoken(path.with_suffix(".txt")), normalise) for path in find_recordings(recordings)}
    if not any(said.values()):
        raise UsageError("no word is said in these recordings: expected recordings of people, with their texts")
    samples: dict[Path, Float32Array] = {path: np.concatenate(list(read_audio(path))) for path in said}
    audio_s = sum(map(len, samples.values())) / SAMPLE_RATE
    rows: list[Row] = []
    for name in models:
        first = load_model(name, DeviceSettings(device), weights=precisions[0])
        windows = {path: windows_of(first, recording, language) for path, recording in samples.items()}
        of_model = []
        for precision in precisions:
            model = load_model(name, DeviceSettings(device), weights=precision)
            alone = Errors()
            for path, parts in windows.items():
                text = " ".join(model.tokenizer.decode(greedy(model, part.mel, language)) for part in parts)
                alone += errors(said[path], words(text, normalise))
            logits = difference(first, model, [part for parts in windows.values() for part in parts], language)
            flags = ["--model", name, "--weights", precision, "--language", language, "--device", device]
            runs = {n: _transcribe([*flags, "--beam-size", str(n)], said, normalise) for n in beams}
            of_model.append(Row(model.name, precision, audio_s, alone, logits, runs, _disk_mb(name, precision)))
        print(as_markdown(of_model), end="\n\n")
        rows += of_model
    return rows


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a table of one model's rows, with the recordings' length in the line before it."""
    named = {n: "greedy" if n == 1 else f"{n} beams" for n in rows[0].runs}
    columns = [
        "Weights",
        "WER, % (30 s alone)",
        *(f"WER, % ({name})" for name in named.values()),
        "Logits differ by, mean",
        "largest",
        "Other likeliest token, %",
        *(f"CPU s for 1 s ({name})" for name in named.values()),
        "Memory, MB",
        "On disk, MB",
    ]
    lines = [columns, ["---"] * len(columns)]
    for row in rows:
        runs, logits = row.runs.values(), row.logits
        lines.append(
            [
                row.weights,
                *(f"{100 * (wrong.rate or 0.0):.2f}" for wrong in (row.alone, *(run.wrong for run in runs))),
                *(f"{logits.mean:.3f}", f"{logits.largest:.2f}", f"{100 * logits.other_tokens:.2f}"),
                *(f"{run.cpu_s / row.audio_s:.3f}" for run in runs),
                f"{max((run.peak_rss_mb for run in runs), default=0.0):.0f}",
                f"{row.disk_mb:.0f}",
            ]
        )
    title = f"{rows[0].model}: {rows[0].alone.n_reference} words in {rows[0].audio_s / 60:.1f} minutes"
    return "\n".join([title, "", *(f"| {' | '.join(line)} |" for line in lines)])


def words(text: str, normalise: Normaliser) -> list[str]:
    """Return the words of a text as they are compared; a dash separates two."""
    return normalise(re.sub("[-\u2013\u2014]", " ", text)).split()


def windows_of(model: WhisperModel, samples: Float32Array, language: str) -> list[Window]:
    """Cut a recording, 16 kHz mono, into windows with the text that a model writes for each."""
    mels = [log_mel(samples[i : i + N_SAMPLES], model.dims.n_mels) for i in range(0, len(samples), N_SAMPLES)]
    return [Window(mel, greedy(model, mel, language)) for mel in mels]


def greedy(model: WhisperModel, mel: Float32Array, language: str) -> list[int]:
    """Return the tokens of a window's text, without timestamps and prompt."""
    decoder = model.runtime.decoder_of(model.runtime.encode(mel, 0))
    options = WindowOptions(
        language=language, max_tokens=decoder.capacity // 2, stop_at_loop=True, keep_attention=False
    )
    return decode_window(decoder, model.tokenizer, model.generation, options).tokens


def difference(first: WhisperModel, other: WhisperModel, windows: Sequence[Window], language: str) -> Difference:
    """Compare the logits of two precisions for the same windows and the same tokens."""
    given = [*first.tokenizer.start_sequence(language, "transcribe"), first.tokenizer.special.no_timestamps]
    total, largest, n_others, n_tokens = 0.0, 0.0, 0, 0
    for window in windows:
        both: list[FloatArray] = []
        for model in (first, other):
            decoder = model.runtime.decoder_of(model.runtime.encode(window.mel, 0))
            both.append(decoder.feed([*given, *window.tokens])[0][0][len(given) - 1 :])
        distance = np.abs(both[0] - both[1])
        total += float(distance.mean(axis=1).sum())
        largest = max(largest, float(distance.max()))
        n_others += int(np.count_nonzero(both[0].argmax(axis=1) != both[1].argmax(axis=1)))
        n_tokens += len(distance)
    return Difference(total / n_tokens, largest, n_others / n_tokens)


def _transcribe(flags: Sequence[str], said: Mapping[Path, list[str]], normalise: Normaliser) -> Run:
    """Transcribe recordings in a process of its own, and compare with what is said in them."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_texts(list(said), "txt", None, Path(folder))
        command = [our_python(), "-m", "streamer", "transcribe", "-f", "txt", "--output-dir", folder, *flags]
        process = Server("streamer", [*command, *map(str, said)], without_settings())
        try:
            with Meter(process) as meter:
                process.wait_ended(TIMEOUT_S)
        finally:
            process.stop()
        wrong = Errors()
        for path, reference in said.items():
            (text,) = plan[path]
            assert text.target is not None
            wrong += errors(reference, words(text.target.read_text(encoding="utf-8"), normalise))
    return Run(wrong, meter.cpu_s(), meter.peak_rss_mb)


def _disk_mb(name: str, precision: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "model"
        convert_model(name, output, weights=precision, console=Console(file=io.StringIO()))
        return sum(file.stat().st_size for file in output.rglob("*")) / 1e6
