"""A comparison as tables for terminals."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamer.commands.figures import NOTHING, print_figures
from streamer.outside import printable
from streamer.plugins.compare.compare import ROWS, Aligned, Comparison, Row

# Places at which texts differ that are shown, and words of one.
MOST_PLACES = 30
MOST_COLUMNS = 10

# Agreeing words in front of such a place.
N_BEFORE = 3


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the figures, how far each two candidates disagree, and the places at which the texts differ."""
    print_figures({row.name: row.figures for row in comparison.rows}, console, ROWS)
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
    if note := _languages(comparison.rows):
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


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"


def _languages(rows: Sequence[Row]) -> str:
    """Return a note if different languages were found."""
    if len({row.language for row in rows if row.language}) < 2:
        return ""
    found = ", ".join(f"{row.name} {row.language}" for row in rows if row.language)
    return f"They found different languages ({found}): set decoding.language to compare them in one."


def _clock(aligned: Aligned, k: int) -> str:
    """Return when the segment began in which a column is said, by the first text that has its time."""
    starts = (word.start_s for column in aligned.columns[k::-1] for word in column[::-1] if word)
    start_s = next((start_s for start_s in starts if start_s is not None), 0.0)
    return f"{int(start_s) // 60}:{int(start_s) % 60:02}"
