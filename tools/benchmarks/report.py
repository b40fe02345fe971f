"""Figures as a table and as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tools.benchmarks.figures import Figures

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure in a table."""

    label: str

    # Name of the figure in `Figures.summary()`.
    figure: str
    digits: int = 2

    # What the number is multiplied with for people, such as 100 for percent.
    scale: float = 1.0

    # Whether a ratio to the best of the others says something: less is better, and a difference is no ratio.
    compared: bool = True


# By the title of their section.
SECTIONS = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, tuple[Row, ...]])


def print_figures(columns: Mapping[str, Figures], console: Console, *, title: str, ours: str | None = None) -> None:
    """Print one column for each of `columns`, and where `ours` names one, its ratio to the best of the others.

    Figures that none has are left out.
    """
    summaries = {name: figures.summary() for name, figures in columns.items()}
    others = [name for name in summaries if name != ours]
    compared = ours in summaries and bool(others)
    # What has no room is folded: a table in a log of 80 columns is still complete.
    table = Table("", title=title, title_justify="left")
    for name in summaries:
        table.add_column(name, justify="right", overflow="fold")
    if compared:
        table.add_column(f"{ours} / best other", justify="right", overflow="fold")
    for section, rows in SECTIONS.items():
        known = [row for row in rows if any(_known(summary[row.figure]) for summary in summaries.values())]
        if not known:
            continue
        table.add_section()
        table.add_row(section, style="bold")
        for row in known:
            cells = [_format(summary[row.figure], row) for summary in summaries.values()]
            if compared:
                values = [summaries[name][row.figure] for name in others]
                cells.append(_ratio(summaries[ours or ""][row.figure], values) if row.compared else "")
            table.add_row(f"  {row.label}", *cells)
    console.print(table)


def as_json(columns: Mapping[str, Figures], **more: object) -> str:
    """Return the figures of each column, and whatever else is to be told, as JSON without NaN."""
    told = {"figures": {name: figures.summary() for name, figures in columns.items()}, **more}
    finite = json.loads(json.dumps(told), parse_constant=lambda _: None)
    return json.dumps(finite, indent=1, ensure_ascii=False) + "\n"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _format(value: float | None, row: Row) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value * row.scale:.{row.digits}f}"


def _ratio(value: float | None, others: Sequence[float | None]) -> str:
    known = [other for other in others if other is not None and math.isfinite(other)]
    if value is None or not math.isfinite(value) or not known:
        return NOTHING
    best = min(known)
    if best <= 0:
        return "=" if value == best else "worse" if value > best else "better"
    return f"{value / best:.2f}"
