"""The figures of a system over recordings: accuracy, delay, stability, cost, loss."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import reduce
from operator import add
from typing import Self

import numpy as np

from tools.benchmarks.stability import Stability
from tools.benchmarks.text import Errors

# Percentiles of delays that are told.
QUANTILES = (50, 90, 99)

# What only some systems or recordings tell, and is pooled of these.
_KNOWN_OF_SOME = ("joins", "lost_s")


@dataclass(slots=True)
class Delays:
    """Seconds from the end of each word to a revision: by a wall clock, and by the audio that had been heard."""

    aware: list[float] = field(default_factory=list)
    unaware: list[float] = field(default_factory=list)

    def __add__(self, other: Self) -> "Delays":
        return Delays(self.aware + other.aware, self.unaware + other.unaware)


@dataclass(slots=True)
class Joins:
    """What happened near the places where two finals meet in the middle of speech."""

    n_joins: int = 0

    # Words of the reference near a join, those of them that were left out, and words that were said twice there.
    n_words: int = 0
    dropped: int = 0
    doubled: int = 0

    def __add__(self, other: Self) -> "Joins":
        return Joins(*map(add, astuple(self), astuple(other)))


@dataclass(slots=True)
class Figures:
    """What one system did over recordings; `pool` puts several together."""

    system: str
    recordings: list[str]
    audio_s: float

    # Of the finals, of the finals with later corrections, and of the same model's offline transcript.
    streamed: Errors = field(default_factory=Errors)
    corrected: Errors = field(default_factory=Errors)
    offline: Errors = field(default_factory=Errors)

    # Of recordings in which nothing is said: their length, words of the finals, and all words that were shown.
    silent_s: float = 0.0
    hallucinated: int = 0
    hallucinated_shown: int = 0

    # Words were seen first, were promised for good, and were not changed any more, as it turned out.
    first_seen: Delays = field(default_factory=Delays)
    stable: Delays = field(default_factory=Delays)
    settled: Delays = field(default_factory=Delays)

    # Words that were never promised: the end of the stream made them stable.
    n_never_stable: int = 0

    # For each stretch of speech, in seconds by the wall clock: from its onset to the first text of it, from its end to
    # its last word being stable, and the same without the deliberate wait for silence.
    first_partial_s: list[float] = field(default_factory=list)
    finalisation_s: list[float] = field(default_factory=list)
    finalisation_computed_s: list[float] = field(default_factory=list)

    # For each utterance that became final after its end: from its end to that, by the wall clock.
    ttfs_s: list[float] = field(default_factory=list)

    # Average lagging in seconds, by stable words, and by the wall clock as NAME_CA: AL and LAAL of each recording,
    # LongYAAL of each utterance.
    lagging_s: dict[str, list[float]] = field(default_factory=dict)

    stability: Stability = field(default_factory=Stability)

    # None: the system does not tell where its finals are.
    joins: Joins | None = None

    # Seconds of words that are in neither a final nor a gap (None as above), and of audio announced as lost.
    lost_s: float | None = None
    gap_s: float = 0.0

    # Words of the reference whose times are known, and of the final transcript.
    n_said: int = 0
    n_final_words: int = 0
    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0
    encoder_calls: int | None = None
    decoder_calls: int | None = None
    decoder_tokens: int | None = None
    settled_tokens: int | None = None

    def summary(self) -> dict[str, float | None]:
        """Return every figure as one number; None where it is not known or does not apply."""
        figures: dict[str, float | None] = {
            "recordings": len(self.recordings),
            "audio_s": self.audio_s,
            "wer_offline": self.offline.rate,
            "wer_streamed": self.streamed.rate,
            "wer_corrected": self.corrected.rate,
            "wer_streaming_costs": _difference(self.streamed.rate, self.offline.rate),
            "substitutions": self.streamed.substitutions,
            "deletions": self.streamed.deletions,
            "insertions": self.streamed.insertions,
            "doubled_words": self.streamed.doubled,
            "dropped_words": self.streamed.dropped,
            "doubled_words_offline": self.offline.doubled if self.offline.n_reference else None,
            "dropped_words_offline": self.offline.dropped if self.offline.n_reference else None,
            "joins": self.joins.n_joins if self.joins else None,
            "doubled_at_joins": self.joins.doubled if self.joins else None,
            "dropped_at_joins": self.joins.dropped if self.joins else None,
            "words_at_joins": self.joins.n_words if self.joins else None,
            "hallucinated_per_min": _ratio(60 * self.hallucinated, self.silent_s),
            "hallucinated_shown_per_min": _ratio(60 * self.hallucinated_shown, self.silent_s),
            "words_measured": len(self.stable.aware),
            "share_measured": _ratio(len(self.stable.aware), self.n_said),
            "words_never_stable": self.n_never_stable,
        }
        for name, delays in (("first_seen", self.first_seen), ("stable", self.stable), ("settled", self.settled)):
            for clock, values in (("", delays.aware), ("_unaware", delays.unaware)):
                figures |= {f"{name}{clock}_p{q}_s": quantile(values, q) for q in QUANTILES}
        for name, values in (
            ("first_partial", self.first_partial_s),
            ("finalisation", self.finalisation_s),
            ("finalisation_computed", self.finalisation_computed_s),
        ):
            figures |= {f"{name}_p{q}_s": quantile(values, q) for q in QUANTILES}
            figures[f"{name}_worst_s"] = max(values, default=None)
        figures |= {f"ttfs_p{q}_s": quantile(self.ttfs_s, q) for q in (50, 95)}
        for name in ("AL", "LAAL", "LongYAAL", "AL_CA", "LAAL_CA", "LongYAAL_CA"):
            values = self.lagging_s.get(name, [])
            figures[f"{name}_s"] = sum(values) / len(values) if values else None
        figures |= {
            "normalised_erasure": self.stability.normalised_erasure,
            "normalised_erasure_of_normalised": self.stability.normalised_erasure_of_normalised,
            "upwr": self.stability.upwr,
            "broken_promises": self.stability.broken_promises,
            "cpu_per_audio": _ratio(self.cpu_s, self.audio_s),
            "encoder_calls_per_audio_s": _ratio(self.encoder_calls, self.audio_s),
            "decoder_calls_per_audio_s": _ratio(self.decoder_calls, self.audio_s),
            "decoder_calls_per_token": _ratio(self.decoder_calls, self.decoder_tokens),
            "decoder_calls_per_found_token": _ratio(
                self.decoder_calls, _difference(self.decoder_tokens, self.settled_tokens)
            ),
            "decoder_calls_per_final_word": _ratio(self.decoder_calls, self.n_final_words),
            "peak_rss_mb": self.peak_rss_mb,
            "lost_s": self.lost_s,
            "gap_s": self.gap_s,
        }
        return figures


def pool(figures: Sequence[Figures]) -> Figures:
    """Put the figures of a system's recordings together; raises ValueError where there are none."""
    if not figures:
        raise ValueError("no figures to put together: expected those of at least one recording")
    total = Figures(figures[0].system, [], 0.0)
    for name in (f.name for f in fields(Figures) if f.name != "system"):
        values = [getattr(f, name) for f in figures]
        known = [value for value in values if value is not None]
        if name == "peak_rss_mb":
            setattr(total, name, max(known))
        elif name == "lagging_s":
            kinds = dict.fromkeys(kind for lagging_s in values for kind in lagging_s)
            total.lagging_s = {kind: [s for lagging_s in values for s in lagging_s.get(kind, [])] for kind in kinds}
        elif known and (len(known) == len(values) or name in _KNOWN_OF_SOME):
            setattr(total, name, reduce(add, known))
    return total


def quantile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile, None where there are no values."""
    return float(np.percentile(values, percent)) if values else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
