"""Pauses within sentences against those behind them: which are taken for the end of a turn, by silence and by a model.

A pause is silence of the speech detector that a turn model is asked about. A turn ends there if the word before it ends
a sentence in the reference, or the recording ends. What the model is given is that of a live session whose turns have
been found so far.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.offline.speech import SpeechFinder
from streamer.session.gate import PAUSE_SAMPLES, SpeechEnd, SpeechStart
from streamer.settings.table import SpeechSettings
from tools.benchmarks.recordings import Recording

# Silence that ends speech, in seconds.
SILENCES_S = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5)

GATE = SpeechSettings(min_silence_s=PAUSE_SAMPLES / SAMPLE_RATE, pad_s=0.0)
_SENTENCE_ENDS = (".", "?", "!")
_CLOSING = "\"'”’)"


class Pause(NamedTuple):
    """A pause."""

    length_s: float  # infinite at the end of the recording
    ends: bool  # whether a turn ends there
    probability: float  # of that, as the model has it


class Found(NamedTuple):
    """What a rule makes of pauses."""

    cut: float  # share of the pauses within sentences that it takes for an end
    ends: float  # share of the ends that it finds before speech goes on
    wait_s: float  # mean time after speech at which it finds them


def pauses_of(recording: Recording, probability: Callable[[Float32Array], float]) -> list[Pause]:
    """Return the pauses of a recording, whose words have times.

    probability : of samples, shape (n,), that the speaker has finished
    """
    samples = np.concatenate([recording.samples(), np.zeros(2 * PAUSE_SAMPLES, dtype=np.float32)])
    changes = SpeechFinder(GATE).process(samples)
    starts = [change.position for change in changes if isinstance(change, SpeechStart)]
    ends = [change.position for change in changes if isinstance(change, SpeechEnd)]
    pauses: list[Pause] = []
    turn = starts[0] if starts else 0
    for end, following in zip(ends, [*starts[1:], math.inf], strict=False):
        before = [word.word for word in recording.words if (word.start + word.end) / 2 * SAMPLE_RATE < end]
        is_end = following == math.inf or (bool(before) and before[-1].rstrip(_CLOSING).endswith(_SENTENCE_ENDS))
        finished = probability(samples[turn : end + PAUSE_SAMPLES])
        pauses.append(Pause((following - end) / SAMPLE_RATE, is_end, finished))
        turn = int(following) if is_end and following < math.inf else turn
    return pauses


def judge(pauses: Sequence[Pause], silence_s: float, unfinished_s: float, threshold: float) -> Found:
    """Return what becomes of pauses if silence ends a turn: that of `unfinished_s` if it seems unfinished."""
    needed_s = [silence_s if pause.probability >= threshold else unfinished_s for pause in pauses]
    taken = [(pause.ends, needed) for pause, needed in zip(pauses, needed_s, strict=True) if pause.length_s >= needed]
    n_ends = sum(pause.ends for pause in pauses)
    found_s = [needed for ends, needed in taken if ends]
    return Found(
        cut=(len(taken) - len(found_s)) / max(1, len(pauses) - n_ends),
        ends=len(found_s) / max(1, n_ends),
        wait_s=sum(found_s) / max(1, len(found_s)),
    )


def show(pauses: Sequence[Pause], settings: SpeechSettings, console: Console) -> list[dict[str, float]]:
    """Print what silence makes of pauses, and the turn model with it; return the same for JSON."""
    n_ends = sum(pause.ends for pause in pauses)
    table = Table(title=f"{n_ends} ends of turns and {len(pauses) - n_ends} pauses within them")
    for column in ("Silence", "Cut", "Ends found", "after", "With the model: cut", "Ends found", "after"):
        table.add_column(column, justify="right")
    rows: list[dict[str, float]] = []
    for silence_s in SILENCES_S:
        alone = judge(pauses, silence_s, silence_s, 0.0)
        held = judge(pauses, silence_s, max(silence_s, settings.turn_silence_s), settings.turn_threshold)
        cells = [text for f in (alone, held) for text in (f"{f.cut:.0%}", f"{f.ends:.0%}", f"{f.wait_s:.2f} s")]
        table.add_row(f"{silence_s:g} s", *cells)
        rows.append({"silence_s": silence_s, "cut": alone.cut, "ends": alone.ends, "held_cut": held.cut})
        rows[-1] |= {"held_ends": held.ends, "held_wait_s": held.wait_s}
    console.print(table)
    return rows
