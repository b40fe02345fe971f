"""Words taken back, counted by hand."""

import pytest

from tools.benchmarks.emission import Shown, place
from tools.benchmarks.stability import Stability, broken_promises, erased, unstable_words


def test_erasure_counts_every_word_behind_the_first_that_changed() -> None:
    # "b c" goes for "x"; "x" goes for "b c d"; nothing goes at last.
    texts = ["a b c", "a x", "a b c d", "a b c d e"]
    assert erased([tuple(text.split()) for text in texts]) == 2 + 1
    assert Stability(erased=3, n_final=5).normalised_erasure == pytest.approx(0.6)


def test_without_words_there_is_no_erasure() -> None:
    assert Stability().normalised_erasure is None
    assert Stability().upwr is None
    assert erased([]) == 0


def test_unstable_words_are_right_where_the_final_has_them_at_their_place() -> None:
    final = ["a", "b", "c", "d"]
    texts = [Shown(1, None, ("a", "x"), 0), Shown(2, None, ("a", "b", "x", "d"), 1), Shown(3, None, tuple(final), 4)]
    placed = [place(text.words, final) for text in texts]
    # Unstable: a, x; b, x, d. Wrong: x, and x.
    assert unstable_words(texts, placed) == (5, 2)
    assert Stability(n_unstable=5, unstable_wrong=2).upwr == pytest.approx(0.4)


def test_promised_words_that_change_are_broken_promises() -> None:
    assert broken_promises([(("a", "b", "c"), 2), (("a", "b", "x"), 2), (("a", "y", "x"), 3)]) == 1
    assert broken_promises([(("a", "b"), 2), ((), 0)]) == 2


def test_the_last_promised_word_may_be_written_on() -> None:
    assert broken_promises([(("the", "President"), 2), (("the", "President's", "car"), 3)]) == 0
    assert broken_promises([(("the", "President"), 2), (("the", "Prefect", "and"), 3)]) == 1
    assert broken_promises([(("the", "President", "has"), 3), (("the", "President's", "has"), 3)]) == 2


def test_stabilities_add_up() -> None:
    both = Stability(1, 2, 3, 4, 5, 6, 7) + Stability(1, 1, 1, 1, 1, 1, 1)
    assert both == Stability(2, 3, 4, 5, 6, 7, 8)
