"""Figures of timelines as tables and as JSON."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from streamer.errors import UsageError
from tools.benchmarks.figures import Figures, measure, pool
from tools.benchmarks.recordings import Recording
from tools.benchmarks.text import Normaliser
from tools.benchmarks.timeline import Timeline
from tools.benchmarks.unsaid import detect_speech

OURS = "streamer"
NOTHING = "–"

# By system, then by recording.
AllFigures = dict[str, dict[str, Figures]]


class Row(NamedTuple):
    """One figure in a table."""

    label: str
    figure: str  # in `Figures.summary()`
    digits: int = 2
    scale: float = 1.0  # 100 for percent
    compared: bool = True  # whether a ratio to the best peer says something: less is better
    interval: bool = False  # 95 %, as `..._low` and `..._high`


SECTIONS = {
    "words": (
        Row("WER offline, %", "wer_offline", 1, 100, compared=False),
        Row("WER streamed, %", "wer_streamed", 1, 100),
        Row("WER with revisions, %", "wer_corrected", 1, 100),
        Row("WER streamed - offline, points", "delta_streamed", 1, 100, compared=False, interval=True),
        Row("WER with revisions - offline, points", "delta_corrected", 1, 100, compared=False, interval=True),
        Row("words lost in an utterance's last 2 s, %", "tail_loss", 1, 100),
        Row("the same offline, %", "tail_loss_offline", 1, 100, compared=False),
        Row("utterances without their first word, %", "first_word_loss", 1, 100),
        Row("the same offline, %", "first_word_loss_offline", 1, 100, compared=False),
        Row("right words made wrong by revisions", "harmed_words", 0, compared=False),
        Row("wrong words made right by revisions", "mended_words", 0, compared=False),
        Row("substitutions", "substitutions", 0, compared=False),
        Row("deletions", "deletions", 0, compared=False),
        Row("insertions", "insertions", 0, compared=False),
        Row("words doubled", "doubled_words", 0),
        Row("words dropped, 4 or more in a row", "dropped_words", 0),
        Row("hallucinated words a minute, finals", "hallucinated_per_min"),
        Row("hallucinated words a minute, displayed", "hallucinated_shown_per_min"),
    ),
    "delay, s": (
        Row("words in the transcript, %", "share_measured", 1, 100, compared=False),
        Row("first partial p50", "first_partial_p50_s"),
        Row("first seen p50", "first_seen_p50_s"),
        Row("first seen p90", "first_seen_p90_s"),
        Row("stable p50", "stable_p50_s"),
        Row("stable p90", "stable_p90_s"),
        Row("stable p99", "stable_p99_s"),
        Row("unchanged from then on p50", "settled_p50_s"),
        Row("end of speech to stable p50", "finalisation_p50_s"),
        Row("end of speech to stable p90", "finalisation_p90_s"),
    ),
    "stability": (
        Row("erased words for each final word", "normalised_erasure"),
        Row("stable words erased", "broken_promises", 0),
    ),
    "cost": (
        Row("CPU s for each s of audio", "cpu_per_audio"),
        Row("energy J for each s of audio, all programs", "energy_j_per_audio_s", 1),
        Row("encoder calls for each s", "encoder_calls_per_audio_s"),
        Row("decoder calls for each s", "decoder_calls_per_audio_s", 1),
        Row("peak memory, MB", "peak_rss_mb", 0),
        Row("audio announced as lost, s", "gap_s"),
        Row("speech in no word and no gap, s", "unsaid_s"),
    ),
}


def compute(
    timelines: Sequence[Timeline], recordings: Sequence[Recording], offline: Mapping[str, str], normalise: Normaliser
) -> AllFigures:
    """Compute the figures of timelines of some recordings; `offline` has their offline texts by name."""
    by_name = {recording.name: recording for recording in recordings}
    speech = functools.cache(lambda name: detect_speech(by_name[name].samples()))
    found: AllFigures = {}
    for timeline in timelines:
        recording = by_name[timeline.recording]
        found.setdefault(timeline.system, {})[recording.name] = measure(
            timeline,
            recording.text,
            recording.words,
            normalise,
            offline_text=offline.get(recording.name),
            speech=speech(recording.name) if timeline.words is not None else (),
        )
    if not found:
        raise UsageError("nothing was measured: see the failures above")
    return found


def pooled(figures: AllFigures, recordings: Sequence[Recording], *, spoken: bool) -> dict[str, Figures]:
    """Return each system's figures over what has speech, or has none; recordings that a system lacks count for none."""
    kind = {recording.name for recording in recordings if bool(recording.text) == spoken}
    named = {system: names for system, found in figures.items() if (names := kind & set(found))}
    common = set.intersection(*named.values()) if named else set()
    return {
        system: pool([figures[system][name] for name in sorted(names & common or names)])
        for system, names in named.items()
    }


