"""Errors of texts, counted by hand."""

import jiwer
import pytest

from tools.benchmarks.text import Errors, align, edits, errors, plain, runs


def counted(reference: str, text: str) -> Errors:
    return errors(reference.split(), text.split())


def test_plain_drops_case_and_punctuation_but_no_apostrophe() -> None:
    assert plain("“Don’t,” she said -- it’s 9.30!") == "don't she said it's 9 30"
    assert plain(" -- ...") == ""


def test_an_alignment_pairs_words_by_place() -> None:
    alignment = align(["the", "cat", "sat", "down", "on", "it"], ["a", "cat", "sat", "on", "it", "now"])
    assert alignment.pairs == [(0, 0), (1, 1), (2, 2), (4, 3), (5, 4)]
    assert (alignment.deleted, alignment.inserted) == ([3], [5])


def test_errors_are_told_apart() -> None:
    found = counted("the cat sat on the mat", "the bat on the mat now")
    assert (found.substitutions, found.deletions, found.insertions) == (1, 1, 1)
    assert found.rate == pytest.approx(3 / 6)


def test_each_error_has_its_word_of_the_reference() -> None:
    found = edits(["the", "cat", "sat", "on", "the", "mat"], ["so", "the", "cat", "on", "a", "mat", "now"])
    assert found == [("insert", 0), ("delete", 2), ("replace", 4), ("insert", 5)]


def test_the_error_rate_is_jiwers() -> None:
    reference, text = "he would not say that he had not seen it", "he did say that he hat not not been seen at"
    assert counted(reference, text).rate == pytest.approx(jiwer.wer(reference, text))


def test_errors_add_up_before_they_are_divided() -> None:
    both = counted("a b c d", "a b c d") + counted("x y", "x")
    assert both.rate == pytest.approx(1 / 6)


def test_there_is_no_error_rate_where_nothing_was_said() -> None:
    assert counted("", "thank you").rate is None


@pytest.mark.parametrize(
    ("reference", "text", "doubled"),
    [
        ("in the end of it", "in the end in the end of it", 3),
        ("in the end of it", "in the end of of it", 1),
        ("thank you", "thank you thank you thank you thank you", 6),
        ("very very good", "very very good", 0),  # said twice
        ("had that in mind", "that that in mind", 0),  # misheard
        ("a b c", "a x b c", 0),  # made up
    ],
)
def test_words_said_twice_are_counted(reference: str, text: str, doubled: int) -> None:
    assert counted(reference, text).doubled == doubled


def test_words_left_out_count_as_dropped_where_they_are_many_in_a_row() -> None:
    assert counted("a b c d e f g h", "a e f g h").dropped == 0
    assert counted("a b c d e f g h", "a f g h").dropped == 4


def test_runs_of_indices() -> None:
    assert runs([1, 2, 5, 7, 8, 9]) == [[1, 2], [5], [7, 8, 9]]
    assert runs([]) == []
