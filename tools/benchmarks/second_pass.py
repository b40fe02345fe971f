"""What reading finals again brings and costs: the daemon with a second pass beside the same without, turn by turn."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from streamer.bench.figures import Figures, pool, quantile
from streamer.bench.measure import measure
from streamer.bench.text import Errors, Normaliser, errors
from streamer.settings.table import Settings
from tools.benchmarks.corpus import Recording
from tools.benchmarks.results import Folder, reference
from tools.benchmarks.stream import OFFLINE_FLAGS, transcribe_offline
from tools.benchmarks.systems import Streamer

# What is printed of `Figures.summary`: its label, its name, and what it is multiplied with.
ROWS = (
    ("WER live, %", "wer_streamed", 100),
    ("WER revised, %", "wer_revised", 100),
    ("WER offline, %", "wer_offline", 100),
    ("finals", "finals", 1),
    ("revisions", "revisions", 1),
    ("revision behind its final p50, s", "revised_after_p50_s", 1),
    ("revision behind its final p90, s", "revised_after_p90_s", 1),
    ("CPU s for each s of audio", "cpu_per_audio", 1),
    ("peak memory, MB", "peak_rss_mb", 1),
    ("first partial p50, s", "first_partial_p50_s", 1),
    ("first seen p50, s", "first_seen_p50_s", 1),
    ("first seen p90, s", "first_seen_p90_s", 1),
    ("stable p50, s", "stable_p50_s", 1),
    ("stable p90, s", "stable_p90_s", 1),
    ("end of speech to stable p50, s", "finalisation_p50_s", 1),
    ("end of speech to stable p90, s", "finalisation_p90_s", 1),
)


@dataclass
class Played:
    """What came of one of the two daemons."""

    figures: list[Figures] = field(default_factory=list)

    # Of the finals as they read in the end.
    revised: Errors = field(default_factory=Errors)
    n_finals: int = 0

    # Seconds from a final to its revision.
    after_s: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float | None]:
        return {
            **pool(self.figures).summary(),
            "wer_revised": self.revised.rate,
            "finals": self.n_finals,
            "revisions": len(self.after_s),
            "revised_after_p50_s": quantile(self.after_s, 50),
            "revised_after_p90_s": quantile(self.after_s, 90),
            "words": self.revised.n_reference,
        }


def measure_second_pass(
    systems: Sequence[Streamer],
    recordings: Sequence[Recording],
    model_flags: Sequence[str],
    folder: Path,
    normalise: Normaliser,
    console: Console,
) -> dict[str, dict[str, float | None]]:
    """Play recordings to daemons in turn; return the figures of each by its name.

    model_flags : of the offline decoder, whose texts are kept in `folder`
    """
    offline = transcribe_offline(recordings, Folder(folder), (*OFFLINE_FLAGS, *model_flags))
    played = {system.name: Played() for system in systems}
    with contextlib.ExitStack() as started:
        for system in systems:
            started.callback(system.stop)
            system.start()
        for i, recording in enumerate(recordings):
            # Whoever is first changes, for the machine may do something else meanwhile.
            for system in systems[:: -1 if i % 2 else 1]:
                console.print(f"{system.name}: {recording.name}", markup=False, highlight=False)
                _play(system, recording, offline[recording.name], normalise, played[system.name])
    summaries = {name: found.summary() for name, found in played.items()}
    table = Table("figure", *summaries)
    for label, figure, scale in ROWS:
        values = [summary[figure] for summary in summaries.values()]
        table.add_row(label, *("-" if value is None else f"{value * scale:.4g}" for value in values))
    console.print(table)
    return summaries


def _play(system: Streamer, recording: Recording, offline: str, normalise: Normaliser, played: Played) -> None:
    timeline = system.stream(recording.name, recording.samples)
    wait_s = Settings().speech.min_silence_s
    played.figures.append(measure(timeline, reference(recording), normalise, offline_text=offline, wait_s=wait_s))
    heard = system.conversation
    assert heard is not None
    text = " ".join(heard.corrected.values())
    played.revised += errors(normalise(recording.text).split(), normalise(text).split())
    played.n_finals += len(heard.corrected)
    played.after_s += heard.revised_after_s
