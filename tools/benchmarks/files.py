"""Word errors on recordings of people, and words written without any speech, beside other programs.

Each system transcribes all recordings of a language in one process, and writes the text of
each to OUTPUT/MODEL/SYSTEM/NAME.txt as soon as it is complete: texts that are already there are not made again.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from itertools import groupby
from operator import add
from pathlib import Path
from typing import Self

import soundfile
from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

from streamer.constants import SAMPLE_RATE
from tools.benchmarks.peers.environment import PeerUnavailable, variables_of_peer
from tools.benchmarks.processes import Meter, Server, ServerFailure
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.recordings import Recording
from tools.benchmarks.systems import without_settings
from tools.benchmarks.text import Errors, Normaliser, errors

TIMEOUT_S = 6 * 3600.0  # for one system and language
OURS = "streamer"
LIVE = "streamer --stream"
PEERS = ("faster-whisper", "openai-whisper")
WORKER = Path(__file__).parent / "peers" / "whole_file.py"

# Languages written without spaces, of which characters are compared, as in the Whisper paper.
_BY_CHARACTERS = ("zh", "ja", "th", "lo", "my", "yue")


@dataclass(frozen=True, slots=True)
class Row:
    """What a system wrote of the recordings of a group; rows can be added."""

    model: str
    system: str
    group: str
    language: str = ""
    wrong: Errors = field(default_factory=Errors)
    n_written: int = 0  # words
    audio_s: float = 0.0

    def __add__(self, other: Self) -> Self:
        return replace(
            other,
            wrong=self.wrong + other.wrong,
            n_written=self.n_written + other.n_written,
            audio_s=self.audio_s + other.audio_s,
        )

    def as_errors(self) -> str:
        """Return the word error rate in percent, and the errors by their kinds."""
        wrong = self.wrong
        rate = "-" if wrong.rate is None else f"{100 * wrong.rate:.1f}"
        return f"{rate} ({wrong.substitutions}, {wrong.deletions}, {wrong.insertions})"


@cache
def normaliser(language: str) -> Normaliser:
    """Return Whisper's normaliser of a language, behind one that splits words at dashes."""
    by_characters = language in _BY_CHARACTERS
    whisper = EnglishTextNormalizer() if language == "en" else BasicTextNormalizer(split_letters=by_characters)
    return lambda text: whisper(re.sub("[-–—]", " ", text))


def measure_files(
    models: Sequence[str],
    recordings: Sequence[Recording],
    peers: Sequence[str],
    peers_folder: Path,
    output: Path,
    flags: Sequence[str],
    tell: Callable[[str], None],
) -> list[Row]:
    """Transcribe recordings with each model and system; pass each line of the Markdown tables to `tell`.

    models : names or paths; of English-only ones (`.en`), other languages are left out
    flags : further flags of `streamer transcribe`

    Returns a row for each model, system and folder. What a system cannot transcribe is told and missing.
    """
    figures: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in models:
            model = PublishedModel(name, Path(temporary), peers_folder)
            known = [recording for recording in recordings if model.multilingual or recording.language == "en"]
            rows: list[Row] = []
            cpu: dict[str, float | None] = {}
            for system in (OURS, LIVE, *peers):
                folder = output / model.name / system.replace(" ", "")
                chosen = [recording for recording in known if system != LIVE or not recording.text.strip()]
                cpu[system] = _transcribe(system, model, chosen, folder, flags, tell)
                rows += _rows(model.name, system, chosen, folder)
            _show(model.name, rows, cpu, tell)
            figures += rows
    return figures


