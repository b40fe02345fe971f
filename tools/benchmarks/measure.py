"""Turns what was shown, and what was said, into figures."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tools.benchmarks.emission import FRAME_S, Emission, Placed, Shown, emissions, in_words, place, visible
from tools.benchmarks.figures import Delays, Figures, Joins
from tools.benchmarks.lagging import average_lagging, long_yaal
from tools.benchmarks.stability import Stability, broken_promises, erased, unstable_words
from tools.benchmarks.text import Alignment, Normaliser, align, doubled, errors, runs
from tools.benchmarks.timeline import Timeline

# Speech behind a silence this long begins anew: the first partial and the final of such a stretch are waited for.
PAUSE_S = 1.0

# Finals that are no further apart than this meet in the middle of speech.
JOIN_S = 0.3

# Words this near to where two finals meet may have been lost or doubled by that.
NEAR_JOIN_S = 1.0


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of the reference, and where in the audio it is said, in seconds."""

    word: str
    start: float
    end: float


def measure(
    timeline: Timeline,
    text: str,
    words: Sequence[SpokenWord],
    normalise: Normaliser,
    *,
    offline_text: str | None = None,
    wait_s: float = 0.0,
) -> Figures:
    """Compute the figures of one recording.

    `text` is everything that is said, and `words` its words in order, if their times are known. `offline_text` is what
    the same model makes of the whole recording. `wait_s` is the silence for which the system waits before it takes
    speech to have ended, if it is known.
    """
    normalise = functools.cache(normalise)
    hearing = _Hearing.of(timeline, words, normalise)
    figures = Figures(timeline.system, [timeline.recording], timeline.audio_s)
    figures.n_said, figures.n_final_words = len(hearing.said), len(hearing.final)
    figures.cpu_s, figures.peak_rss_mb = timeline.cpu_s, timeline.peak_rss_mb
    figures.encoder_calls, figures.decoder_calls = timeline.encoder_calls, timeline.decoder_calls
    figures.decoder_tokens, figures.settled_tokens = timeline.decoder_tokens, timeline.settled_tokens
    figures.gap_s = sum(end - start for start, end in timeline.gaps)
    figures.stability = _stability(timeline, hearing)
    _add_accuracy(figures, timeline, normalise(text).split(), normalise, offline_text)
    figures.first_seen = hearing.delays([emission.first for emission in hearing.emitted])
    figures.stable = hearing.delays([emission.stable for emission in hearing.emitted])
    figures.settled = hearing.delays([emission.settled for emission in hearing.emitted])
    figures.n_never_stable = sum(hearing.emitted[j].stable is None for _, j in hearing.alignment.pairs)
    _add_stretches(figures, hearing, wait_s)
    _add_lagging(figures, hearing, len(hearing.said) or len(normalise(text).split()))
    if timeline.finals:
        figures.joins = _joins(hearing)
        covered = [*timeline.finals, *timeline.gaps]
        figures.lost_s = sum(_uncovered(word.start, word.end, covered) for word in hearing.said)
    return figures


@dataclass(frozen=True, slots=True)
class _Hearing:
    """What was said beside what was shown, in words that compare."""

    timeline: Timeline
    said: list[SpokenWord]
    shown: list[Shown]
    placed: list[Placed]

    # The final transcript, what was said in it, and when each of its words was shown.
    final: tuple[str, ...]
    alignment: Alignment
    emitted: list[Emission]

    @classmethod
    def of(cls, timeline: Timeline, words: Sequence[SpokenWord], normalise: Normaliser) -> "_Hearing":
        shown = [in_words(revision, normalise) for revision in visible(timeline.revisions)]
        final = shown[-1].words if shown else ()
        placed = [place(revision.words, final) for revision in shown]
        said = [SpokenWord(normalise(word.word), word.start, word.end) for word in words]
        said = [word for word in said if word.word]
        alignment = align([word.word for word in said], final)
        begins_s: list[float | None] = [None] * len(final)
        for i, j in alignment.pairs:
            begins_s[j] = said[i].start
        emitted = emissions(shown, placed, len(final), begins_s)
        return cls(timeline, said, shown, placed, final, alignment, emitted)

    @property
    def begins(self) -> list[int]:
        """The first word of each utterance: speech between two pauses."""
        said = self.said
        return [i for i in range(len(said)) if i == 0 or said[i].start - said[i - 1].end >= PAUSE_S]

    @property
    def finals_s(self) -> list[float]:
        """When nothing was shown that might still change."""
        return [revision.wall_s for revision in self.timeline.revisions if revision.n_stable == len(revision.words)]

    def when(self, number: int | None) -> tuple[float, float | None]:
        """Return the wall clock and the audio position of a revision, for one that never came those of the end."""
        if number is None:
            tells = any(revision.audio_s is not None for revision in self.shown)
            return max(self.timeline.audio_s, self.shown[-1].wall_s), self.timeline.audio_s if tells else None
        return self.shown[number].wall_s, self.shown[number].audio_s

    def delays(self, numbers: Sequence[int | None]) -> Delays:
        """Return the time from the end of each word to its revision, of which `numbers` has one a final word."""
        delays = Delays()
        for i, j in self.alignment.pairs:
            wall_s, audio_s = self.when(numbers[j])
            delays.aware.append(wall_s - self.said[i].end)
            if audio_s is not None:
                delays.unaware.append(audio_s - self.said[i].end)
        return delays


