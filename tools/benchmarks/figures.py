"""The figures of a system over recordings (docs/operations.md): accuracy, delay, stability, cost."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np

from tools.benchmarks.emission import Emission, emissions, in_words, place, visible
from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.text import Errors, Normaliser, align, edits, errors
from tools.benchmarks.timeline import Timeline
from tools.benchmarks.unsaid import Span, unsaid
from tools.benchmarks.utterances import Utterance, beginnings, split, summary

# Percentiles of delays that are reported.
QUANTILES = (50, 90, 99)


@dataclass(slots=True)
class Figures:
    """What one system did over recordings; `pool` adds several."""

    system: str
    recordings: list[str]
    audio_s: float

    # Errors of the finals, of the finals with later corrections, and of the same model's offline transcript.
    streamed: Errors = field(default_factory=Errors)
    corrected: Errors = field(default_factory=Errors)
    offline: Errors = field(default_factory=Errors)

    # The same utterance by utterance.
    utterances: list[Utterance] = field(default_factory=list)

    # Right words of the finals that corrections made wrong, and wrong ones made right; None if the system makes none.
    harmed: int | None = None
    mended: int | None = None

    # Of recordings without speech: their length, words of the finals, and all words that were displayed.
    silent_s: float = 0.0
    hallucinated: int = 0
    hallucinated_shown: int = 0

    # Seconds from the end of each word to its first display, to its promise, and to the last change of it.
    first_seen: list[float] = field(default_factory=list)
    stable: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)

    # For each utterance: from its onset to its first text, and from its end to the promise of its last word.
    first_partial_s: list[float] = field(default_factory=list)
    finalisation_s: list[float] = field(default_factory=list)

    # Words removed or replaced over all revisions, those of them that had been promised, and words of the final text.
    erased: int = 0
    broken_promises: int = 0
    n_final: int = 0

    # Words of the reference whose times are known.
    n_said: int = 0

    # Detected speech in no word and in no gap; None if the times of words are unknown.
    unsaid_s: float | None = None

    gap_s: float = 0.0
    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0
    energy_j: float | None = None
    encoder_calls: int | None = None
    decoder_calls: int | None = None

    def summary(self) -> dict[str, float | None]:
        """Return every figure as one number; None if it is unknown or does not apply."""
        figures: dict[str, float | None] = {
            "recordings": len(self.recordings),
            "audio_s": self.audio_s,
            "wer_offline": self.offline.rate,
            "wer_streamed": self.streamed.rate,
            "wer_corrected": self.corrected.rate,
            **summary(self.utterances),
            "harmed_words": self.harmed,
            "mended_words": self.mended,
            "substitutions": self.streamed.substitutions,
            "deletions": self.streamed.deletions,
            "insertions": self.streamed.insertions,
            "doubled_words": self.streamed.doubled,
            "dropped_words": self.streamed.dropped,
            "hallucinated_per_min": _ratio(60 * self.hallucinated, self.silent_s),
            "hallucinated_shown_per_min": _ratio(60 * self.hallucinated_shown, self.silent_s),
            "share_measured": _ratio(len(self.stable), self.n_said),
        }
        for name in ("first_seen", "stable", "settled"):
            figures |= {f"{name}_p{q}_s": quantile(getattr(self, name), q) for q in QUANTILES}
        for name in ("first_partial", "finalisation"):
            figures |= {f"{name}_p{q}_s": quantile(getattr(self, f"{name}_s"), q) for q in QUANTILES}
        return figures | {
            "normalised_erasure": _ratio(self.erased, self.n_final),
            "broken_promises": self.broken_promises,
            "cpu_per_audio": _ratio(self.cpu_s, self.audio_s),
            "energy_j_per_audio_s": _ratio(self.energy_j, self.audio_s),
            "encoder_calls_per_audio_s": _ratio(self.encoder_calls, self.audio_s),
            "decoder_calls_per_audio_s": _ratio(self.decoder_calls, self.audio_s),
            "peak_rss_mb": self.peak_rss_mb,
            "gap_s": self.gap_s,
            "unsaid_s": self.unsaid_s,
        }


def measure(
    timeline: Timeline,
    text: str,
    words: Sequence[SpokenWord],
    normalise: Normaliser,
    *,
    offline_text: str | None = None,
    speech: Sequence[Span] = (),
) -> Figures:
    """Compute the figures of one recording.

    text : everything that is said
    words : the same in words, if their times are known
    offline_text : the same model's transcript of the whole recording
    speech : where the detector finds some

    Erased words for each final word are the normalised erasure of Arivazhagan et al. 2020,
    https://arxiv.org/abs/2004.03643.
    """
    normalise = functools.cache(normalise)
    shown = [in_words(revision, normalise) for revision in visible(timeline.revisions)]
    final = shown[-1].words if shown else ()
    figures = Figures(
        timeline.system,
        [timeline.recording],
        timeline.audio_s,
        erased=erased([revision.words for revision in visible(timeline.revisions)]),
        # Promises also count for programs, which see revisions that are too short for a person.
        broken_promises=broken_promises([(revision.words, revision.n_stable) for revision in timeline.revisions]),
        n_final=len(timeline.revisions[-1].words) if timeline.revisions else 0,
        gap_s=sum(end - start for start, end in timeline.gaps),
        cpu_s=timeline.cpu_s,
        peak_rss_mb=timeline.peak_rss_mb,
        energy_j=timeline.energy_j,
        encoder_calls=timeline.encoder_calls,
        decoder_calls=timeline.decoder_calls,
    )
    if timeline.words is not None:
        figures.unsaid_s = sum(speech_s for _, _, speech_s in unsaid(speech, [*timeline.words, *timeline.gaps]))
    if spoken := normalise(text).split():
        _add_errors(figures, timeline, spoken, words, offline_text, normalise)
    else:
        figures.silent_s = timeline.audio_s
        figures.hallucinated = len(final)
        figures.hallucinated_shown = len(final) + erased([revision.words for revision in shown])
    if shown:
        _add_delays(figures, timeline, words, normalise)
    figures.n_said = sum(bool(normalise(word.word)) for word in words)
    return figures


def _add_errors(
    figures: Figures,
    timeline: Timeline,
    spoken: Sequence[str],
    words: Sequence[SpokenWord],
    offline_text: str | None,
    normalise: Normaliser,
) -> None:
    """Add what is wrong with the finals, with the finals as they were corrected, and with the offline text."""
    written = " ".join(timeline.revisions[-1].words) if timeline.revisions else ""
    streamed = normalise(written).split()
    corrected = streamed if timeline.corrected is None else normalise(timeline.corrected).split()
    offline = None if offline_text is None else normalise(offline_text).split()
    figures.streamed = errors(spoken, streamed)
    figures.corrected = errors(spoken, corrected)
    if offline is not None:
        figures.offline = errors(spoken, offline)
    figures.utterances = split(spoken, words, (streamed, corrected, offline), normalise)
    if timeline.corrected is not None:
        before, after = _wrong(spoken, streamed), _wrong(spoken, corrected)
        figures.harmed, figures.mended = len(after - before), len(before - after)


def _wrong(spoken: Sequence[str], text: Sequence[str]) -> set[int]:
    """Return the indices of the words of the reference that a text has not."""
    return {i for tag, i in edits(spoken, text) if tag != "insert"}


def _add_delays(figures: Figures, timeline: Timeline, words: Sequence[SpokenWord], normalise: Normaliser) -> None:
    """Add the delays of each word that the final text has, and of each utterance."""
    shown = [in_words(revision, normalise) for revision in visible(timeline.revisions)]
    final = shown[-1].words
    placed = [place(revision.words, final) for revision in shown]
    said = [SpokenWord(normalise(word.word), word.start, word.end) for word in words]
    said = [word for word in said if word.word]
    pairs = align([word.word for word in said], final).pairs
    begins_s: list[float | None] = [None] * len(final)
    for i, j in pairs:
        begins_s[j] = said[i].start
    emitted: list[Emission] = emissions(shown, placed, len(final), begins_s)

    def when_s(number: int | None) -> float:
        # What never happened counts from the end.
        return max(timeline.audio_s, shown[-1].wall_s) if number is None else shown[number].wall_s

    for i, j in pairs:
        figures.first_seen.append(when_s(emitted[j].first) - said[i].end)
        figures.stable.append(when_s(emitted[j].stable) - said[i].end)
        figures.settled.append(when_s(emitted[j].settled) - said[i].end)

    for first, behind in pairwise([*beginnings(said), len(said)]):
        of_utterance = [(i, j) for i, j in pairs if first <= i < behind]
        if not of_utterance:
            continue
        onset_s, first_word = said[first].start, of_utterance[0][1]
        for revision, at in zip(shown, placed, strict=True):
            if revision.wall_s >= onset_s and at.reach > first_word:
                figures.first_partial_s.append(revision.wall_s - onset_s)
                break
        # Words at the end that the transcript lacks are errors, not delays.
        last_s = max(when_s(emitted[j].stable) for _, j in of_utterance)
        figures.finalisation_s.append(last_s - said[of_utterance[-1][0]].end)


def pool(figures: Sequence[Figures]) -> Figures:
    """Add the figures of a system's recordings. Raises ValueError if there are none."""
    if not figures:
        raise ValueError("no figures to pool: expected those of at least one recording")
    total = Figures(figures[0].system, [], 0.0)
    for name in (f.name for f in fields(Figures) if f.name != "system"):
        values = [getattr(f, name) for f in figures]
        if name == "peak_rss_mb":
            setattr(total, name, max(values))
        elif None not in values:
            setattr(total, name, reduce(add, values))
    return total


def quantile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile, None if there are no values."""
    return float(np.percentile(values, percent)) if values else None


def erased(texts: Sequence[tuple[str, ...]]) -> int:
    """Return how many words must be deleted over all texts so that each can continue as the next."""
    return sum(len(a) - _common_prefix(a, b) for a, b in pairwise(texts))


def broken_promises(texts: Sequence[tuple[tuple[str, ...], int]]) -> int:
    """Return how many stable words the next text does not have; texts are (words, n_stable).

    The promise is about characters: the last stable word may grow, as "President" to "President's".
    """
    n_broken = 0
    for (words, n_stable), (following, _) in pairwise(texts):
        n_kept = _common_prefix(words[:n_stable], following)
        grown = n_kept == n_stable - 1 < len(following) and following[n_kept].startswith(words[n_kept])
        n_broken += 0 if grown else n_stable - n_kept
    return n_broken


def _common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _ratio(a: float | None, b: float) -> float | None:
    return None if a is None or not b else a / b
