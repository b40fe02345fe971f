"""Figures as a table and as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tools.benchmarks.figures import Figures

NOTHING = "–"


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


def print_figures(columns: Mapping[str, Figures], console: Console, *, title: str, ours: str | None = None) -> None:
    """Print one column for each of `columns`, and, if `ours` names one, its ratio to the best of the others.

    Figures that no column has are left out.
    """
    summaries = {name: figures.summary() for name, figures in columns.items()}
    others = [name for name in summaries if name != ours]
    compared = ours in summaries and bool(others)
    # Long names are folded: a table in a log of 80 columns is still complete.
    table = Table("", title=title, title_justify="left")
    for name in summaries:
        table.add_column(name, justify="right", overflow="fold")
    if compared:
        table.add_column(f"{ours} / best other", justify="right", overflow="fold")
    for section, rows in SECTIONS.items():
        known = [row for row in rows if any(summary[row.figure] is not None for summary in summaries.values())]
        if not known:
            continue
        table.add_section()
        table.add_row(section, style="bold")
        for row in known:
            cells = [_format(summary, row) for summary in summaries.values()]
            if compared:
                values = [summaries[name][row.figure] for name in others]
                cells.append(_ratio(summaries[ours or ""][row.figure], values) if row.compared else "")
            table.add_row(f"  {row.label}", *cells)
    console.print(table)


def as_json(columns: Mapping[str, Figures], **more: object) -> str:
    """Return the figures of each column, and more, as JSON."""
    figures = {name: figures.summary() for name, figures in columns.items()}
    return json.dumps({"figures": figures, **more}, indent=1, ensure_ascii=False) + "\n"


def _format(summary: Mapping[str, float | None], row: Row) -> str:
    value, low, high = (summary.get(f"{row.figure}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return NOTHING
    sign = "+" if row.interval else ""
    figure = f"{value * row.scale:{sign}.{row.digits}f}"
    if not row.interval or low is None or high is None:
        return figure
    return f"{figure} [{low * row.scale:{sign}.{row.digits}f}, {high * row.scale:{sign}.{row.digits}f}]"


def _ratio(value: float | None, others: Sequence[float | None]) -> str:
    known = [other for other in others if other is not None]
    if value is None or not known:
        return NOTHING
    best = min(known)
    if best <= 0:
        return "=" if value == best else "worse" if value > best else "better"
    return f"{value / best:.2f}"
