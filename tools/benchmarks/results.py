"""A folder of timelines, one for each system and recording, and their figures.

FOLDER/timelines/SYSTEM/RECORDING.json
FOLDER/offline/RECORDING.txt             the offline decoder's transcript
FOLDER/words/RECORDING.json              the times of the words that are said, if the corpus has none
FOLDER/failures.json                     systems and recordings that have no timeline, and why
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from whisper.normalizers import EnglishTextNormalizer

from streamer.errors import UsageError
from tools.benchmarks.curve import draw
from tools.benchmarks.figures import Figures, measure, pool
from tools.benchmarks.recordings import Recording, SpokenWord, read_words, write_words
from tools.benchmarks.report import as_json, print_figures
from tools.benchmarks.text import Normaliser
from tools.benchmarks.timeline import Timeline
from tools.benchmarks.unsaid import detect_speech

OURS = "streamer"


class Folder:
    """Where the timelines of a run are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, timeline: Timeline) -> None:
        """Keep a timeline; it replaces an older one of this system and recording."""
        path = self.path / "timelines" / timeline.system / f"{timeline.recording}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(timeline.to_json(), encoding="utf-8")

    def save_offline(self, recording: str, text: str) -> None:
        """Keep the offline decoder's transcript of a recording."""
        path = self.path / "offline" / f"{recording}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def save_failures(self, failures: Mapping[str, str]) -> None:
        """Keep the reasons for missing timelines, by the name of the system, or of the system and the recording."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "failures.json").write_text(json.dumps(failures, indent=1) + "\n", encoding="utf-8")

    def timelines(self) -> list[Timeline]:
        """Read all timelines, ours first. Raises UsageError if there are none, or one is damaged."""
        paths = sorted((self.path / "timelines").glob("*/*.json"), key=lambda path: (path.parent.name != OURS, path))
        if not paths:
            raise UsageError(
                f"{self.path} has no timelines: expected a folder that `stream --timelines DIR` has filled"
            )
        return [_read_timeline(path) for path in paths]

    def offline(self, recording: str) -> str | None:
        """Read the offline decoder's transcript; None if there is none."""
        path = self.path / "offline" / f"{recording}.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def words(self, recording: str) -> tuple[SpokenWord, ...]:
        """Read the words of a recording with their times; none if they are unknown."""
        return read_words(self.path / "words" / f"{recording}.json")

    def save_words(self, recording: str, words: Sequence[SpokenWord]) -> None:
        """Keep the words of a recording with their times."""
        path = self.path / "words" / f"{recording}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_words(path, words)

    def failures(self) -> dict[str, str]:
        """Read the reasons for missing timelines. Raises UsageError if the file is damaged."""
        path = self.path / "failures.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be read ({error}): expected reasons in JSON; delete it") from None


@dataclass(slots=True)
class Results:
    """The figures of a run."""

    # By system, then by recording.
    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)

    # By the name of the recording.
    recordings: dict[str, Recording] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def pooled(self, chosen: Callable[[Recording], bool]) -> dict[str, Figures]:
        """Return each system's figures over some recordings, without those that a system lacks."""
        named = {
            system: {name for name in figures if chosen(self.recordings[name])}
            for system, figures in self.figures.items()
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
    """Compute the figures of the timelines of some recordings. Raises UsageError if there are none."""
    normalise = normalise or EnglishTextNormalizer()
    results = Results(recordings={recording.name: recording for recording in recordings}, failures=folder.failures())
    speech = functools.cache(lambda name: detect_speech(results.recordings[name].samples()))
    for timeline in folder.timelines():
        if recording := results.recordings.get(timeline.recording):
            results.figures.setdefault(timeline.system, {})[recording.name] = measure(
                timeline,
                recording.text,
                recording.words,
                normalise,
                offline_text=folder.offline(recording.name),
                speech=speech(recording.name) if timeline.words is not None else (),
            )
    if not results.figures:
        names = ", ".join(sorted(results.recordings)) or "none"
        raise UsageError(
            f"{folder.path} has no timeline of these recordings ({names}): name the corpus that was played"
        )
    return results


def show(results: Results, console: Console) -> None:
    """Print the figures of speech and of sounds without speech, and what is missing."""
    # With several of our own there is no best of the others.
    ours = None if any(name.startswith(f"{OURS} ") for name in results.figures) else OURS
    for title, chosen in _KINDS.items():
        if figures := results.pooled(chosen):
            print_figures(figures, console, title=title, ours=ours)
    names = {name for figures in results.figures.values() for name in figures}
    for system, figures in results.figures.items():
        if missing := names - set(figures):
            console.print(f"{system} lacks {', '.join(sorted(missing))}: left out for all", highlight=False)
    for name, reason in results.failures.items():
        console.print(f"{name}: {reason}", markup=False, highlight=False)


_KINDS: dict[str, Callable[[Recording], bool]] = {
    "speech": lambda recording: bool(recording.text),
    "sounds without speech": lambda recording: not recording.text,
}


def picture(results: Results) -> str:
    """Return an SVG of what live text loses, by its delay. Raises UsageError if that is known of no system."""
    return draw(results.pooled(_KINDS["speech"]))


def to_json(results: Results) -> str:
    """Return all figures as JSON: of speech, of sounds without speech, and of each recording."""

    def summaries(figures: Mapping[str, Figures]) -> dict[str, object]:
        return {name: f.summary() for name, f in figures.items()}

    return as_json(
        results.pooled(_KINDS["speech"]),
        sounds=summaries(results.pooled(_KINDS["sounds without speech"])),
        recordings={system: summaries(figures) for system, figures in results.figures.items()},
        failures=results.failures,
    )