def _stability(timeline: Timeline, hearing: _Hearing) -> Stability:
    revisions = visible(timeline.revisions)
    n_unstable, unstable_wrong = unstable_words(hearing.shown, hearing.placed)
    return Stability(
        erased=erased([revision.words for revision in revisions]),
        n_final=len(revisions[-1].words) if revisions else 0,
        erased_normalised=erased([revision.words for revision in hearing.shown]),
        n_final_normalised=len(hearing.final),
        # A promise counts for programs too, which see more than a person.
        broken_promises=broken_promises([(revision.words, revision.n_stable) for revision in timeline.revisions]),
        n_unstable=n_unstable,
        unstable_wrong=unstable_wrong,
    )


def _add_accuracy(
    figures: Figures, timeline: Timeline, spoken: Sequence[str], normalise: Normaliser, offline_text: str | None
) -> None:
    if not spoken:
        figures.silent_s = timeline.audio_s
        figures.hallucinated = figures.n_final_words
        figures.hallucinated_shown = figures.n_final_words + figures.stability.erased_normalised
        return
    text = " ".join(timeline.revisions[-1].words) if timeline.revisions else ""
    figures.streamed = errors(spoken, normalise(text).split())
    figures.corrected = errors(spoken, normalise(text if timeline.corrected is None else timeline.corrected).split())
    if offline_text is not None:
        figures.offline = errors(spoken, normalise(offline_text).split())


def _add_stretches(figures: Figures, hearing: _Hearing, wait_s: float) -> None:
    """Add when the first and the last word of each stretch of speech between two pauses came."""
    said = hearing.said
    finals_s = hearing.finals_s
    for first, behind in pairwise([*hearing.begins, len(said)]):
        finals = [j for i, j in hearing.alignment.pairs if first <= i < behind]
        if not finals:
            continue
        onset_s = said[first].start
        first_s = next(
            (
                revision.wall_s
                for revision, placed in zip(hearing.shown, hearing.placed, strict=True)
                if revision.wall_s >= onset_s and placed.reach > finals[0]
            ),
            None,
        )
        if first_s is not None:
            figures.first_partial_s.append(first_s - onset_s)
        # Words at the end that the transcript lacks are errors, and no delay.
        end_s = said[max(i for i, _ in hearing.alignment.pairs if i < behind)].end
        stable_s = max(hearing.when(hearing.emitted[j].stable)[0] for j in finals)
        silence_s = (said[behind].start if behind < len(said) else hearing.timeline.audio_s) - said[behind - 1].end
        figures.finalisation_s.append(stable_s - end_s)
        # Two revisions within a frame count as the second, and the first of them may be the final.
        final_s = next((wall_s for wall_s in finals_s if wall_s >= stable_s - FRAME_S), None)
        if final_s is not None and final_s >= said[behind - 1].end:
            figures.ttfs_s.append(final_s - said[behind - 1].end)
        # What is stable sooner did not wait that long.
        waited_s = max(0.0, min(wait_s, silence_s, stable_s - end_s))
        figures.finalisation_computed_s.append(stable_s - end_s - waited_s)


def _add_lagging(figures: Figures, hearing: _Hearing, n_spoken: int) -> None:
    times = [hearing.when(emission.stable) for emission in hearing.emitted]
    heard_s = [audio_s for _, audio_s in times if audio_s is not None]
    for name, delays_s in (("_CA", [wall_s for wall_s, _ in times]), ("", heard_s)):
        if len(delays_s) < len(times):
            continue
        for kind, adaptive in (("AL", False), ("LAAL", True)):
            lagging_s = average_lagging(delays_s, hearing.timeline.audio_s, n_spoken, adaptive=adaptive)
            if lagging_s is not None:
                figures.lagging_s[kind + name] = [lagging_s]
        said = [(word.word, word.start, word.end) for word in hearing.said]
        figures.lagging_s["LongYAAL" + name] = long_yaal(said, hearing.begins, hearing.final, delays_s)


def _joins(hearing: _Hearing) -> Joins:
    joins_s = [end for (_, end), (start, _) in pairwise(hearing.timeline.finals) if start - end <= JOIN_S]

    def near(word: SpokenWord) -> bool:
        return any(word.start - NEAR_JOIN_S <= join_s <= word.end + NEAR_JOIN_S for join_s in joins_s)

    # Where words are that nobody said: from the word before them to the one behind them.
    at = {j: hearing.said[i] for i, j in hearing.alignment.pairs}
    made_up: dict[int, SpokenWord] = {}
    for run in runs(hearing.alignment.inserted):
        around = [at[j] for j in (run[0] - 1, run[-1] + 1) if j in at]
        if around:
            made_up |= dict.fromkeys(run, SpokenWord("", around[0].start, around[-1].end))
    return Joins(
        n_joins=len(joins_s),
        n_words=sum(near(word) for word in hearing.said),
        dropped=sum(near(hearing.said[i]) for i in hearing.alignment.deleted),
        doubled=sum(j in made_up and near(made_up[j]) for j in doubled(hearing.final, hearing.alignment.inserted)),
    )


def _uncovered(start: float, end: float, covered: Iterable[tuple[float, float]]) -> float:
    """Return how much of a stretch lies in none of others."""
    left = [(start, end)]
    for a, b in covered:
        left = [piece for s, e in left for piece in ((s, min(e, a)), (max(s, b), e)) if piece[0] < piece[1]]
    return sum(e - s for s, e in left)
