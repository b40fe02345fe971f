"""Pictures of what was measured: how long words take, how the screen changes, and one recording from word to word."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.benchmarks.emission import emissions, in_words, place, visible
from tools.benchmarks.figures import Figures
from tools.benchmarks.measure import SpokenWord
from tools.benchmarks.stability import common_prefix
from tools.benchmarks.text import Normaliser, align
from tools.benchmarks.timeline import Timeline

# Colours that people who see colours differently can tell apart. Source: Okabe and Ito, Color Universal Design.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TAKEN_BACK = "#D55E00"
GREY = "#999999"

# Part of a recording whose words are drawn one by one.
DRAWN_S = 20.0


def plot_delays(systems: Mapping[str, Figures], path: Path) -> None:
    """Draw which share of the words that were said was seen, and was stable, how long after; some never are."""
    with style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, title, delays in (
            (axes[0], "first seen", {name: f.first_seen.aware for name, f in systems.items()}),
            (axes[1], "stable", {name: f.stable.aware for name, f in systems.items()}),
        ):
            _draw_shares(ax, delays, max(f.n_said for f in systems.values()))
            ax.set(title=f"words {title}", xlabel="seconds after the end of the word, by the clock")
        axes[0].set_ylabel("share of the words said")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(systems))
        save(figure, path)


def plot_stability(timelines: Sequence[Timeline], path: Path) -> None:
    """Draw how many words on screen may still change, from moment to moment, and how many are taken back."""
    with style():
        figure = Figure(figsize=(9, 1.2 + 1.9 * len(timelines)), layout="constrained")
        all_axes = figure.subplots(len(timelines), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for ax, timeline in zip(all_axes, timelines, strict=True):
            revisions = visible(timeline.revisions)
            times_s = [0.0, *(revision.wall_s for revision in revisions)]
            n_open = [0, *(len(revision.words) - revision.n_stable for revision in revisions)]
            ax.fill_between(times_s, n_open, step="post", color=COLOURS[0], alpha=0.4, lw=0, label="not promised yet")
            taken = [(b.wall_s, len(a.words) - common_prefix(a.words, b.words)) for a, b in pairwise(revisions)]
            taken = [(time_s, n) for time_s, n in taken if n]
            ax.vlines([t for t, _ in taken], [-n for _, n in taken], 0, color=TAKEN_BACK, lw=2, label="taken back")
            ax.axhline(0, color="black", lw=0.6)
            n_taken = sum(n for _, n in taken)
            n_final = len(revisions[-1].words) if revisions else 0
            ax.set_title(f"{timeline.system}: {n_taken} words taken back, {n_final} stayed")
            ax.set_ylabel("words")
            ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
            ax.set_xlim(left=0)
        all_axes[-1].set_xlabel(f"seconds of {timelines[0].recording}, by the clock")
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save(figure, path)


def plot_recording(
    timelines: Sequence[Timeline], words: Sequence[SpokenWord], normalise: Normaliser, path: Path
) -> None:
    """Draw for each word of a recording's beginning when it was said, first seen, and stable."""
    drawn = [word for word in words if word.end <= DRAWN_S]
    with style():
        figure = Figure(figsize=(9, 1.5 + 0.14 * len(drawn)), layout="constrained")
        ax = figure.subplots()
        for i, word in enumerate(drawn):
            ax.plot([word.start, word.end], [i, i], color="black", lw=3, solid_capstyle="butt")
        height = 0.8 / max(1, len(timelines))
        for number, timeline in enumerate(timelines):
            colour = COLOURS[number % len(COLOURS)]
            offset = height * (number + 0.5) - 0.4
            for i, first_s, stable_s in _times(timeline, words, normalise):
                if i >= len(drawn):
                    break
                ax.plot([first_s, stable_s], [i + offset, i + offset], color=colour, lw=1)
                ax.plot(first_s, i + offset, "o", ms=2.5, mfc="white", mec=colour, mew=0.8)
                ax.plot(stable_s, i + offset, "o", ms=2.5, color=colour)
            ax.plot([], [], "-o", ms=3, color=colour, lw=1, label=timeline.system)
        ax.plot([], [], color="black", lw=3, label="said")
        ax.set_yticks(range(len(drawn)), [word.word for word in drawn], fontsize=6)
        ax.set_ylim(len(drawn) - 0.4, -0.6)
        ax.set(
            title=f"{timelines[0].recording}: from first seen (ring) to stable (dot)", xlabel="seconds, by the clock"
        )
        ax.legend(loc="lower left")
        save(figure, path)


def style() -> AbstractContextManager[None]:
    """Return the context in which all pictures are drawn."""
    return mpl.rc_context(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e6e6e6",
            "legend.frameon": False,
            "svg.hashsalt": "streamer",  # the same picture is the same file
        }
    )


def _draw_shares(ax: Axes, delays: Mapping[str, Sequence[float]], n_said: int) -> None:
    longest_s = max((float(np.percentile(values, 99)) for values in delays.values() if values), default=1.0)
    for number, (name, values) in enumerate(delays.items()):
        share = np.arange(1, len(values) + 1) / max(1, n_said)
        ax.step(np.sort(values), share, where="post", lw=1.6, color=COLOURS[number % len(COLOURS)], label=name)
    for share_of_words in (0.5, 0.9):
        ax.axhline(share_of_words, color=GREY, lw=0.8, ls="--")
    ax.set(xlim=(min(0.0, *(min(values, default=0.0) for values in delays.values())), 1.05 * longest_s), ylim=(0, 1))
    ax.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 1])


def _times(timeline: Timeline, words: Sequence[SpokenWord], normalise: Normaliser) -> list[tuple[int, float, float]]:
    """Return (number, first seen, stable) of each word that the system has, in seconds by the clock."""
    shown = [in_words(revision, normalise) for revision in visible(timeline.revisions)]
    if not shown:
        return []
    final = shown[-1].words
    begins_s: list[float | None] = [None] * len(final)
    pairs = align([normalise(word.word) for word in words], final).pairs
    for i, j in pairs:
        begins_s[j] = words[i].start
    emitted = emissions(shown, [place(revision.words, final) for revision in shown], len(final), begins_s)
    times = []
    for i, j in pairs:
        first, stable = emitted[j].first, emitted[j].stable
        if first is not None:
            end_s = max(timeline.audio_s, shown[-1].wall_s)
            times.append((i, shown[first].wall_s, end_s if stable is None else shown[stable].wall_s))
    return times


def save(figure: Figure, path: Path) -> None:
    """Save as the name's ending says, without the date."""
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)
