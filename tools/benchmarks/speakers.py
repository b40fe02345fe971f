"""Who speaks in synthetic conversations, held against what is known of them: as live captions and as files."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pyannote.core import Annotation, Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.live.speakers import RECENT_S, VectorOf
from streamer.settings.apply import gate_settings
from streamer.settings.table import SpeechSettings
from streamer.speakers.hearing import Hearing
from streamer.stream.gate import SpeechEnd, SpeechGate, SpeechStart
from tools.benchmarks.conversations import Conversation, make

# Words of one turn with less than this between them are one stretch of the reference.
PAUSE_S = 0.3

# Around each border of the reference nothing is scored: a quarter of a second on either side, as is usual.
COLLAR_S = 0.5

# How finely the answer is asked for.
STEP_S = 0.1

Answer = Callable[[float, float], str | None]


@dataclass
class Score:
    """What was right and wrong in the conversations of a kind; seconds and words."""

    speech_s: float = 0.0
    confused_s: float = 0.0
    missed_s: float = 0.0
    false_s: float = 0.0
    n_words: int = 0
    n_right: int = 0
    n_unlabelled: int = 0
    # The same words when all had been heard, as of a file.
    n_right_in_file: int = 0
    # How many speakers were told apart, and how many there are.
    people: list[tuple[int, int]] = field(default_factory=list)

    @property
    def error_rate(self) -> float:
        """Diarisation error rate: confused, missed and false speech beside all speech."""
        return (self.confused_s + self.missed_s + self.false_s) / max(self.speech_s, 1e-9)


def measure_speakers(
    vector_of: VectorOf, half: str, kinds: Sequence[str], n_each: int, minutes: float, seed: int, console: Console
) -> dict[str, Any]:
    """Make conversations, print what is told of them, and return the figures. Raises SynthesisError."""
    scores: dict[str, Score] = {}
    costs: list[float] = []

    def timed(samples: Float32Array) -> Float32Array | None:
        begin = time.process_time()
        vector = vector_of(samples)
        costs.append(1000 * (time.process_time() - begin))
        return vector

    for kind in kinds:
        for number in range(n_each):
            score_conversation(make(half, kind, number, minutes, seed), timed, scores.setdefault(kind, Score()))
    table = Table(title=f"Who speaks, {half}, {n_each} conversations of {minutes:g} min a kind", title_justify="left")
    for column in ("Kind", "DER %", "confused", "missed", "false", "words wrong %", "unlabelled", "in files", "people"):
        table.add_column(column, justify="left" if column == "Kind" else "right")
    for kind, score in scores.items():
        share, words = 100 / score.speech_s, 100 / score.n_words
        wrong = score.n_words - score.n_right - score.n_unlabelled
        figures = [100 * score.error_rate, share * score.confused_s, share * score.missed_s, share * score.false_s]
        figures += [words * wrong, words * score.n_unlabelled, words * (score.n_words - score.n_right_in_file)]
        people = ", ".join(f"{found} of {there}" for found, there in score.people)
        table.add_row(kind, *(f"{figure:.1f}" for figure in figures), people)
    console.print(table)
    cost_ms = float(np.median(costs))
    console.print(
        f"{len(costs)} windows, {cost_ms:.1f} ms of a core each: {cost_ms / 5:.1f} % of a core while somebody speaks"
    )
    return {"half": half, "window_ms": cost_ms, "kinds": {kind: asdict(score) for kind, score in scores.items()}}


def score_conversation(conversation: Conversation, vector_of: VectorOf, score: Score) -> None:
    """Hear a conversation and add to a score."""
    hearing = Hearing({})
    merged: dict[str, str] = {}
    told: list[tuple[float, str | None]] = []
    regions = _regions(conversation.samples)
    for start, end in regions:
        hearing.begin(start)
        hearing.end(end)
        while (window := hearing.next_window(end)) is not None:
            samples = conversation.samples[slice(*window)]
            hearing.take(window, samples, vector_of(samples))
        merged.update(hearing.take_merged())
        # What a client knows once the region is over; of the last minute it is told once more.
        told += [(float(at), None) for at in np.arange(start / SAMPLE_RATE, end / SAMPLE_RATE, STEP_S)]
        recent_s = start / SAMPLE_RATE - RECENT_S
        told = [(at, hearing.speaker(at, at + STEP_S) if at > recent_s else label) for at, label in told]

    def resolved(label: str | None) -> str | None:
        while label in merged:
            label = merged[label]
        return label

    times = np.array([at for at, _ in told])

    def live(start_s: float, end_s: float) -> str | None:
        nearest = int(np.argmin(np.abs(times + STEP_S / 2 - (start_s + end_s) / 2)))
        return resolved(told[nearest][1])

    reference, answer = Annotation(), Annotation()
    for who, start_s, end_s in _stretches(conversation):
        reference[Segment(start_s, end_s), len(reference)] = who
    for at, label in told:
        if label is not None:
            answer[Segment(at, at + STEP_S), len(answer)] = resolved(label)
    whole = Timeline([Segment(0.0, len(conversation.samples) / SAMPLE_RATE)])
    rates = DiarizationErrorRate(collar=COLLAR_S)(reference, answer.support(), uem=whole, detailed=True)
    score.speech_s += rates["total"]
    score.confused_s += rates["confusion"]
    score.missed_s += rates["missed detection"]
    score.false_s += rates["false alarm"]
    n_right, labels = _right_words(conversation, live)
    score.n_words += len(labels)
    score.n_right += n_right
    score.n_unlabelled += labels.count(None)
    score.n_right_in_file += _right_words(conversation, hearing.speaker)[0]
    score.people.append((len({*labels} - {None}), len({who for who, _ in conversation.turns})))


def _regions(samples: Float32Array) -> list[tuple[int, int]]:
    """Return where speech is, as a session finds it."""
    detector, gate = SpeechDetector(), SpeechGate(gate_settings(SpeechSettings()))
    probabilities = detector.process(samples)
    borders = [gate.feed(n * CHUNK_SAMPLES, (n + 1) * CHUNK_SAMPLES, p) for n, p in enumerate(probabilities)]
    borders.append(gate.close(len(samples)))
    starts = [border.position for border in borders if isinstance(border, SpeechStart)]
    ends = [border.position for border in borders if isinstance(border, SpeechEnd)]
    return list(zip(starts, ends, strict=True))


def _stretches(conversation: Conversation) -> list[tuple[str, float, float]]:
    """Return who speaks from when to when."""
    found: list[tuple[str, float, float]] = []
    for who, words in conversation.turns:
        for number, word in enumerate(words):
            if number and word.start - found[-1][2] <= PAUSE_S:
                found[-1] = (who, found[-1][1], word.end)
            else:
                found.append((who, word.start, word.end))
    return found


def _right_words(conversation: Conversation, answer: Answer) -> tuple[int, list[str | None]]:
    """Return how many words have the label that stands for their speaker, and the labels of all."""
    said = [(who, answer(word.start, word.end)) for who, words in conversation.turns for word in words]
    people, labels = sorted({who for who, _ in said}), sorted({label for _, label in said if label is not None})
    together = np.array([[said.count((who, label)) for label in labels] for who in people])
    return int(together[linear_sum_assignment(-together)].sum()), [label for _, label in said]