def show(figures: AllFigures, recordings: Sequence[Recording], failures: Mapping[str, str], console: Console) -> None:
    """Print the figures of speech and of sounds without speech, and what is missing."""
    for title, spoken in (("speech", True), ("sounds without speech", False)):
        if columns := pooled(figures, recordings, spoken=spoken):
            console.print(table(columns, title))
    names = {name for found in figures.values() for name in found}
    for system, found in figures.items():
        if missing := names - set(found):
            console.print(f"{system} lacks {', '.join(sorted(missing))}: left out for all", highlight=False)
    for name, reason in failures.items():
        console.print(f"{name}: {reason}", markup=False, highlight=False)


def as_json(figures: AllFigures, recordings: Sequence[Recording], failures: Mapping[str, str]) -> dict[str, object]:
    """Return all figures for JSON: of speech, of sounds without speech, and of each recording."""

    def summaries(columns: Mapping[str, Figures]) -> dict[str, object]:
        return {name: each.summary() for name, each in columns.items()}

    return {
        "figures": summaries(pooled(figures, recordings, spoken=True)),
        "sounds": summaries(pooled(figures, recordings, spoken=False)),
        "recordings": {system: summaries(found) for system, found in figures.items()},
        "failures": failures,
    }


def table(columns: Mapping[str, Figures], title: str) -> Table:
    """Return a table with a column for each system; beside others also our ratio to the best of them.

    Figures that no column has are left out.
    """
    summaries = {name: figures.summary() for name, figures in columns.items()}
    others = [summary for name, summary in summaries.items() if name != OURS]
    compared = OURS in summaries and bool(others)
    # Long names are folded: a table in a log of 80 columns is still complete.
    made = Table("", title=title, title_justify="left")
    for name in [*summaries, *([f"{OURS} / best other"] if compared else [])]:
        made.add_column(name, justify="right", overflow="fold")
    for section, rows in SECTIONS.items():
        known = [row for row in rows if any(summary[row.figure] is not None for summary in summaries.values())]
        if not known:
            continue
        made.add_section()
        made.add_row(section, style="bold")
        for row in known:
            cells = [_format(summary, row) for summary in summaries.values()]
            if compared:
                ratio = _ratio(summaries[OURS][row.figure], [summary[row.figure] for summary in others])
                cells.append(ratio if row.compared else "")
            made.add_row(f"  {row.label}", *cells)
    return made


def _format(summary: Mapping[str, float | None], row: Row) -> str:
    value, *ends = (summary.get(f"{row.figure}{end}") for end in ("", "_low", "_high"))
    sign = "+" if row.interval else ""
    cell, *cells = (NOTHING if each is None else f"{each * row.scale:{sign}.{row.digits}f}" for each in (value, *ends))
    return f"{cell} [{', '.join(cells)}]" if row.interval and None not in ends else cell


def _ratio(value: float | None, others: Sequence[float | None]) -> str:
    best = min((other for other in others if other is not None), default=None)
    if value is None or best is None:
        return NOTHING
    if best <= 0:
        return "=" if value == best else "worse" if value > best else "better"
    return f"{value / best:.2f}"
