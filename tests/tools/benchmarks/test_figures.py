"""The figures of timelines and texts made by hand, and what holds of those of any timeline."""

import dataclasses

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.events import Gap
from streamer.events import Revision as Correction
from tests.builders import final, partial
from tools.benchmarks.figures import Figures, measure, pool
from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.text import errors, normaliser
from tools.benchmarks.timeline import Recorder, Revision, Timeline
from tools.benchmarks.turns import Pause, judge
from tools.benchmarks.utterances import split

# Two utterances: two words, two seconds of silence, one word, and a second of silence.
SPOKEN = (SpokenWord("Good", 1.0, 1.4), SpokenWord("morning.", 1.4, 2.0), SpokenWord("Bye!", 4.0, 4.5))
TEXT = "Good morning. Bye!"
SHOWN = (
    *((1.6, "God", 0), (2.1, "Good moaning", 1), (2.4, "Good morning", 1)),
    *((2.9, "Good morning.", 2), (4.9, "Good morning. Bye", 2), (5.6, "Good morning. Bye!", 3)),
)


def timeline(*shown: tuple[float, str, int], audio_s: float = 5.5) -> Timeline:
    revisions = [Revision(at, tuple(text.split()), n_stable) for at, text, n_stable in shown]
    return Timeline("ours", "greeting", audio_s, revisions, cpu_s=1.1, encoder_calls=11)


def measured(*shown: tuple[float, str, int], offline: str | None = None) -> Figures:
    return measure(timeline(*(shown or SHOWN)), TEXT, SPOKEN, normaliser("en"), offline_text=offline)


def test_delays_run_from_the_end_of_each_word_and_utterance() -> None:
    figures = measured()
    assert figures.delays["first_seen"] == figures.delays["settled"] == pytest.approx([2.1 - 1.4, 2.4 - 2.0, 4.9 - 4.5])
    assert figures.delays["stable"] == pytest.approx([2.1 - 1.4, 2.9 - 2.0, 5.6 - 4.5])
    # "God" stands where "Good" will: the first text counts, right or wrong.
    assert figures.delays["first_partial"] == pytest.approx([1.6 - 1.0, 4.9 - 4.0])
    assert figures.delays["finalisation"] == pytest.approx([2.9 - 2.0, 5.6 - 4.5])
    # "Bye!" never came, and "morning" never became stable: that ends with the audio.
    short = measured(*SHOWN[:3])
    assert short.summary()["share_measured"] == pytest.approx(2 / 3)
    assert short.delays["finalisation"] == pytest.approx([5.5 - 2.0])


def test_a_word_that_goes_and_comes_back_or_was_a_guess_counts_from_its_return() -> None:
    figures = measured((1.2, "Good morning", 2), (1.5, "Good morning", 2), (2.0, "Good x", 1), (3.0, TEXT, 3))
    assert figures.delays["first_seen"] == pytest.approx([1.2 - 1.4, 1.5 - 2.0, 5.5 - 4.5])
    assert figures.delays["stable"][1] == figures.delays["settled"][1] == pytest.approx(3.0 - 2.0)
    # Words are found again when those before them become more.
    more = measured((3.0, "wood morning", 0), (6.0, "the good morning bye", 4))
    assert more.delays["first_seen"][1] == pytest.approx(1.0)


def test_erased_words_and_broken_promises_are_counted() -> None:
    # God, moaning, "morning" without its full stop, "Bye" without its mark.
    assert measured().summary()["normalised_erasure"] == pytest.approx(4 / 3)
    brief = measured((1.0, "Good morning", 2), (1.001, "Good evening", 2))  # too brief for a person
    assert (brief.sums["broken_promises"], brief.sums["erased"]) == (1, 0)
    assert measured((1.0, "the President", 2), (2.0, "the President's car", 3)).sums["broken_promises"] == 0


def test_live_text_is_compared_with_the_offline_one() -> None:
    summary = measured(offline="good morning bye by").summary()
    assert summary["wer_streamed"] == 0
    assert summary["wer_offline"] == -(summary["delta_streamed"] or 0) == pytest.approx(1 / 3)
    # One utterance of two words is as right, and one of a single word righter: a resample may hold only one of them.
    assert (summary["delta_streamed_low"], summary["delta_streamed_high"]) == (-1, 0)
    wrong = dataclasses.replace(timeline((2.0, "Good moaning. Bye!", 3)), corrected={1: "Good morning.", 2: "By!"})
    summary = measure(wrong, TEXT, SPOKEN, normaliser("en")).summary()
    assert (summary["harmed_words"], summary["mended_words"], summary["delta_streamed"]) == (1, 1, None)


