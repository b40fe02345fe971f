"""The figures of timelines made by hand, and what holds of those of any timeline."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.benchmarks.figures import Figures, Joins, pool, quantile
from tools.benchmarks.measure import SpokenWord, measure
from tools.benchmarks.report import as_json
from tools.benchmarks.text import plain
from tools.benchmarks.timeline import Revision, Timeline

# Two stretches of speech: two words, two seconds of silence, one word, and a second of silence.
SPOKEN = (SpokenWord("Good", 1.0, 1.4), SpokenWord("morning.", 1.4, 2.0), SpokenWord("Bye!", 4.0, 4.5))
TEXT = "Good morning. Bye!"


def revision(wall_s: float, audio_s: float | None, text: str, n_stable: int) -> Revision:
    return Revision(wall_s, audio_s, tuple(text.split()), n_stable)


def a_timeline() -> Timeline:
    return Timeline(
        system="ours",
        recording="greeting",
        audio_s=5.5,
        revisions=[
            revision(1.6, 1.5, "God", 0),
            revision(2.1, 2.0, "Good moaning", 1),
            revision(2.4, 2.2, "Good morning", 1),
            revision(2.9, 2.6, "Good morning.", 2),
            revision(4.9, 4.6, "Good morning. Bye", 2),
            revision(5.6, 5.5, "Good morning. Bye!", 3),
        ],
        speech=[],
        gaps=[],
        cpu_s=1.1,
        peak_rss_mb=100.0,
        encoder_calls=11,
        decoder_calls=22,
        decoder_tokens=44,
        settled_tokens=24,
        finals=[(0.9, 2.0), (4.1, 4.6)],
    )


def measured(**changes: object) -> Figures:
    return measure(dataclasses.replace(a_timeline(), **changes), TEXT, SPOKEN, plain, wait_s=0.5)  # type: ignore[arg-type]


def test_delays_run_from_the_end_of_each_word() -> None:
    figures = measured()
    assert figures.first_seen.aware == pytest.approx([2.1 - 1.4, 2.4 - 2.0, 4.9 - 4.5])
    assert figures.first_seen.unaware == pytest.approx([2.0 - 1.4, 2.2 - 2.0, 4.6 - 4.5])
    assert figures.stable.aware == pytest.approx([2.1 - 1.4, 2.9 - 2.0, 5.6 - 4.5])
    assert figures.stable.unaware == pytest.approx([2.0 - 1.4, 2.6 - 2.0, 5.5 - 4.5])
    assert figures.settled.aware == pytest.approx(figures.first_seen.aware)


def test_words_of_a_system_that_promises_nothing_are_stable_at_the_end() -> None:
    silent = [dataclasses.replace(r, n_stable=0) for r in a_timeline().revisions]
    figures = measured(revisions=silent)
    assert figures.n_never_stable == 3
    assert figures.stable.aware == pytest.approx([5.6 - 1.4, 5.6 - 2.0, 5.6 - 4.5])
    assert figures.settled.aware == pytest.approx(measured().settled.aware)


def test_a_system_that_does_not_say_what_it_heard_has_delays_by_the_clock_only() -> None:
    deaf = [dataclasses.replace(r, audio_s=None) for r in a_timeline().revisions]
    figures = measured(revisions=deaf)
    assert figures.first_seen.unaware == []
    assert len(figures.first_seen.aware) == 3
    silent = [dataclasses.replace(r, n_stable=0) for r in deaf]
    assert measured(revisions=silent).stable.unaware == []
    assert sorted(figures.lagging_s) == ["AL_CA", "LAAL_CA", "LongYAAL_CA"]


def test_each_stretch_of_speech_has_a_first_partial_and_a_final() -> None:
    figures = measured()
    # "God" stands where "Good" will: the first text counts, right or wrong.
    assert figures.first_partial_s == pytest.approx([1.6 - 1.0, 4.9 - 4.0])
    assert figures.finalisation_s == pytest.approx([2.9 - 2.0, 5.6 - 4.5])
    assert figures.finalisation_computed_s == pytest.approx([2.9 - 2.0 - 0.5, 5.6 - 4.5 - 0.5])


def test_the_final_segment_is_what_leaves_nothing_open() -> None:
    assert measured().ttfs_s == pytest.approx([2.9 - 2.0, 5.6 - 4.5])
    # "morning." is stable, and is final when no text stands behind it that may change.
    open_end = [*a_timeline().revisions]
    open_end[3] = revision(2.9, 2.6, "Good morning. And", 2)
    open_end.insert(4, revision(3.5, 3.2, "Good morning.", 2))
    assert measured(revisions=open_end).ttfs_s == pytest.approx([3.5 - 2.0, 5.6 - 4.5])
    # What was final before its speech had ended has no such delay, nor has what never was.
    assert measured(revisions=[revision(1.5, 1.4, "Good", 1)]).ttfs_s == []
    assert measured(revisions=a_timeline().revisions[:3]).ttfs_s == []


def test_the_final_segment_counts_though_more_text_comes_within_a_frame() -> None:
    revisions = [*a_timeline().revisions]
    revisions.insert(4, revision(2.901, 2.6, "Good morning. B", 2))
    assert measured(revisions=revisions).ttfs_s == pytest.approx([2.9 - 2.0, 5.6 - 4.5])


def test_each_stretch_lags_behind_its_own_even_pace() -> None:
    # "Bye!" came when the last stretch had ended, and does not count.
    assert measured().lagging_s["LongYAAL_CA"] == pytest.approx([(2.1 - 1.0 + 2.9 - 1.5) / 2])
    assert measured().lagging_s["LongYAAL"] == pytest.approx([(2.0 - 1.0 + 2.6 - 1.5) / 2])


def test_words_that_the_transcript_lacks_have_no_delay() -> None:
    figures = measured(revisions=a_timeline().revisions[:3])
    assert figures.summary()["share_measured"] == pytest.approx(2 / 3)
    assert len(figures.first_seen.aware) == 2
    # "Bye!" never came, and "morning" never became stable: that ends with the audio.
    assert figures.first_partial_s == pytest.approx([1.6 - 1.0])
    assert figures.finalisation_s == pytest.approx([5.5 - 2.0])
    cut = [revision(1.5, 1.4, "Good", 1)]
    assert measured(revisions=cut).finalisation_s == pytest.approx([1.5 - 1.4])


def test_text_from_before_the_onset_is_no_first_partial() -> None:
    early = [revision(0.5, 0.5, "Oh", 0), *a_timeline().revisions]
    assert measured(revisions=early).first_partial_s[0] == pytest.approx(1.6 - 1.0)


def test_what_comes_back_within_a_frame_was_not_taken_away() -> None:
    first, last = revision(5.0, 4.9, "Good morning. Bye", 0), revision(6.0, 5.5, "Good morning. Bye!", 3)
    cut, rest = revision(5.5, 5.4, "Good morning.", 2), revision(5.501, 5.4, "Good morning. Bye", 2)
    figures = measured(revisions=[first, cut, rest, last])
    assert figures.stability.erased == 1  # "Bye" for "Bye!"
    assert figures.stability.erased_normalised == 0
    assert figures.settled.aware == pytest.approx([5.0 - 1.4, 5.0 - 2.0, 5.0 - 4.5])


def test_the_wait_for_silence_ends_with_the_audio() -> None:
    assert measured(audio_s=4.7).finalisation_computed_s[-1] == pytest.approx(5.6 - 4.5 - 0.2)


def test_what_is_stable_sooner_did_not_wait() -> None:
    soon = [dataclasses.replace(r, wall_s=r.wall_s - 0.7) for r in a_timeline().revisions]
    assert measured(revisions=soon).finalisation_s == pytest.approx([0.2, 0.4])
    assert measured(revisions=soon).finalisation_computed_s == pytest.approx([0.0, 0.0])


def test_lagging_is_that_of_stable_words() -> None:
    # An even speaker says three words at 0, 1.8333 and 3.6667 s of 5.5 s.
    lagging = ((2.1 - 0) + (2.9 - 5.5 / 3) + (5.6 - 11 / 3)) / 3
    assert measured().lagging_s["AL_CA"] == [pytest.approx(lagging)]
    assert measured().lagging_s["LAAL_CA"] == [pytest.approx(lagging)]


def test_flicker_counts_words_as_they_are_shown_and_as_they_are_compared() -> None:
    stability = measured().stability
    # God, moaning, "morning" without its full stop, "Bye" without its mark; or God and moaning.
    assert (stability.erased, stability.n_final) == (4, 3)
    assert (stability.erased_normalised, stability.n_final_normalised) == (2, 3)
    assert stability.broken_promises == 0


def test_a_broken_promise_counts_even_where_nobody_could_see_it() -> None:
    revisions = [revision(1.0, 1.0, "Good morning", 2), revision(1.001, 1.0, "Good evening", 2)]
    assert measured(revisions=revisions).stability.broken_promises == 1
    assert measured(revisions=revisions).stability.erased == 0


def test_accuracy_is_that_of_the_last_text_beside_the_offline_one() -> None:
    figures = measure(a_timeline(), TEXT, SPOKEN, plain, offline_text="good morning good morning bye")
    assert figures.streamed.rate == 0
    assert figures.offline.rate == pytest.approx(2 / 3)
    assert figures.offline.doubled == 2
    assert figures.summary()["wer_streaming_costs"] == pytest.approx(-2 / 3)


def test_words_where_nothing_is_said_are_made_up() -> None:
    figures = measure(a_timeline(), "", (), plain)
    assert (figures.hallucinated, figures.hallucinated_shown) == (3, 5)
    assert figures.summary()["hallucinated_per_min"] == pytest.approx(3 * 60 / 5.5)
    assert figures.streamed.rate is None


def test_words_outside_finals_and_gaps_are_lost() -> None:
    # "Bye!" begins a tenth of a second before its final.
    assert measured().lost_s == pytest.approx(0.1)
    assert measured(gaps=[(3.9, 4.2)]).lost_s == pytest.approx(0.0)
    assert measured(gaps=[(3.9, 4.2)]).gap_s == pytest.approx(0.3)
    assert measured(finals=[]).lost_s is None
    assert measured(finals=[]).joins is None


def test_words_lost_and_doubled_where_two_finals_meet() -> None:
    spoken = tuple(SpokenWord(word, i, i + 0.8) for i, word in enumerate(["a", "b", "c", "d", "e", "f", "g", "h"]))
    text = " ".join(word.word for word in spoken)
    timeline = dataclasses.replace(a_timeline(), audio_s=8.0, finals=[(0.0, 4.0), (4.1, 6.0), (7.0, 8.0)])

    def joins(shown: str) -> Joins | None:
        shown_at_end = [revision(8.5, 8.0, shown, len(shown.split()))]
        return measure(dataclasses.replace(timeline, revisions=shown_at_end), text, spoken, plain).joins

    # They meet at 4.0; d, e and f are near. From 6.0 to 7.0 nobody spoke.
    assert joins(text) == Joins(n_joins=1, n_words=3)
    assert joins("a b c d f g h") == Joins(n_joins=1, n_words=3, dropped=1)
    assert joins("a b c d c d e f g h") == Joins(n_joins=1, n_words=3, doubled=2)
    assert joins("a b a b c d e f g") == Joins(n_joins=1, n_words=3)


def test_cost_is_told_for_each_second_token_and_word() -> None:
    summary = measured().summary()
    assert summary["cpu_per_audio"] == pytest.approx(0.2)
    assert summary["encoder_calls_per_audio_s"] == pytest.approx(2)
    assert summary["decoder_calls_per_audio_s"] == pytest.approx(4)
    assert summary["decoder_calls_per_token"] == pytest.approx(0.5)
    assert summary["decoder_calls_per_found_token"] == pytest.approx(1.1)
    assert summary["decoder_calls_per_final_word"] == pytest.approx(22 / 3)


def test_a_system_that_showed_nothing_has_figures() -> None:
    figures = measured(revisions=[], finals=[])
    assert figures.streamed.deletions == 3
    assert figures.summary()["stable_p50_s"] is None
    assert figures.summary()["normalised_erasure"] is None


def test_recordings_are_pooled_not_averaged() -> None:
    quiet = measure(dataclasses.replace(a_timeline(), audio_s=54.5, revisions=[], finals=[]), "", (), plain)
    both = pool([measured(), quiet])
    assert both.recordings == ["greeting", "greeting"]
    assert both.summary()["cpu_per_audio"] == pytest.approx(2.2 / 60)
    assert both.summary()["hallucinated_per_min"] == 0
    assert both.stable.aware == measured().stable.aware
    assert both.joins == measured().joins
    assert both.lost_s == pytest.approx(0.1)
    assert both.streamed == measured().streamed


def test_calls_that_one_recording_does_not_tell_are_unknown_of_all() -> None:
    unknown = measured(decoder_calls=None)
    assert pool([measured(), unknown]).decoder_calls is None
    both = pool([measured(), measured()])
    assert (both.decoder_calls, both.decoder_tokens, both.settled_tokens) == (44, 88, 48)
    old = pool([measured(settled_tokens=None), measured()])
    assert old.summary()["decoder_calls_per_token"] == pytest.approx(0.5)
    assert old.summary()["decoder_calls_per_found_token"] is None


def test_nothing_cannot_be_pooled() -> None:
    with pytest.raises(ValueError, match="no figures"):
        pool([])


def test_percentiles() -> None:
    assert quantile([1.0, 2.0, 3.0], 50) == 2.0
    assert quantile([1.0], 99) == 1.0
    assert quantile([], 50) is None


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
    figures = measure(timeline, " ".join(said), spoken, plain, offline_text="a b", wait_s=0.5)
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
    figures = measure(Timeline("any", "any", 9.0, shown, [], [], 1.0, 1.0, None, None, None), "", (), plain)
    assert figures.stability.erased == figures.stability.broken_promises == 0
    assert figures.stability.upwr in (None, 0.0)
