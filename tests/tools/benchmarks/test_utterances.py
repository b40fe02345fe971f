"""Errors utterance by utterance, and what is lost at their beginnings and ends."""

import pytest

from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.text import plain
from tools.benchmarks.utterances import Utterance, split, summary

# Two utterances; the first word of the first is more than two seconds before its end.
SPOKEN = (
    SpokenWord("It", 0.5, 0.7),
    SpokenWord("was", 2.0, 2.4),
    SpokenWord("late,", 2.4, 3.0),
    SpokenWord("yes.", 4.0, 4.4),
)
TEXT = plain(" ".join(word.word for word in SPOKEN)).split()
PAUSED = (SpokenWord("It", 0.5, 1.9), *SPOKEN[1:])


def found(streamed: str, corrected: str = "", offline: str | None = None) -> list[Utterance]:
    texts = (streamed.split(), corrected.split(), None if offline is None else offline.split())
    return split(TEXT, PAUSED, texts, plain)


def test_an_error_belongs_to_the_word_that_it_stands_at_or_behind() -> None:
    first, second = found("it is late oh yes", "oh it was late yes sir", "it was yes")
    assert (first.n_words, second.n_words) == (3, 1)
    # "is" for "was", and "oh" behind "late".
    assert (first.streamed, second.streamed) == (2, 0)
    # What stands in front of all is at the first word.
    assert (first.corrected, second.corrected) == (1, 1)
    assert (first.offline, second.offline) == (1, 0)
    assert [u.offline for u in found("it was late yes")] == [None, None]


def test_words_left_out_at_the_end_and_at_the_beginning_are_lost() -> None:
    first, second = found("was", "", "it was late yes")
    assert (first.n_tail, first.tail_lost, first.tail_lost_offline, first.first_lost) == (3, 2, 0, True)
    assert (second.n_tail, second.tail_lost, second.first_lost, second.first_lost_offline) == (1, 1, True, False)
    # An exchanged word is wrong, not lost.
    assert found("at was later no")[0].tail_lost == 0
    # What was said more than two seconds before the end is no tail, and a pause of a second begins an utterance.
    assert [u.n_tail for u in split(TEXT, SPOKEN, (TEXT, TEXT, None), plain)] == [1, 2, 1]


def test_numbers_that_the_normaliser_joins_stay_in_their_utterance() -> None:
    def joins(text: str) -> str:
        return plain(text).replace("twenty one", "21")

    spoken = (SpokenWord("Twenty", 0.0, 0.4), SpokenWord("one.", 0.4, 0.8), SpokenWord("So", 3.0, 3.2))
    first, second = split(["21", "so"], spoken, (["21"], ["21", "so"], None), joins)
    assert (first.n_words, first.streamed, second.n_words, second.streamed) == (1, 0, 1, 1)


def test_figures_are_shares_of_all_utterances() -> None:
    some = Utterance(10, streamed=3, corrected=1, offline=1, n_tail=4, tail_lost=1, first_lost=True)
    figures = summary([some, Utterance(30, streamed=2, corrected=1, offline=2, n_tail=6, tail_lost_offline=5)])
    assert figures["utterances"] == 2
    assert figures["delta_streamed"] == pytest.approx(2 / 40)
    assert figures["delta_corrected"] == pytest.approx(-1 / 40)
    assert figures["tail_loss"] == pytest.approx(0.1)
    assert figures["tail_loss_offline"] == pytest.approx(0.5)
    assert (figures["first_word_loss"], figures["first_word_loss_offline"]) == (0.5, 0.0)


def test_unknown_times_and_offline_texts_leave_figures_unknown() -> None:
    (whole,) = split(TEXT, (), (TEXT, TEXT, TEXT), plain)
    assert (whole.n_words, whole.n_tail) == (4, 0)
    assert summary([whole])["tail_loss"] is None
    figures = summary([Utterance(10, streamed=1, corrected=1, n_tail=2)])
    assert figures["delta_streamed"] is figures["tail_loss_offline"] is None
    assert figures["tail_loss"] == 0
    assert set(summary([])) == set(figures)