def test_words_left_out_at_the_end_and_at_the_beginning_of_an_utterance_are_lost() -> None:
    words = ["it", "was", "late", "yes"]
    spoken = [SpokenWord(*each) for each in zip(words, (0.5, 2.0, 2.4, 4.0), (1.9, 2.4, 3.0, 4.4), strict=True)]
    first, second = split(words, spoken, (["was"], ["it", "is", "late", "yes"], words), str.lower)
    assert (first.n_tail, first.tail_lost, first.tail_lost_offline, first.first_lost) == (3, 2, 0, True)
    assert (second.streamed, second.corrected, second.first_lost, second.first_lost_offline) == (1, 0, True, False)
    assert first.corrected == 1  # an exchanged word is wrong, not lost


def test_recordings_are_pooled_not_averaged() -> None:
    quiet = measure(timeline(*SHOWN[:2], audio_s=54.5), "", (), normaliser("en"))
    assert (quiet.sums["hallucinated"], quiet.sums["hallucinated_shown"]) == (2, 3)
    summary = pool([measured(), quiet]).summary()
    assert summary["cpu_per_audio"] == pytest.approx(2.2 / 60)
    assert summary["hallucinated_per_min"] == pytest.approx(2 * 60 / 54.5)
    assert summary["encoder_calls_per_audio_s"] == pytest.approx(22 / 60)
    assert summary["decoder_calls_per_audio_s"] is None


WORDS = st.lists(st.sampled_from(["a", "b", "c", "A", "b,", "--"]), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.sampled_from([0.01, 0.5, 3.0]), WORDS, st.integers(0, 1)), max_size=6), WORDS)
def test_words_are_seen_before_they_settle_and_settle_before_they_are_stable(
    shown: list[tuple[float, list[str], int]], said: list[str]
) -> None:
    walls = np.cumsum([pause_s for pause_s, _, _ in shown])
    texts = timeline(*((at, " ".join(words), n) for at, (_, words, n) in zip(walls, shown, strict=True)))
    spoken = [SpokenWord(word, 0.5 * i, 0.5 * i + 0.4) for i, word in enumerate(said)]
    figures = measure(texts, " ".join(said), spoken, normaliser("en"))
    delays = (figures.delays[name] for name in ("first_seen", "settled", "stable"))
    for first, settled, stable in zip(*delays, strict=True):
        assert first <= settled <= stable
    wrong = figures.streamed
    assert sum(u.streamed for u in figures.utterances) == wrong.substitutions + wrong.deletions + wrong.insertions


@given(WORDS, WORDS)
def test_the_error_rate_is_jiwers(reference: list[str], text: list[str]) -> None:
    found = errors(reference, text) + errors(["z"], ["z"])
    assert found.rate == pytest.approx(jiwer.wer(" ".join([*reference, "z"]), " ".join([*text, "z"])))
    assert found.doubled <= found.insertions


@pytest.mark.parametrize(
    ("reference", "text", "doubled", "dropped"),
    [
        ("in the end of it", "in the end in the end of it", 3, 0),
        ("very very good", "very very good", 0, 0),  # said twice
        ("had that in mind", "that that in mind", 0, 0),  # misheard
        ("a b c d e f g h", "a e f g h", 0, 0),
        ("a b c d e f g h", "a f g h", 0, 4),
    ],
)
def test_doubled_words_and_dropped_passages_are_counted(reference: str, text: str, doubled: int, dropped: int) -> None:
    found = errors(reference.split(), text.split())
    assert (found.doubled, found.dropped) == (doubled, dropped)


def test_finals_and_the_newest_partial_are_displayed() -> None:
    recorder = Recorder()
    recorder.add(partial("Good morning to", len("Good mor")), 1.7)
    recorder.add(final("Good morning", seq=3), 2.1)
    recorder.add(partial("to you"), 2.1)
    recorder.add(Gap(start=2.0, end=3.0, reason="overload"), 3.5)
    recorder.add(Correction(of=3, by="glossary", text="Good mourning", words=(), edits=()), 3.6)
    shown = timeline((1.7, "Good morning to", 1), (2.1, "Good morning", 2), (2.1, "Good morning to you", 2))
    assert recorder.timeline.revisions == shown.revisions
    assert (recorder.timeline.gaps, recorder.timeline.corrected) == ([(2.0, 3.0)], {3: "Good mourning"})


def test_silence_cuts_longer_pauses_and_finds_ends_before_speech_goes_on() -> None:
    pauses = [Pause(0.5, False, 0.2), Pause(0.7, False, 0.9), Pause(0.9, True, 0.8), Pause(float("inf"), True, 0.1)]
    assert judge(pauses, 0.6, 0.6, 0.0) == (0.5, 1.0, 0.6)
    assert judge(pauses, 0.4, 2.0, 0.5) == (0.5, 1.0, 1.2)
