"""Figures as a table and as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from streamer.bench.figures import Figures

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


SECTIONS: dict[str, tuple[Row, ...]] = {
    "words": (
        Row("WER offline, %", "wer_offline", 1, 100, compared=False),
        Row("WER streamed, %", "wer_streamed", 1, 100),
        Row("what streaming costs, points", "wer_streaming_costs", 1, 100, compared=False),
        Row("substitutions", "substitutions", 0, compared=False),
        Row("deletions", "deletions", 0, compared=False),
        Row("insertions", "insertions", 0, compared=False),
        Row("words doubled", "doubled_words", 0),
        Row("words dropped, 4 or more in a row", "dropped_words", 0),
        Row("joins of finals within speech", "joins", 0, compared=False),
        Row("words doubled at joins", "doubled_at_joins", 0, compared=False),
        Row("words left out at joins", "dropped_at_joins", 0, compared=False),
        Row("words near joins", "words_at_joins", 0, compared=False),
        Row("made up where nobody speaks, a minute", "hallucinated_per_min"),
        Row("shown where nobody speaks, a minute", "hallucinated_shown_per_min"),
    ),
    "delay by the clock, s": (
        Row("words that the transcript has, %", "share_measured", 1, 100, compared=False),
        Row("first partial p50", "first_partial_p50_s"),
        Row("first partial, worst", "first_partial_worst_s"),
        Row("first seen p50", "first_seen_p50_s"),
        Row("first seen p90", "first_seen_p90_s"),
        Row("first seen p99", "first_seen_p99_s"),
        Row("stable p50", "stable_p50_s"),
        Row("stable p90", "stable_p90_s"),
        Row("stable p99", "stable_p99_s"),
        Row("settled in hindsight p50", "settled_p50_s"),
        Row("settled in hindsight p90", "settled_p90_s"),
        Row("end of speech to stable p50", "finalisation_p50_s"),
        Row("end of speech to stable p90", "finalisation_p90_s"),
        Row("the same without the wait p50", "finalisation_computed_p50_s", compared=False),
        Row("average lagging (AL)", "AL_CA_s", compared=False),
        Row("length-adaptive (LAAL)", "LAAL_CA_s", compared=False),
    ),
    "delay by audio heard, s": (
        Row("first seen p50", "first_seen_unaware_p50_s"),
        Row("first seen p90", "first_seen_unaware_p90_s"),
        Row("stable p50", "stable_unaware_p50_s"),
        Row("stable p90", "stable_unaware_p90_s"),
        Row("average lagging (AL)", "AL_s", compared=False),
        Row("length-adaptive (LAAL)", "LAAL_s", compared=False),
    ),
    "flicker": (
        Row("words taken back for each final word", "normalised_erasure"),
        Row("the same but for case and punctuation", "normalised_erasure_of_normalised"),
        Row("unstable words that are wrong, %", "upwr", 1, 100),
        Row("promised words taken back", "broken_promises", 0),
        Row("words never promised", "words_never_stable", 0),
    ),
    "cost": (
        Row("CPU s for each s of audio", "cpu_per_audio"),
        Row("encoder calls for each s", "encoder_calls_per_audio_s"),
        Row("decoder calls for each s", "decoder_calls_per_audio_s", 1),
        Row("decoder calls for each token", "decoder_calls_per_token"),
        Row("for each token behind settled words", "decoder_calls_per_found_token"),
        Row("decoder calls for each final word", "decoder_calls_per_final_word", 1),
        Row("peak memory, MB", "peak_rss_mb", 0),
    ),
    "loss": (
        Row("speech in neither a final nor a gap, s", "lost_s"),
        Row("audio announced as lost, s", "gap_s"),
    ),
}


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
