"""What a model costs over recordings and how well it does: figures, and a table of them."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamer.commands.words import compared, words
from streamer.outside import printable

# For a figure that is not known.
NOTHING = "–"

# By the names in `FIGURES`; None: not measured.
Figures = Mapping[str, float | None]

# Percentiles of delays that are reported.
_DELAYS = (("first_seen", 50), ("stable", 50), ("stable", 90), ("finalisation", 50))


# Resamples of the units of speech, for an interval, and words of a unit: about an utterance.
_N_RESAMPLES = 2000
_N_UNIT = 20


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model made of one recording."""

    # Start in seconds, and text, of each segment.
    segments: Sequence[tuple[float, str]]

    # The same of the same model's offline text; None: not transcribed offline.
    offline: Sequence[tuple[float, str]] | None = None

    # Code such as `en`; empty if nothing is said.
    language: str

    audio_s: float

    # Seconds of computing, and of all processor cores together, without loading the model.
    wall_s: float
    cpu_s: float

    # Joules of all processors together, with what else they did; None: the machine reports none.
    energy_j: float | None = None

    # Of live captions, as `words.word_delays` names them.
    delays_s: Mapping[str, Sequence[float]] = {}


class Figure(NamedTuple):
    """How a figure is shown."""

    title: str
    name: str
    digits: int = 0
    scale: float = 1.0


FIGURES = (
    Figure("Words", "words"),
    Figure("WER, %", "wer", 1, 100),
    Figure("WER offline, %", "wer_offline", 1, 100),
    Figure("WER - offline, points", "delta", 1, 100),
    Figure("95 % from, points", "delta_low", 1, 100),
    Figure("95 % to, points", "delta_high", 1, 100),
    Figure("Substituted", "substitutions"),
    Figure("Deleted", "deletions"),
    Figure("Inserted", "insertions"),
    Figure("RTF: computing / audio", "real_time_factor", 3),
    Figure("CPU time / audio", "cpu_per_audio", 2),
    Figure("Energy / audio, J/s", "energy_j_per_audio_s", 2),
    Figure("Computing, s", "wall_s", 2),
    Figure("First seen p50, s", "first_seen_p50_s", 2),
    Figure("Stable p50, s", "stable_p50_s", 2),
    Figure("Stable p90, s", "stable_p90_s", 2),
    Figure("Speech end to stable p50, s", "finalisation_p50_s", 2),
    Figure("Load, s", "load_s", 1),
    Figure("Memory, MB", "peak_rss_mb"),
)


def figures(runs: Sequence[Run], references: Sequence[str]) -> dict[str, float | None]:
    """Return the figures of a model over recordings, by the names in `FIGURES`, and the seconds of audio.

    references : what is said in each recording; or none

    Those of loading and memory are the caller's to measure.
    """
    audio_s, wall_s = sum(run.audio_s for run in runs), sum(run.wall_s for run in runs)
    energies_j = [run.energy_j for run in runs if run.energy_j is not None]
    return {
        **_errors(runs, [compared(words([(0.0, text)])) for text in references]),
        "audio_s": audio_s,
        # Seconds of computing for each second of audio, and the same of processor time.
        "real_time_factor": wall_s / audio_s if audio_s else None,
        "cpu_per_audio": sum(run.cpu_s for run in runs) / audio_s if audio_s else None,
        "energy_j_per_audio_s": sum(energies_j) / audio_s if audio_s and len(energies_j) == len(runs) else None,
        "wall_s": wall_s,
        **{f"{name}_p{percent}_s": _percentile(runs, name, percent) for name, percent in _DELAYS},
    }


def _errors(runs: Sequence[Run], said: Sequence[Sequence[str]]) -> dict[str, float | None]:
    texts = [compared(words(run.segments)) for run in runs]
    offline = [compared(words(run.offline)) for run in runs if run.offline is not None]
    n_said = sum(map(len, said))
    wrong = edits(said, texts) if said else []
    kinds = Counter(kind for kind, _ in wrong)
    found: dict[str, float | None] = {
        "words": sum(map(len, texts)),
        "wer": len(wrong) / n_said if n_said else None,
        "substitutions": kinds["replace"] if said else None,
        "deletions": kinds["delete"] if said else None,
        "insertions": kinds["insert"] if said else None,
        **dict.fromkeys(("wer_offline", "delta", "delta_low", "delta_high")),
    }
    if n_said and len(offline) == len(said):
        wrong_offline = edits(said, offline)
        sizes = [min(_N_UNIT, n_said - first) for first in range(0, n_said, _N_UNIT)]
        live, beside = (Counter(word // _N_UNIT for _, word in each) for each in (wrong, wrong_offline))
        # The WER less the offline one, and its 95 % confidence interval.
        found["wer_offline"], found["delta"] = len(wrong_offline) / n_said, (len(wrong) - len(wrong_offline)) / n_said
        found["delta_low"], found["delta_high"] = interval([live[k] - beside[k] for k in range(len(sizes))], sizes)
    return found


def edits(said: Sequence[Sequence[str]], texts: Sequence[Sequence[str]]) -> list[tuple[str, int]]:
    """Return `replace`, `delete` or `insert` for each error of texts, and its word among all that is said."""
    from rapidfuzz.distance import Levenshtein  # here, as only the extra `compare` brings it

    *firsts, n_said = itertools.accumulate(map(len, said), initial=0)
    last = max(0, n_said - 1)
    return [
        (edit.tag, min(first + edit.src_pos, last))
        for first, *pair in zip(firsts, said, texts, strict=True)
        for edit in Levenshtein.editops(*pair)
    ]


def interval(numerators: Sequence[int], denominators: Sequence[int]) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % confidence interval of a ratio of sums over units of speech; None for fewer than two.

    numerators : of each unit, such as the words that are wrong in one text less those in another, which pairs the two
    denominators : of each unit, such as its words

    Source: the bootstrap of Bisani & Ney 2004, "Bootstrap estimates for confidence intervals in ASR performance
    evaluation".
    """
    n_units = len(numerators)
    if n_units < 2:
        return None, None
    drawn = np.random.default_rng(0).multinomial(n_units, np.full(n_units, 1 / n_units), _N_RESAMPLES)
    above, below = drawn @ np.array(numerators), drawn @ np.array(denominators)
    low, high = np.percentile(above[below > 0] / below[below > 0], (2.5, 97.5))
    return float(low), float(high)


def languages(runs: Sequence[Run]) -> str:
    """Return the languages of recordings, with commas between them."""
    return ", ".join(dict.fromkeys(run.language for run in runs if run.language))


def _percentile(runs: Sequence[Run], name: str, percent: int) -> float | None:
    delays_s = [delay_s for run in runs for delay_s in run.delays_s.get(name, ())]
    return float(np.percentile(delays_s, percent)) if delays_s else None


def print_figures(models: Mapping[str, Figures], console: Console, rows: Sequence[Figure] = FIGURES) -> None:
    """Print the figures that are known of at least one model, a column for each model."""
    table = Table("", title="Models", title_justify="left")
    for name in models:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    for row in rows:
        if any(found.get(row.name) is not None for found in models.values()):
            table.add_row(row.title, *(_shown(found.get(row.name), row) for found in models.values()))
    console.print(table, markup=False)


def _shown(value: float | None, figure: Figure) -> str:
    return NOTHING if value is None else f"{value * figure.scale:.{figure.digits}f}"
