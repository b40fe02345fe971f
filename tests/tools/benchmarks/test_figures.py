"""The figures of timelines made by hand, and properties of those of any timeline."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.benchmarks.figures import Figures, broken_promises, erased, measure, pool, quantile
from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.text import plain
from tools.benchmarks.timeline import Revision, Timeline

# Two utterances: two words, two seconds of silence, one word, and a second of silence.
SPOKEN = (SpokenWord("Good", 1.0, 1.4), SpokenWord("morning.", 1.4, 2.0), SpokenWord("Bye!", 4.0, 4.5))
TEXT = "Good morning. Bye!"


def revision(wall_s: float, text: str, n_stable: int) -> Revision:
    return Revision(wall_s, tuple(text.split()), n_stable)


REVISIONS = [
    revision(1.6, "God", 0),
    revision(2.1, "Good moaning", 1),
    revision(2.4, "Good morning", 1),
    revision(2.9, "Good morning.", 2),
    revision(4.9, "Good morning. Bye", 2),
    revision(5.6, "Good morning. Bye!", 3),
]
TIMELINE = Timeline(
    "ours", "greeting", 5.5, REVISIONS, cpu_s=1.1, peak_rss_mb=100.0, encoder_calls=11, decoder_calls=22
)


def measured(revisions: list[Revision] = REVISIONS, **changes: object) -> Figures:
    return measure(dataclasses.replace(TIMELINE, revisions=revisions, **changes), TEXT, SPOKEN, plain)  # type: ignore[arg-type]


def test_delays_run_from_the_end_of_each_word() -> None:
    figures = measured()
    assert figures.first_seen == pytest.approx([2.1 - 1.4, 2.4 - 2.0, 4.9 - 4.5])
    assert figures.stable == pytest.approx([2.1 - 1.4, 2.9 - 2.0, 5.6 - 4.5])
    assert figures.settled == pytest.approx(figures.first_seen)


def test_words_of_a_system_that_promises_nothing_are_stable_at_the_end() -> None:
    figures = measured([dataclasses.replace(r, n_stable=0) for r in REVISIONS])
    assert figures.stable == pytest.approx([5.6 - 1.4, 5.6 - 2.0, 5.6 - 4.5])
    assert figures.settled == pytest.approx(measured().settled)


def test_each_utterance_has_a_first_partial_and_an_end() -> None:
    figures = measured()
    # "God" stands where "Good" will: the first text counts, right or wrong.
    assert figures.first_partial_s == pytest.approx([1.6 - 1.0, 4.9 - 4.0])
    assert figures.finalisation_s == pytest.approx([2.9 - 2.0, 5.6 - 4.5])


def test_words_that_the_transcript_lacks_have_no_delay() -> None:
    figures = measured(REVISIONS[:3])
    assert figures.summary()["share_measured"] == pytest.approx(2 / 3)
    assert len(figures.first_seen) == 2
    # "Bye!" never came, and "morning" never became stable: that ends with the audio.
    assert figures.first_partial_s == pytest.approx([1.6 - 1.0])
    assert figures.finalisation_s == pytest.approx([5.5 - 2.0])
    assert measured([revision(1.5, "Good", 1)]).finalisation_s == pytest.approx([1.5 - 1.4])


def test_text_from_before_the_onset_is_not_a_first_partial() -> None:
    assert measured([revision(0.5, "Oh", 0), *REVISIONS]).first_partial_s[0] == pytest.approx(1.6 - 1.0)


def test_a_word_that_comes_back_within_a_frame_was_not_erased() -> None:
    first, last = revision(5.0, "Good morning. Bye", 0), revision(6.0, "Good morning. Bye!", 3)
    cut, rest = revision(5.5, "Good morning.", 2), revision(5.501, "Good morning. Bye", 2)
    figures = measured([first, cut, rest, last])
    assert figures.erased == 1  # "Bye" for "Bye!"
    assert figures.settled == pytest.approx([5.0 - 1.4, 5.0 - 2.0, 5.0 - 4.5])


def test_erased_words_count_as_they_are_displayed() -> None:
    # God, moaning, "morning" without its full stop, "Bye" without its mark.
    assert measured().summary()["normalised_erasure"] == pytest.approx(4 / 3)
    # "b c" goes for "x"; "x" goes for "b c d"; nothing goes at last.
    assert erased([tuple(text.split()) for text in ["a b c", "a x", "a b c d", "a b c d e"]]) == 2 + 1
    assert erased([]) == 0


def test_stable_words_that_change_are_broken_promises() -> None:
    assert broken_promises([(("a", "b", "c"), 2), (("a", "b", "x"), 2), (("a", "y", "x"), 3)]) == 1
    assert broken_promises([(("a", "b"), 2), ((), 0)]) == 2
    # Also if the revision was too short for a person.
    figures = measured([revision(1.0, "Good morning", 2), revision(1.001, "Good evening", 2)])
    assert (figures.broken_promises, figures.erased) == (1, 0)


def test_the_last_stable_word_may_grow() -> None:
    assert broken_promises([(("the", "President"), 2), (("the", "President's", "car"), 3)]) == 0
    assert broken_promises([(("the", "President"), 2), (("the", "Prefect", "and"), 3)]) == 1
    assert broken_promises([(("the", "President", "has"), 3), (("the", "President's", "has"), 3)]) == 2


def test_accuracy_is_that_of_the_last_text_beside_the_offline_one() -> None:
    figures = measure(TIMELINE, TEXT, SPOKEN, plain, offline_text="good morning good morning bye")
    assert figures.streamed.rate == 0
    assert figures.offline.rate == pytest.approx(2 / 3)
    assert figures.offline.doubled == 2


def test_live_text_is_compared_with_the_offline_one() -> None:
    offline = "good morning bye by"
    summary = measure(TIMELINE, TEXT, SPOKEN, plain, offline_text=offline).summary()
    assert summary["delta_streamed"] == summary["delta_corrected"] == pytest.approx(-1 / 3)
    # One utterance of two words is as right, and one of a single word righter: a resample may hold only one of them.
    assert (summary["delta_streamed_low"], summary["delta_streamed_high"]) == (-1, 0)
    assert measured().summary()["delta_streamed"] is None
    # Without the times of words, the recording is one utterance.
    whole = measure(TIMELINE, TEXT, (), plain, offline_text=offline).summary()
    assert whole["delta_streamed"] == pytest.approx(-1 / 3)
    assert whole["delta_streamed_low"] is None


def test_words_that_revisions_make_right_or_wrong_are_counted() -> None:
    summary = measured([revision(2.0, "Good moaning. Bye!", 3)], corrected="Good morning. By!").summary()
    assert (summary["harmed_words"], summary["mended_words"]) == (1, 1)
    assert measured().summary()["harmed_words"] is None


def test_words_without_speech_are_hallucinated() -> None:
    figures = measure(TIMELINE, "", (), plain)
    assert (figures.hallucinated, figures.hallucinated_shown) == (3, 5)
    assert figures.summary()["hallucinated_per_min"] == pytest.approx(3 * 60 / 5.5)
    assert figures.streamed.rate is None


def test_cost_is_reported_for_each_second_of_audio() -> None:
    summary = measured(gaps=[(3.9, 4.2)], energy_j=16.5).summary()
    assert summary["cpu_per_audio"] == pytest.approx(0.2)
    assert summary["energy_j_per_audio_s"] == pytest.approx(3)
    assert measured().summary()["energy_j_per_audio_s"] is None
    assert summary["encoder_calls_per_audio_s"] == pytest.approx(2)
    assert summary["decoder_calls_per_audio_s"] == pytest.approx(4)
    assert summary["gap_s"] == pytest.approx(0.3)


def test_a_system_that_displayed_nothing_has_figures() -> None:
    figures = measured([])
    assert figures.streamed.deletions == 3
    assert figures.summary()["stable_p50_s"] is None
    assert figures.summary()["normalised_erasure"] is None


def test_recordings_are_pooled_not_averaged() -> None:
    quiet = measure(dataclasses.replace(TIMELINE, audio_s=54.5, revisions=[]), "", (), plain)
    both = pool([measured(), quiet])
    assert both.recordings == ["greeting", "greeting"]
    assert both.summary()["cpu_per_audio"] == pytest.approx(2.2 / 60)
    assert both.summary()["hallucinated_per_min"] == 0
    assert both.stable == measured().stable
    assert both.streamed == measured().streamed
    assert both.utterances == measured().utterances
    assert pool([measured(), measured()]).decoder_calls == 44
    # Unknown for one recording, unknown for all.
    assert pool([measured(), measured(decoder_calls=None)]).decoder_calls is None
    with pytest.raises(ValueError, match="no figures"):
        pool([])


def test_percentiles() -> None:
    assert quantile([1.0, 2.0, 3.0], 50) == 2.0
    assert quantile([], 50) is None


WORDS = st.sampled_from(["a", "b", "c", "A", "b,", "--"])


@st.composite
def any_revisions(draw: st.DrawFn) -> list[Revision]:
    wall_s = 0.0
    result = []
    for _ in range(draw(st.integers(0, 6))):
        wall_s += draw(st.sampled_from([0.0, 0.01, 0.5, 3.0]))
        words = tuple(draw(st.lists(WORDS, max_size=6)))
        result.append(Revision(wall_s, words, draw(st.integers(0, len(words)))))
    return result


@given(any_revisions(), st.lists(WORDS, max_size=6))
def test_words_are_seen_before_they_settle_and_settle_before_they_are_stable(
    shown: list[Revision], said: list[str]
) -> None:
    spoken = [SpokenWord(word, 0.5 * i, 0.5 * i + 0.4) for i, word in enumerate(said)]
    timeline = dataclasses.replace(TIMELINE, audio_s=4.0, revisions=shown)
    figures = measure(timeline, " ".join(said), spoken, plain, offline_text="a b")
    for first, settled, stable in zip(figures.first_seen, figures.settled, figures.stable, strict=True):
        assert first <= settled <= stable
    errors = figures.streamed
    assert errors.doubled <= errors.insertions
    assert errors.dropped <= errors.deletions
    assert errors.substitutions + errors.deletions <= errors.n_reference
    assert sum(u.streamed for u in figures.utterances) == errors.n_wrong
    assert sum(u.n_words for u in figures.utterances) == errors.n_reference


@given(st.lists(WORDS, max_size=8), st.integers(1, 3))
def test_a_text_that_only_grows_is_never_erased(words: list[str], step: int) -> None:
    shown = [Revision(float(n), tuple(words[:n]), max(0, n - 1)) for n in range(0, len(words) + 1, step)]
    figures = measure(dataclasses.replace(TIMELINE, revisions=shown), "", (), plain)
    assert figures.erased == figures.broken_promises == 0