def _transcribe(
    system: str,
    model: PublishedModel,
    recordings: Sequence[Recording],
    folder: Path,
    flags: Sequence[str],
    tell: Callable[[str], None],
) -> float | None:
    """Write the texts that a folder lacks; return the processor time for each second of audio, None without any."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [recording for recording in recordings if not (folder / f"{recording.name}.txt").is_file()]
    cpu_s = audio_s = 0.0
    for language, group in groupby(missing, key=lambda recording: recording.language):
        chosen = list(group)
        tell(f"{model.name}, {system}: {len(chosen)} recordings ({language})")
        try:
            with tempfile.TemporaryDirectory() as temporary:
                command, variables = _command(system, model, chosen, language, folder, flags, Path(temporary))
                process = Server(system, command, variables)
                try:
                    with Meter(process) as meter:
                        process.wait_ended(TIMEOUT_S)
                finally:
                    process.stop()
        except (PeerUnavailable, ServerFailure) as error:
            tell(str(error))
            continue
        cpu_s += meter.cpu_s()
        audio_s += sum(recording.audio_s for recording in chosen)
    return cpu_s / audio_s if audio_s else None


def _command(
    system: str,
    model: PublishedModel,
    recordings: Sequence[Recording],
    language: str,
    folder: Path,
    flags: Sequence[str],
    temporary: Path,
) -> tuple[list[str], Mapping[str, str]]:
    """Return what transcribes recordings, and its environment variables. Raises PeerUnavailable."""
    if system in (OURS, LIVE):
        command = [sys.executable, "-m", "streamer", "transcribe", *(str(recording.path) for recording in recordings)]
        command += ["--model", str(model.path), "--language", language, "--format", "txt", "--output-dir", str(folder)]
        return [*command, *(["--stream"] if system == LIVE else []), *flags], without_settings()
    python, weights = model.of_peer(system)
    for recording in recordings:
        soundfile.write(temporary / f"{recording.name}.wav", recording.samples(), SAMPLE_RATE, subtype="PCM_16")
    task = {"model": str(weights), "language": language, "audio": str(temporary), "output": str(folder)}
    # -P: beside the script lie modules of the libraries' names.
    return [str(python), "-P", str(WORKER), system, json.dumps(task)], variables_of_peer()


def _rows(model: str, system: str, recordings: Sequence[Recording], folder: Path) -> Iterator[Row]:
    """Yield a row for each group of recordings that a system transcribed completely."""
    for group, members in groupby(recordings, key=lambda recording: recording.group):
        row = Row(model, system, group)
        try:
            for recording in members:
                normalise = normaliser(recording.language)
                said = normalise((folder / f"{recording.name}.txt").read_text(encoding="utf-8")).split()
                wrong = errors(normalise(recording.text).split(), said)
                row += Row(model, system, group, recording.language, wrong, len(said), recording.audio_s)
        except FileNotFoundError:
            continue
        yield row


def _show(model: str, rows: Sequence[Row], cpu: Mapping[str, float | None], tell: Callable[[str], None]) -> None:
    """Tell the rows of a model as two tables in Markdown: word errors, and words written without any speech."""
    silent = [row for row in rows if not row.wrong.n_reference]
    spoken = [row for row in rows if row.wrong.n_reference]
    _table(f"{model}: word errors, % (substituted, deleted, inserted)", spoken, Row.as_errors, tell)
    _table(f"{model}: words a minute", silent, lambda row: f"{60 * row.n_written / row.audio_s:.1f}", tell)
    used = (f"{system} {cpu_s:.2f}" for system, cpu_s in cpu.items() if cpu_s is not None)
    tell(f"{model}: processor seconds for each second of audio, loading included: {', '.join(used)}")


def _table(title: str, rows: Sequence[Row], cell: Callable[[Row], str], tell: Callable[[str], None]) -> None:
    """Tell rows with a line for each group, and one for all that is English; `-` for what a system lacks."""
    systems = list(dict.fromkeys(row.system for row in rows))
    groups = {row.group: row for row in rows}
    english = [group for group, row in groups.items() if row.language == "en"]
    found = {(row.group, row.system): row for row in rows}
    for system in systems:
        parts = [found[group, system] for group in english if (group, system) in found]
        if parts and len(parts) == len(english):
            found["all English", system] = groups["all English"] = reduce(add, parts)
    if rows:
        tell("")
        for line in ([title, "minutes", *systems], ["---"] * (2 + len(systems))):
            tell(f"| {' | '.join(line)} |")
    for group, row in groups.items():
        cells = [cell(found[group, system]) if (group, system) in found else "-" for system in systems]
        tell(f"| {' | '.join([group, f'{row.audio_s / 60:.1f}', *cells])} |")
    tell("")
