"""Word errors on recordings of people, and words written without any speech, beside other programs.

Each system transcribes all recordings of a language in one process, and writes the text of
each to OUTPUT/MODEL/SYSTEM/NAME.txt as soon as it is complete: texts that are already there are not made again.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from operator import add
from pathlib import Path
from typing import Self

import soundfile

from streamer.constants import SAMPLE_RATE
from tools.benchmarks import processes, systems
from tools.benchmarks.peers.environment import PeerUnavailable, variables_of_peer
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.recordings import Recording
from tools.benchmarks.text import Errors, errors, normaliser

OURS = "streamer"
LIVE = "streamer --stream"  # only for sounds without speech
WORKER = Path(__file__).parent / "peers" / "whole_file.py"


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
        wrong, n_written = self.wrong + other.wrong, self.n_written + other.n_written
        return replace(other, wrong=wrong, n_written=n_written, audio_s=self.audio_s + other.audio_s)

    def cell(self) -> str:
        """Return the word error rate in percent, and the errors by their kinds; words a minute without speech."""
        wrong = self.wrong
        if wrong.rate is None:
            return f"{60 * self.n_written / self.audio_s:.1f}"
        return f"{100 * wrong.rate:.1f} ({wrong.substitutions}, {wrong.deletions}, {wrong.insertions})"


def measure_files(
    models: Sequence[str],
    recordings: Sequence[Recording],
    peers: Sequence[str],
    peers_folder: Path,
    output: Path,
    flags: Sequence[str],
    show: Callable[[str], None],
) -> list[Row]:
    """Transcribe recordings with each model and system; pass each line of the Markdown tables to `show`.

    models : names or paths; of English-only ones (`.en`), other languages are left out
    flags : further flags of `streamer transcribe`

    Returns a row for each model, system and folder. What a system cannot transcribe is reported and missing.
    """
    figures: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in models:
            model = PublishedModel(name, Path(temporary), peers_folder)
            known = [recording for recording in recordings if model.multilingual or recording.language == "en"]
            rows: list[Row] = []
            cpu: dict[str, float] = {}
            for system in (OURS, LIVE, *peers):
                folder = output / model.name / system.replace(" ", "")
                folder.mkdir(parents=True, exist_ok=True)
                chosen = [recording for recording in known if system != LIVE or not recording.text]
                cpu |= _transcribe(system, model, chosen, folder, flags, show)
                rows += _rows(model.name, system, chosen, folder)
            spoken, silent = ([row for row in rows if bool(row.wrong.n_reference) == has] for has in (True, False))
            _table(f"{model.name}: word errors, % (substituted, deleted, inserted)", spoken, show)
            _table(f"{model.name}: words a minute", silent, show)
            used = ", ".join(f"{system} {cpu_s:.2f}" for system, cpu_s in cpu.items())
            show(f"{model.name}: processor seconds for each second of audio, loading included: {used}")
            figures += rows
    return figures


def _transcribe(
    system: str,
    model: PublishedModel,
    recordings: Sequence[Recording],
    folder: Path,
    flags: Sequence[str],
    show: Callable[[str], None],
) -> Mapping[str, float]:
    """Write the texts that a folder lacks; return the system's processor time for each second of audio, if any."""
    missing = [recording for recording in recordings if not (folder / f"{recording.name}.txt").is_file()]
    cpu_s = audio_s = 0.0
    for language, group in groupby(missing, key=lambda recording: recording.language):
        chosen = list(group)
        show(f"{model.name}, {system}: {len(chosen)} recordings ({language})")
        try:
            if system in (OURS, LIVE):
                ours = ["--model", str(model.path), "--language", language, *(["--stream"] if system == LIVE else [])]
                cpu_s += systems.transcribe([recording.path for recording in chosen], folder, [*ours, *flags])
            else:
                cpu_s += _transcribe_with_peer(system, model, chosen, language, folder)
        except (PeerUnavailable, ServerFailure) as error:
            show(str(error))
        else:
            audio_s += sum(recording.audio_s for recording in chosen)
    return {system: cpu_s / audio_s} if audio_s else {}


def _transcribe_with_peer(
    system: str, model: PublishedModel, recordings: Sequence[Recording], language: str, folder: Path
) -> float:
    """Let another program write the texts; return its processor time. Raises PeerUnavailable or ServerFailure."""
    python, weights = model.of_peer(system)
    with tempfile.TemporaryDirectory() as audio:
        for each in recordings:
            soundfile.write(Path(audio, f"{each.name}.wav"), each.samples(), SAMPLE_RATE, subtype="PCM_16")
        task = {"model": str(weights), "language": language, "audio": audio, "output": str(folder)}
        # -P: beside the script lie modules of the libraries' names.
        command = [str(python), "-P", str(WORKER), system, json.dumps(task)]
        return processes.run(system, command, variables_of_peer(), systems.TRANSCRIBE_TIMEOUT_S)


def _rows(model: str, system: str, recordings: Sequence[Recording], folder: Path) -> Iterator[Row]:
    """Yield a row for each group of recordings that a system transcribed completely."""
    for group, members in groupby(recordings, key=lambda recording: recording.group):
        row = Row(model, system, group)
        try:
            for recording in members:
                normalise = normaliser(recording.language)
                written = normalise((folder / f"{recording.name}.txt").read_text(encoding="utf-8")).split()
                wrong = errors(normalise(recording.text).split(), written)
                row += Row(model, system, group, recording.language, wrong, len(written), recording.audio_s)
        except FileNotFoundError:
            continue
        yield row


def _table(title: str, rows: Sequence[Row], show: Callable[[str], None]) -> None:
    """Show rows with a line for each group, and one for all that is English; `-` for what a system lacks."""
    names = list(dict.fromkeys(row.system for row in rows))
    groups = {row.group: row for row in rows}
    english = [group for group, row in groups.items() if row.language == "en"]
    found = {(row.group, row.system): row for row in rows}
    for name in names:
        parts = [found[group, name] for group in english if (group, name) in found]
        if parts and len(parts) == len(english):
            found["all English", name] = groups["all English"] = reduce(add, parts)
    lines = [[title, "minutes", *names], ["---"] * (2 + len(names))]
    for group, row in groups.items():
        cells = [found[group, name].cell() if (group, name) in found else "-" for name in names]
        lines.append([group, f"{row.audio_s / 60:.1f}", *cells])
    for line in ["", *(f"| {' | '.join(line)} |" for line in lines), ""] if rows else [""]:
        show(line)
