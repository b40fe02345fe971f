"""Who speaks in conversations of people, held against what is known of them: as live captions and as files."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pyannote.core import Annotation, Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate
from rich.console import Console
from rich.table import Table

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.live.speakers import RECENT_S, VectorOf
from streamer.speakers.diarization import Diarization
from tools.benchmarks.conversations import Conversation, regions

# Around each border of the reference nothing is scored: a quarter of a second on either side, as is usual.
COLLAR_S = 0.5

# How finely the answer is asked for.
STEP_S = 0.1

# Label by time in seconds.
Labels = list[tuple[float, str | None]]


@dataclass
class Score:
    """What was right and wrong in the conversations of a kind; seconds."""

    speech_s: float = 0.0
    confused_s: float = 0.0
    missed_s: float = 0.0
    false_s: float = 0.0
    # The sum of the three if all had been heard before, as of a file.
    wrong_in_file_s: float = 0.0
    # How many speakers were told apart, and how many there are.
    people: list[tuple[int, int]] = field(default_factory=list)

    @property
    def error_rate(self) -> float:
        """Diarisation error rate: confused, missed and false speech beside all speech."""
        return (self.confused_s + self.missed_s + self.false_s) / max(self.speech_s, 1e-9)


def measure_speakers(
    vector_of: VectorOf, wanted: Iterable[Conversation], title: str, console: Console
) -> dict[str, Any]:
    """Score conversations, print a table with a row for each kind, and return the figures."""
    scores: dict[str, Score] = {}
    costs: list[float] = []

    def timed(samples: Float32Array) -> Float32Array | None:
        begin = time.process_time()
        vector = vector_of(samples)
        costs.append(1000 * (time.process_time() - begin))
        return vector

    for conversation in wanted:
        score_conversation(conversation, timed, scores.setdefault(conversation.kind, Score()))
    table = Table(title=title, title_justify="left")
    for column in ("Kind", "DER %", "confused", "missed", "false", "files", "people right", "too few", "too many"):
        table.add_column(column, justify="left" if column == "Kind" else "right")
    for kind, score in scores.items():
        share = 100 / max(score.speech_s, 1e-9)
        figures = [100 * score.error_rate, *(share * s for s in (score.confused_s, score.missed_s, score.false_s))]
        figures.append(share * score.wrong_in_file_s)
        more = [found - there for found, there in score.people]
        table.add_row(
            kind,
            *(f"{figure:.1f}" for figure in figures),
            f"{more.count(0)} of {len(more)}",
            str(sum(n < 0 for n in more)),
            str(sum(n > 0 for n in more)),
        )
    console.print(table)
    cost_ms = float(np.median(costs))
    console.print(
        f"{len(costs)} windows, {cost_ms:.1f} ms of a core each: {cost_ms / 5:.1f} % of a core while somebody speaks"
    )
    return {"window_ms": cost_ms, "kinds": {kind: asdict(score) for kind, score in scores.items()}}


def score_conversation(conversation: Conversation, vector_of: VectorOf, score: Score) -> None:
    """Hear a conversation and add to a score."""
    diarization = Diarization({})
    merged: dict[str, str] = {}
    told: Labels = []
    for start, end in regions(conversation.samples):
        diarization.begin(start)
        diarization.end(end)
        while (window := diarization.next_window(end)) is not None:
            samples = conversation.samples[slice(*window)]
            diarization.take(window, samples, vector_of(samples))
        merged.update(diarization.take_merged())
        # What a client knows once the region is over; of the last minute it is told once more.
        told += [(float(at), None) for at in np.arange(start / SAMPLE_RATE, end / SAMPLE_RATE, STEP_S)]
        recent_s = start / SAMPLE_RATE - RECENT_S
        told = [(at, diarization.speaker(at, at + STEP_S) if at > recent_s else label) for at, label in told]

    def resolved(label: str | None) -> str | None:
        while label in merged:
            label = merged[label]
        return label

    live = [(at, resolved(label)) for at, label in told]
    rates = _error_rate(conversation, live)
    score.speech_s += rates["total"]
    score.confused_s += rates["confusion"]
    score.missed_s += rates["missed detection"]
    score.false_s += rates["false alarm"]
    in_file = _error_rate(conversation, [(at, diarization.speaker(at, at + STEP_S)) for at, _ in told])
    score.wrong_in_file_s += in_file["confusion"] + in_file["missed detection"] + in_file["false alarm"]
    score.people.append((len({label for _, label in live} - {None}), len({who for who, *_ in conversation.turns})))


def _error_rate(conversation: Conversation, labels: Labels) -> dict[str, float]:
    reference, answer = Annotation(), Annotation()
    for who, start_s, end_s in conversation.turns:
        reference[Segment(start_s, end_s), len(reference)] = who
    for at, label in labels:
        if label is not None:
            answer[Segment(at, at + STEP_S), len(answer)] = label
    whole = Timeline([Segment(0.0, len(conversation.samples) / SAMPLE_RATE)])
    rates: dict[str, float] = DiarizationErrorRate(collar=COLLAR_S)(
        reference, answer.support(), uem=whole, detailed=True
    )
    return rates
