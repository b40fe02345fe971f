"""A folder of timelines, one for each system and recording, and the figures and pictures that are made of them.

FOLDER/timelines/SYSTEM/RECORDING.json
FOLDER/offline/RECORDING.txt             what the offline decoder makes of the recording
FOLDER/troubles.json                     systems and recordings of which there is no timeline, and why
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from whisper.normalizers import EnglishTextNormalizer

from streamer.errors import UsageError
from streamer.settings.table import Settings
from tools.benchmarks.corpus import Recording
from tools.benchmarks.figures import Figures, pool
from tools.benchmarks.measure import measure
from tools.benchmarks.report import NOTHING, as_json, print_figures
from tools.benchmarks.sounds_of_rooms import SOUNDS
from tools.benchmarks.text import Normaliser
from tools.benchmarks.timeline import Timeline

OURS = "streamer"

# First words of the names of systems that wait for silence as our settings say; others say how these were set.
OUR_SYSTEMS = (OURS, "simulated")

# Figures told for each kind of recording, with what they are multiplied with and their digits.
BY_KIND = (
    ("WER streamed, %", "wer_streamed", 100, 1),
    ("first seen p50, s", "first_seen_p50_s", 1, 2),
    ("stable p50, s", "stable_p50_s", 1, 2),
    ("stable p90, s", "stable_p90_s", 1, 2),
    ("taken back for each word", "normalised_erasure", 1, 2),
    ("made up a minute", "hallucinated_per_min", 1, 1),
)


class Folder:
    """Where the timelines of a run are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, timeline: Timeline) -> None:
        """Keep a timeline; it takes the place of an older one of this system and recording."""
        path = self.path / "timelines" / timeline.system / f"{timeline.recording}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(timeline.to_json(), encoding="utf-8")

    def save_offline(self, recording: str, text: str) -> None:
        """Keep what the offline decoder makes of a recording."""
        path = self.path / "offline" / f"{recording}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def save_troubles(self, troubles: Mapping[str, str]) -> None:
        """Keep why there are no timelines, by the name of the system, or of the system and the recording."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "troubles.json").write_text(json.dumps(troubles, indent=1) + "\n", encoding="utf-8")

    def timelines(self) -> list[Timeline]:
        """Read all timelines, ours first. Raises UsageError where there are none, or one of them is something else."""
        paths = sorted((self.path / "timelines").glob("*/*.json"), key=lambda path: (path.parent.name != OURS, path))
        if not paths:
            raise UsageError(
                f"{self.path} has no timelines: expected a folder that `stream --timelines DIR` has filled"
            )
        return [_read_timeline(path) for path in paths]

    def offline(self, recording: str) -> str | None:
        """Read what the offline decoder made of a recording; None where it was not asked."""
        path = self.path / "offline" / f"{recording}.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def troubles(self) -> dict[str, str]:
        """Read why there are no timelines. Raises UsageError where the file says something else."""
        path = self.path / "troubles.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be read ({error}): expected reasons in JSON; delete it") from None


@dataclass(slots=True)
class Results:
    """The figures of a run."""

    # By system, then by recording.
    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)

    # Kind of each recording.
    kinds: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    def pooled(self, chosen: Callable[[str], bool] = lambda kind: True) -> dict[str, Figures]:
        """Return each system's figures over the recordings of the kinds that are chosen.

        Where a system lacks some of them, they are left out for all, so that all heard the same.
        """
        named = {
            system: {name for name in recordings if chosen(self.kinds[name])}
            for system, recordings in self.figures.items()
        }
        named = {system: names for system, names in named.items() if names}
        common = set.intersection(*named.values()) if named else set()
        return {
            system: pool([self.figures[system][name] for name in sorted(names & common or names)])
            for system, names in named.items()
        }


def _read_timeline(path: Path) -> Timeline:
    try:
        return Timeline.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from None


def compute(folder: Folder, recordings: Sequence[Recording], normalise: Normaliser | None = None) -> Results:
    """Compute the figures of the timelines of some recordings. Raises UsageError where there are none."""
    normalise = normalise or EnglishTextNormalizer()
    by_name = {recording.name: recording for recording in recordings}
    results = Results(troubles=folder.troubles())
    for timeline in folder.timelines():
        recording = by_name.get(timeline.recording)
        if recording is None:
            continue
        results.kinds[recording.name] = recording.kind
        results.figures.setdefault(timeline.system, {})[recording.name] = measure(
            timeline,
            recording.text,
            recording.words,
            normalise,
            offline_text=folder.offline(recording.name),
            wait_s=Settings().speech.min_silence_s if timeline.system.split()[0] in OUR_SYSTEMS else 0.0,
        )
    if not results.figures:
        names = ", ".join(sorted(by_name)) or "none"
        raise UsageError(
            f"{folder.path} has no timeline of these recordings ({names}): name the corpus that was played"
        )
    return results


def show(results: Results, console: Console) -> None:
    """Print the figures: with speech, without, and by kind; and what is missing."""
    speech = results.pooled(lambda kind: kind not in SOUNDS)
    # With others of our own beside there is no best of the others.
    ours = None if any(name.startswith(f"{OURS} ") for name in results.figures) else OURS
    if speech:
        print_figures(speech, console, title="speech", ours=ours)
    sounds = results.pooled(lambda kind: kind in SOUNDS)
    if sounds:
        print_figures(sounds, console, title="sounds without speech", ours=ours)
    kinds = sorted(set(results.kinds.values()))
    if len(kinds) > 1:
        _print_kinds(results, kinds, console)
    names = {name for recordings in results.figures.values() for name in recordings}
    for system, recordings in results.figures.items():
        if missing := names - set(recordings):
            console.print(f"{system} lacks {', '.join(sorted(missing))}: left out for all", highlight=False)
    for name, reason in results.troubles.items():
        console.print(f"{name}: {reason}", markup=False, highlight=False)


def to_json(results: Results) -> str:
    """Return all figures as JSON: over all speech, over all sounds, by kind and by recording."""

    def summaries(figures: Mapping[str, Figures]) -> dict[str, object]:
        return {name: f.summary() for name, f in figures.items()}

    return as_json(
        results.pooled(lambda kind: kind not in SOUNDS),
        sounds=summaries(results.pooled(lambda kind: kind in SOUNDS)),
        kinds={
            kind: summaries(results.pooled(lambda other, kind=kind: other == kind))  # type: ignore[misc]
            for kind in sorted(set(results.kinds.values()))
        },
        recordings={system: summaries(recordings) for system, recordings in results.figures.items()},
        troubles=results.troubles,
    )


def draw(results: Results, folder: Folder, recordings: Sequence[Recording], target: Path, ending: str = "png") -> None:
    """Draw the delays of all words, and of each recording the screen and the words from moment to moment."""
    from tools.benchmarks import plots

    target.mkdir(parents=True, exist_ok=True)
    normalise = EnglishTextNormalizer()
    speech = results.pooled(lambda kind: kind not in SOUNDS)
    if any(figures.stable.aware for figures in speech.values()):
        plots.plot_delays(speech, target / f"delays.{ending}")
    by_name = {recording.name: recording for recording in recordings}
    timelines: dict[str, list[Timeline]] = {}
    for timeline in folder.timelines():
        if timeline.recording in by_name:
            timelines.setdefault(timeline.recording, []).append(timeline)
    for name, of_one in timelines.items():
        plots.plot_stability(of_one, target / f"stability-{name}.{ending}")
        if by_name[name].words:
            plots.plot_recording(of_one, by_name[name].words, normalise, target / f"words-{name}.{ending}")


def _print_kinds(results: Results, kinds: Sequence[str], console: Console) -> None:
    systems = list(results.figures)
    table = Table("kind", "figure", title="by kind", title_justify="left")
    for system in systems:
        table.add_column(system, justify="right", overflow="fold")
    for kind in kinds:
        pooled = results.pooled(lambda other, kind=kind: other == kind)  # type: ignore[misc]
        summaries = {system: figures.summary() for system, figures in pooled.items()}
        table.add_section()
        label = kind
        for title, figure, scale, digits in BY_KIND:
            values = [summaries.get(system, {}).get(figure) for system in systems]
            if any(value is not None for value in values):
                cells = [NOTHING if value is None else f"{value * scale:.{digits}f}" for value in values]
                table.add_row(label, title, *cells)
                label = ""
    console.print(table)
