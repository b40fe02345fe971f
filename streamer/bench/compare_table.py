"""A comparison as tables for terminals."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamer.bench.compare import Aligned, Comparison, Row
from streamer.outside import printable

# For a figure that is not known, and for no word.
NOTHING = "–"

# Places at which texts differ that are shown, and words of one.
MOST_PLACES = 30
MOST_COLUMNS = 10

# Agreeing words in front of such a place.
N_BEFORE = 3


class _Figure(NamedTuple):
    title: str
    name: str  # among the figures or the delays of a `Row`
    digits: int = 0
    scale: float = 1.0


FIGURES = (
    _Figure("Words", "words"),
    _Figure("WER, %", "wer", 1, 100),
    _Figure("Substituted", "substitutions"),
    _Figure("Deleted", "deletions"),
    _Figure("Inserted", "insertions"),
    _Figure("Disagrees, %", "disagreement", 1, 100),
    _Figure("RTF", "real_time_factor", 3),
    _Figure("CPU / audio", "cpu_per_audio", 2),
    _Figure("First text, s", "first_text_s", 2),
    _Figure("Computing, s", "wall_s", 2),
    _Figure("First seen p50, s", "first_seen_p50_s", 2),
    _Figure("Stable p50, s", "stable_p50_s", 2),
    _Figure("Stable p90, s", "stable_p90_s", 2),
    _Figure("Speech end to stable p50, s", "finalisation_p50_s", 2),
    _Figure("Load, s", "load_s", 1),
    _Figure("Memory, MB", "peak_rss_mb"),
)

_NOTES = {
    "wer": "WER: words substituted, deleted and inserted, for each word of the reference, whatever their case.",
    "disagreement": "Disagrees: edits from one text to another for each word of the longer, mean over the others.",
    "real_time_factor": "RTF, real-time factor: seconds of computing for each second of audio, the model being loaded.",
    "cpu_per_audio": "CPU / audio: seconds of processor cores for each second of audio.",
    "peak_rss_mb": "Memory: the most that a process with this model alone had resident while it transcribed, program"
    " included.",
}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the figures, how far each two candidates disagree, and the places at which the texts differ."""
    known = _known(comparison.rows)
    table = Table("", title="Models", title_justify="left")
    for row in comparison.rows:
        table.add_column(Text(printable(row.name)), justify="right", overflow="fold")
    for figure in known:
        table.add_row(figure.title, *(_shown(row, figure) for row in comparison.rows))
    console.print(table, markup=False)
    for row in comparison.rows:
        if row.error:
            console.print(f"{row.name}: {row.error}", style="red", markup=False, highlight=False, soft_wrap=True)
    names = [row.name for row in comparison.rows]
    if len(names) > 2:
        table = Table("", *map(printable, names), title="Disagreement, %", title_justify="left")
        for name, values in zip(names, comparison.disagreement, strict=True):
            table.add_row(Text(printable(name)), *map(_percent, values))
        console.print(table, markup=False)
    for aligned in comparison.recordings:
        _print_places(aligned, console)
    for note in _notes(comparison.rows):
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def _print_places(aligned: Aligned, console: Console) -> None:
    if len(aligned.labels) < 2:
        return
    # A text that has nothing in common with the others is one place.
    places = [place[k : k + MOST_COLUMNS] for place in aligned.places for k in range(0, len(place), MOST_COLUMNS)]
    n_more = len(places) - MOST_PLACES
    n_different = sum(map(len, aligned.places))
    title = f"{aligned.recording}: the texts differ in {n_different} of {len(aligned.columns)} words"
    table = Table(title=Text(printable(title)), title_justify="left")
    for label in ("At", "Behind", *aligned.labels):
        table.add_column(Text(printable(label)), overflow="fold")
    for place in places[:MOST_PLACES]:
        before = [column[0] for column in aligned.columns[max(0, place[0] - N_BEFORE) : place[0]]]
        cells = [
            " ".join(word.shown for k in place if (word := aligned.columns[k][row])) or NOTHING
            for row in range(len(aligned.labels))
        ]
        behind = " ".join(word.shown for word in before if word)
        table.add_row(_clock(aligned, place[0]), *(Text(printable(text)) for text in (behind, *cells)))
    if places:
        console.print(table, markup=False)
    else:
        console.print(title, markup=False, highlight=False, soft_wrap=True)
    if n_more > 0:
        console.print(f"and {n_more} more: the JSON has all", highlight=False)


def _known(rows: Sequence[Row]) -> list[_Figure]:
    return [figure for figure in FIGURES if any(_value(row, figure) is not None for row in rows)]


def _value(row: Row, figure: _Figure) -> float | None:
    return {**row.figures, **row.delays}[figure.name]


def _shown(row: Row, figure: _Figure) -> str:
    value = _value(row, figure)
    return NOTHING if value is None else f"{value * figure.scale:.{figure.digits}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"


def _notes(rows: Sequence[Row]) -> list[str]:
    names = {figure.name for figure in _known(rows)}
    notes = [note for name, note in _NOTES.items() if name in names]
    languages = {row.language for row in rows if row.language}
    if len(languages) > 1:
        found = ", ".join(f"{row.name} {row.language}" for row in rows if row.language)
        notes.append(f"They found different languages ({found}): set decoding.language to compare them in one.")
    return notes


def _clock(aligned: Aligned, k: int) -> str:
    """Return when the segment began in which a column is said, by the first text that has its time."""
    starts = (word.start_s for column in aligned.columns[k::-1] for word in column[::-1] if word)
    start_s = next((start_s for start_s in starts if start_s is not None), 0.0)
    return f"{int(start_s) // 60}:{int(start_s) % 60:02}"
