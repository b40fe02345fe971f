"""Figures as a table and as JSON."""

import io
import json

import pytest
from rich.console import Console

from tools.benchmarks.figures import Figures
from tools.benchmarks.report import SECTIONS, as_json, print_figures
from tools.benchmarks.text import Errors
from tools.benchmarks.utterances import Utterance


def some(system: str, delay_s: float, cpu_s: float = 10.0, **more: object) -> Figures:
    return Figures(
        system,
        ["slt"],
        audio_s=100.0,
        stable=[delay_s],
        streamed=Errors(5, 3, 2, 100),
        cpu_s=cpu_s,
        **more,  # type: ignore[arg-type]
    )


def printed(columns: dict[str, Figures], ours: str | None = None, width: int = 100) -> dict[str, list[str]]:
    """Return the cells of each row of a printed table, by its label."""
    console = Console(file=io.StringIO(), width=width)
    print_figures(columns, console, title="all", ours=ours)
    assert isinstance(console.file, io.StringIO)
    lines = [line.strip("│").split("│") for line in console.file.getvalue().splitlines() if line.startswith("│")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_every_row_is_a_figure() -> None:
    summary = Figures("a", [], 0.0).summary()
    assert [row.figure for rows in SECTIONS.values() for row in rows if row.figure not in summary] == []


def test_each_figure_has_a_row_and_each_system_a_column() -> None:
    rows = printed({"streamer": some("streamer", 0.5), "other": some("other", 1.25)})
    assert rows["stable p50"] == ["0.50", "1.25"]
    assert rows["WER streamed, %"] == ["10.0", "10.0"]
    assert rows["CPU s for each s of audio"] == ["0.10", "0.10"]
    assert "first seen p50" not in rows  # nobody has it


def test_ours_is_compared_with_the_best_of_the_others() -> None:
    columns = {"streamer": some("streamer", 0.5), "slow": some("slow", 4.0), "fast": some("fast", 1.0)}
    assert printed(columns, ours="streamer")["stable p50"] == ["0.50", "4.00", "1.00", "0.50"]


@pytest.mark.parametrize(("mine", "other", "shown"), [(1.0, 0.0, "worse"), (0.0, 0.0, "="), (0.0, 2.0, "0.00")])
def test_nothing_is_divided_by_nothing(mine: float, other: float, shown: str) -> None:
    columns = {"streamer": some("streamer", 1, cpu_s=mine), "other": some("other", 1, cpu_s=other)}
    assert printed(columns, ours="streamer")["CPU s for each s of audio"][-1] == shown


def test_an_unknown_figure_is_a_dash() -> None:
    columns = {"streamer": some("streamer", 1, decoder_calls=50), "other": some("other", 1)}
    assert printed(columns, ours="streamer")["decoder calls for each s"] == ["0.5", "–", "–"]


def test_a_difference_has_its_sign_and_its_interval() -> None:
    worse = Utterance(n_words=50, streamed=2, corrected=1, offline=1)
    rows = printed({"a": some("a", 1, utterances=[worse, worse]), "b": some("b", 1, utterances=[worse])})
    assert rows["WER streamed - offline, points"] == ["+2.0 [+2.0, +2.0]", "+2.0"]
    assert rows["WER with revisions - offline, points"] == ["+0.0 [+0.0, +0.0]", "+0.0"]


def test_the_json_has_every_figure() -> None:
    data = json.loads(as_json({"streamer": some("streamer", 0.5)}, failures={"other": "no network"}))
    assert data["figures"]["streamer"]["stable_p50_s"] == 0.5
    assert data["figures"]["streamer"]["decoder_calls_per_audio_s"] is None
    assert data["failures"] == {"other": "no network"}
