"""Draws how the model learnt: python -m tools.train_nano.curve --out models/nano.en/curve.png

runs.jsonl has a line for each time that a run looked at its error rates: the run's number, the hours of audio that it
had seen, and the WER by voice on held-out sentences that train.py --watch was given. A run begins with the weights of
the one before.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tools.benchmarks.plots import COLOURS, GREY, save, style

RUNS = Path(__file__).parent / "runs.jsonl"


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw the WER of each voice over the hours of all runs, one run behind the other."""
    begins = {1: 0.0}
    for line in lines:
        begins[line["run"] + 1] = begins[line["run"]] + line["hours"]
    voices = sorted({voice for line in lines for voice in line["wer"]})
    with style():
        figure = Figure(figsize=(9, 4), layout="constrained")
        ax = figure.subplots()
        for number, voice in enumerate(voices):
            seen = [(begins[line["run"]] + line["hours"], line["wer"][voice]) for line in lines if voice in line["wer"]]
            colour, line_style = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
            ax.plot(*zip(*seen, strict=True), color=colour, linestyle=line_style, marker=".", label=voice)
        for run in sorted({line["run"] for line in lines})[1:]:
            ax.axvline(begins[run], color=GREY, lw=0.8)
        ax.set(xlabel="hours of audio", ylabel="WER, %", ylim=(0, 80))
        figure.legend(loc="outside lower center", ncols=4)
        save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw how nano.en learnt.")
    parser.add_argument("--out", type=Path, required=True, help="the picture to write")
    options = parser.parse_args()
    draw([json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()], options.out)


if __name__ == "__main__":
    main()
