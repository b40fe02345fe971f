"""What `stream --json` has told of several sizes, as tables in Markdown and as a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamer.errors import UsageError
from tools.benchmarks.report import NOTHING

# Figures of `stream --json`, for one run: by system, and by kind and system.
Run = Mapping[str, Any]


def read_run(path: Path) -> Run:
    """Read the figures of a run. Raises UsageError where the file holds something else."""
    try:
        run: Run = json.loads(path.read_text(encoding="utf-8"))
        if all("stable_p50_s" in figures for figures in run["figures"].values()) and run["kinds"].items():
            return run
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise UsageError(f"{path} has no figures of a run: expected what `stream --json FILE` writes")


def as_markdown(size: str, run: Run) -> str:
    """Return a table of a run: a column a system."""
    systems = list(run["figures"])
    rows = [
        ("WER", [_told(run, system, "wer_streamed", "{:.1%}") for system in systems]),
        ("; ".join(run["kinds"]), ["; ".join(_kinds(run, system)) for system in systems]),
        ("first seen p50 / p90", [_percentiles(run, system, "first_seen") for system in systems]),
        ("stable p50 / p90", [_percentiles(run, system, "stable") for system in systems]),
        ("CPU s for each s of audio", [_told(run, system, "cpu_per_audio") for system in systems]),
        ("peak memory", [_told(run, system, "peak_rss_mb", "{:.0f} MB") for system in systems]),
    ]
    lines = [[size, *systems], ["---"] * (1 + len(systems)), *([title, *cells] for title, cells in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot_sizes(runs: Mapping[str, Run], path: Path) -> None:
    """Draw over the size of the model the delay of stable words, half and nine tenths of them, and the peak memory."""
    from matplotlib.figure import Figure

    from tools.benchmarks.plots import COLOURS, save, style

    systems: Sequence[str] = list(dict.fromkeys(system for run in runs.values() for system in run["figures"]))
    with style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        delay, memory = figure.subplots(1, 2)
        for number, system in enumerate(systems):
            colour = COLOURS[number % len(COLOURS)]
            at = [i for i, run in enumerate(runs.values()) if system in run["figures"]]
            told = [run["figures"][system] for run in runs.values() if system in run["figures"]]
            p50, p90 = ([figures[f"stable_{share}_s"] for figures in told] for share in ("p50", "p90"))
            delay.plot(at, p50, "-o", ms=4, color=colour, label=system)
            delay.plot(at, p90, ":o", ms=4, mfc="white", color=colour)
            memory.plot(at, [figures["peak_rss_mb"] for figures in told], "-o", ms=4, color=colour)
        delay.set(title="stable: p50 (line), p90 (dots)", ylabel="seconds after the end of the word", yscale="log")
        delay.yaxis.set_major_formatter("{x:g}")
        memory.set(title="peak memory", ylabel="MB", ylim=(0, None))
        for axes in (delay, memory):
            axes.set_xticks(range(len(runs)), list(runs))
        figure.legend(*delay.get_legend_handles_labels(), loc="outside lower center", ncols=len(systems))
        save(figure, path)


def _kinds(run: Run, system: str) -> list[str]:
    return [_told({"figures": systems}, system, "wer_streamed", "{:.1%}") for systems in run["kinds"].values()]


def _percentiles(run: Run, system: str, delay: str) -> str:
    return " / ".join(_told(run, system, f"{delay}_{share}_s") for share in ("p50", "p90")) + " s"


def _told(run: Run, system: str, figure: str, form: str = "{:.2f}") -> str:
    value = run["figures"].get(system, {}).get(figure)
    return NOTHING if value is None else form.format(value).replace("%", " %")
