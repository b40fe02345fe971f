"""The figures of a system over recordings: accuracy, delay, stability, cost.

Delays are those of the words of the final transcript. Where a displayed text's words stand in it is found by aligning
the text with that beginning of the transcript which it is most like (the fewest edits; of several such beginnings the
longest): a word is shown if it stands opposite an equal word. So a text whose earlier words still change does not hide
that its later words are there already, and a word that occurs again later is not taken for that later one.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
from rapidfuzz.distance import Levenshtein

from streamer.commands.figures import edits
from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.text import Errors, Normaliser, align, errors
from tools.benchmarks.timeline import Revision, Timeline
from tools.benchmarks.unsaid import Span, unsaid
from tools.benchmarks.utterances import Utterance, beginnings, split, summary

# Delays of words, and of utterances; and their percentiles that are reported.
DELAYS = ("first_seen", "stable", "settled", "first_partial", "finalisation")
QUANTILES = (50, 90, 99)

# What is replaced sooner than this is not seen: a screen draws sixty pictures a second.
FRAME_S = 1 / 60


@dataclass(slots=True)
class Figures:
    """What one system did over recordings; `pool` adds several."""

    # Sums by name; what is unknown or does not apply is missing.
    sums: dict[str, float]
    peak_rss_mb: float

    # Errors of the finals, of the finals with later corrections, and of the same model's offline transcript.
    streamed: Errors = field(default_factory=Errors)
    corrected: Errors = field(default_factory=Errors)
    offline: Errors = field(default_factory=Errors)

    # The same utterance by utterance.
    utterances: list[Utterance] = field(default_factory=list)

    # Seconds. Of each word: from its end to its first display, to its promise (`stable`), and to its last change
    # (`settled`). Of each utterance: from its onset to its first text (`first_partial`), and from its end to the
    # promise of its last word (`finalisation`).
    delays: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in DELAYS})

    def summary(self) -> dict[str, float | None]:
        """Return every figure as one number; None if it is unknown or does not apply."""
        sums = self.sums
        names = ("substitutions", "deletions", "insertions")
        return {
            "recordings": sums["recordings"],
            "audio_s": sums["audio_s"],
            "wer_offline": self.offline.rate,
            "wer_streamed": self.streamed.rate,
            "wer_corrected": self.corrected.rate,
            **summary(self.utterances),
            "harmed_words": sums.get("harmed"),
            "mended_words": sums.get("mended"),
            **{name: getattr(self.streamed, name) for name in names},
            "doubled_words": self.streamed.doubled,
            "dropped_words": self.streamed.dropped,
            "hallucinated_per_min": _ratio(60 * sums["hallucinated"], sums["silent_s"]),
            "hallucinated_shown_per_min": _ratio(60 * sums["hallucinated_shown"], sums["silent_s"]),
            "share_measured": _ratio(len(self.delays["stable"]), sums["n_said"]),
            **{f"{name}_p{q}_s": quantile(self.delays[name], q) for name in DELAYS for q in QUANTILES},
            "normalised_erasure": _ratio(sums["erased"], sums["n_final"]),
            "broken_promises": sums["broken_promises"],
            "cpu_per_audio": _ratio(sums["cpu_s"], sums["audio_s"]),
            "energy_j_per_audio_s": _ratio(sums.get("energy_j"), sums["audio_s"]),
            "encoder_calls_per_audio_s": _ratio(sums.get("encoder_calls"), sums["audio_s"]),
            "decoder_calls_per_audio_s": _ratio(sums.get("decoder_calls"), sums["audio_s"]),
            "peak_rss_mb": self.peak_rss_mb,
            "gap_s": sums["gap_s"],
            "unsaid_s": sums.get("unsaid_s"),
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
    revisions = timeline.revisions
    seen = [a for a, b in pairwise(revisions) if b.wall_s - a.wall_s >= FRAME_S] + revisions[-1:]
    shown = [_in_words(revision, normalise) for revision in seen]
    spoken = normalise(text).split()
    hallucinated = len(shown[-1].words) if shown and not spoken else 0
    sums: dict[str, float | None] = {
        "recordings": 1,
        "audio_s": timeline.audio_s,
        # Of recordings without speech: their length, words of the finals, and all words that were displayed.
        "silent_s": 0.0 if spoken else timeline.audio_s,
        "hallucinated": hallucinated,
        "hallucinated_shown": 0 if spoken else hallucinated + _erased(shown),
        # Words removed or replaced over all revisions, and those of them that had been promised: promises also count
        # for programs, which get revisions that are too short for a person.
        "erased": _erased(seen),
        "broken_promises": _broken_promises(revisions),
        "n_final": len(revisions[-1].words) if revisions else 0,
        "n_said": sum(bool(normalise(word.word)) for word in words),
        "gap_s": sum(end - start for start, end in timeline.gaps),
        "cpu_s": timeline.cpu_s,
        **{name: getattr(timeline, name) for name in ("energy_j", "encoder_calls", "decoder_calls")},
    }
    if timeline.words is not None:
        sums["unsaid_s"] = sum(speech_s for _, _, speech_s in unsaid(speech, [*timeline.words, *timeline.gaps]))
    figures = Figures({name: value for name, value in sums.items() if value is not None}, timeline.peak_rss_mb)
    if spoken:
        _add_errors(figures, timeline, spoken, words, offline_text, normalise)
    if shown:
        said = [SpokenWord(normalise(word.word), word.start, word.end) for word in words]
        _add_delays(figures, shown, [word for word in said if word.word])
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
    streamed = normalise(" ".join(timeline.revisions[-1].words) if timeline.revisions else "").split()
    offline = None if offline_text is None else normalise(offline_text).split()
    corrected = streamed
    if timeline.corrected is not None:
        corrected = normalise(" ".join(timeline.corrected.values())).split()
        before, after = (
            {i for kind, i in edits([spoken], [text]) if kind != "insert"} for text in (streamed, corrected)
        )
        # Right words that corrections made wrong, and wrong ones made right.
        figures.sums |= {"harmed": len(after - before), "mended": len(before - after)}
    figures.streamed, figures.corrected = errors(spoken, streamed), errors(spoken, corrected)
    if offline is not None:
        figures.offline = errors(spoken, offline)
    figures.utterances = split(spoken, words, (streamed, corrected, offline), normalise)


def _add_delays(figures: Figures, shown: Sequence[Revision], said: Sequence[SpokenWord]) -> None:
    """Add the delays of each word that the final text has, and of each utterance; all words are normalised."""
    final = shown[-1].words
    pairs = align([word.word for word in said], final).pairs
    begins_s = [0.0] * len(final)
    for i, j in pairs:
        begins_s[j] = said[i].start
    placed = [_place(revision.words, final) for revision in shown]
    emitted = _emissions(shown, [places for places, _ in placed], begins_s)
    # What never happened counts from the end.
    end_s = max(figures.sums["audio_s"], shown[-1].wall_s)
    for name, at_s in zip(DELAYS, emitted, strict=False):
        figures.delays[name] = [at_s.get(j, end_s) - said[i].end for i, j in pairs]
    for first, behind in pairwise([*beginnings(said), len(said)]):
        of_utterance = [(i, j) for i, j in pairs if first <= i < behind]
        if not of_utterance:
            continue
        onset_s, first_word = said[first].start, of_utterance[0][1]
        reached = (at.wall_s for at, (_, reach) in zip(shown, placed, strict=True) if reach > first_word)
        figures.delays["first_partial"] += [at_s - onset_s for at_s in reached if at_s >= onset_s][:1]
        # Words at the end that the transcript lacks are errors, not delays.
        last_s = max(emitted[1].get(j, end_s) for _, j in of_utterance)
        figures.delays["finalisation"].append(last_s - said[of_utterance[-1][0]].end)


def _in_words(revision: Revision, normalise: Normaliser) -> Revision:
    """Return a revision with its words normalised one by one, without those of which nothing is left."""
    words = [normalise(word) for word in revision.words]
    n_stable = sum(map(bool, words[: revision.n_stable]))
    return Revision(revision.wall_s, tuple(filter(None, words)), n_stable)


def _place(words: Sequence[str], transcript: Sequence[str]) -> tuple[list[int | None], int]:
    """Return the place of each displayed word in the transcript, and how many words of that the text stands for.

    None: the transcript has another word there, or none.
    """
    same = _common_prefix(words, transcript)
    tail = words[same:]
    places: list[int | None] = [*range(same), *[None] * len(tail)]
    if not tail:
        return places, same
    # A text can be as like to no more words than it has edits to reach them.
    most = min(len(transcript) - same, 2 * len(tail))
    rest = transcript[same : same + most]
    n = min(range(most + 1), key=lambda n: (Levenshtein.distance(tail, rest[:n]), -n))
    for i, j in align(tail, rest[:n]).pairs:
        if tail[i] == rest[j]:
            places[same + i] = same + j
    return places, same + n


def _emissions(
    shown: Sequence[Revision], placed: Sequence[Sequence[int | None]], begins_s: Sequence[float]
) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """Return when each word of the transcript was first shown, and from when on it was promised, and was always shown.

    begins_s : when each begins to be spoken: what is shown before that is a guess, and counts from then on only
    """
    first_s: dict[int, float] = {}
    stable_s: dict[int, float] = {}
    settled_s: dict[int, float] = {}
    for revision, places in zip(shown, placed, strict=True):
        at_s = revision.wall_s
        present = {place: i for i, place in enumerate(places) if place is not None and at_s >= begins_s[place]}
        for word in range(len(begins_s)):
            if word not in present:
                settled_s.pop(word, None)
            else:
                first_s.setdefault(word, at_s)
                settled_s.setdefault(word, at_s)
            if present.get(word, revision.n_stable) < revision.n_stable:
                stable_s.setdefault(word, at_s)
            else:
                stable_s.pop(word, None)
    return first_s, stable_s, settled_s


def pool(figures: Sequence[Figures]) -> Figures:
    """Add the figures of at least one recording; what is unknown of one of them is unknown of all."""
    known = [name for name in figures[0].sums if all(name in each.sums for each in figures)]
    return Figures(
        sums={name: sum(each.sums[name] for each in figures) for name in known},
        peak_rss_mb=max(each.peak_rss_mb for each in figures),
        streamed=reduce(add, [each.streamed for each in figures]),
        corrected=reduce(add, [each.corrected for each in figures]),
        offline=reduce(add, [each.offline for each in figures]),
        utterances=[utterance for each in figures for utterance in each.utterances],
        delays={name: [delay_s for each in figures for delay_s in each.delays[name]] for name in DELAYS},
    )


def quantile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile, None if there are no values."""
    return float(np.percentile(values, percent)) if values else None


def _erased(revisions: Sequence[Revision]) -> int:
    """Return how many words must be deleted over all texts so that each can continue as the next."""
    return sum(len(a.words) - _common_prefix(a.words, b.words) for a, b in pairwise(revisions))


def _broken_promises(revisions: Sequence[Revision]) -> int:
    """Return how many stable words the next text does not have.

    The promise is about characters: the last stable word may grow, as "President" to "President's".
    """
    n_broken = 0
    for before, after in pairwise(revisions):
        words, n_stable, following = before.words, before.n_stable, after.words
        n_kept = _common_prefix(words[:n_stable], following)
        grown = n_kept == n_stable - 1 < len(following) and following[n_kept].startswith(words[n_kept])
        n_broken += 0 if grown else n_stable - n_kept
    return n_broken


def _common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _ratio(a: float | None, b: float) -> float | None:
    return None if a is None or not b else a / b
