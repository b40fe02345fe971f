"""What holds of the figures of any timeline."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from tools.benchmarks.figures import pool
from tools.benchmarks.measure import Reference, SpokenWord, measure
from tools.benchmarks.report import as_json
from tools.benchmarks.text import plain
from tools.benchmarks.timeline import Revision, Timeline

WORDS = st.sampled_from(["a", "b", "c", "A", "b,", "--"])


@st.composite
def revisions(draw: st.DrawFn) -> list[Revision]:
    wall_s = 0.0
    result = []
    for _ in range(draw(st.integers(0, 6))):
        wall_s += draw(st.sampled_from([0.0, 0.01, 0.5, 3.0]))
        words = tuple(draw(st.lists(WORDS, max_size=6)))
        audio_s = draw(st.none() | st.just(wall_s))
        result.append(Revision(wall_s, audio_s, words, draw(st.integers(0, len(words)))))
    return result


@given(revisions(), st.lists(WORDS, max_size=6), st.booleans())
def test_words_are_seen_before_they_settle_and_settle_before_they_are_stable(
    shown: list[Revision], said: list[str], tells_finals: bool
) -> None:
    timeline = Timeline("any", "any", 4.0, shown, [], [], 1.0, 1.0, None, 3, 0)
    if tells_finals:
        timeline.finals = [(0.0, 1.0), (1.0, 2.0)]
    spoken = [SpokenWord(word, 0.5 * i, 0.5 * i + 0.4) for i, word in enumerate(said)]
    figures = measure(timeline, Reference(" ".join(said), spoken), plain, offline_text="a b", wait_s=0.5)
    for first, settled, stable in zip(
        figures.first_seen.aware, figures.settled.aware, figures.stable.aware, strict=True
    ):
        assert first <= settled <= stable
    stability = figures.stability
    assert 0 <= stability.unstable_wrong <= stability.n_unstable
    errors = figures.streamed
    assert errors.doubled <= errors.insertions
    assert errors.dropped <= errors.deletions
    assert errors.substitutions + errors.deletions <= errors.n_reference
    text = as_json({"any": pool([figures, figures])})
    numbers = json.loads(text)["figures"]["any"].values()
    assert all(number is None or math.isfinite(number) for number in numbers)


@given(st.lists(WORDS, max_size=8), st.integers(1, 3))
def test_a_text_that_only_grows_is_never_taken_back(words: list[str], step: int) -> None:
    shown = [Revision(float(n), None, tuple(words[:n]), max(0, n - 1)) for n in range(0, len(words) + 1, step)]
    figures = measure(Timeline("any", "any", 9.0, shown, [], [], 1.0, 1.0, None, None, None), Reference(""), plain)
    assert figures.stability.erased == figures.stability.broken_promises == 0
    assert figures.stability.upwr in (None, 0.0)
