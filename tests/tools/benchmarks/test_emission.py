"""When words were shown, on timelines made by hand."""

from tools.benchmarks.emission import Emission, Shown, emissions, in_words, place, visible
from tools.benchmarks.text import plain
from tools.benchmarks.timeline import Revision


def shown(*texts: tuple[float, str, int]) -> list[Shown]:
    return [Shown(wall_s, tuple(text.split()), n_stable) for wall_s, text, n_stable in texts]


def emitted(*texts: tuple[float, str, int], begins_s: list[float | None] | None = None) -> list[Emission]:
    revisions = shown(*texts)
    final = revisions[-1].words
    placed = [place(revision.words, final) for revision in revisions]
    return emissions(revisions, placed, len(final), begins_s or [None] * len(final))


def test_words_grow_and_are_promised() -> None:
    assert emitted((1, "a", 0), (2, "a b", 1), (3, "a b c", 3)) == [
        Emission(first=0, stable=1, settled=0),
        Emission(first=1, stable=2, settled=1),
        Emission(first=2, stable=2, settled=2),
    ]


def test_a_word_that_goes_and_comes_back_was_seen_first_and_settled_last() -> None:
    assert emitted((1, "a b", 0), (2, "a x", 0), (3, "a b", 2))[1] == Emission(first=0, stable=2, settled=2)


def test_words_are_known_again_when_those_before_them_become_more_or_fewer() -> None:
    more = emitted((1, "recognise speech today", 0), (2, "wreck a nice speech today", 0))
    assert [e.first for e in more] == [1, 1, 1, 0, 0]
    fewer = emitted((1, "wreck a nice speech today", 0), (2, "recognise speech today", 0))
    assert [e.first for e in fewer] == [1, 0, 0]


def test_a_word_is_not_taken_for_the_same_word_further_on() -> None:
    # The first "the" of the final is what the first text shows, not the second one.
    assert [e.first for e in emitted((1, "the", 0), (2, "the cat and the dog", 0))] == [0, 1, 1, 1, 1]
    # The first text shows nothing of the final at its place: "dog" stands where "cat" will.
    assert [e.first for e in emitted((1, "the dog", 0), (2, "the cat saw a big dog", 0))] == [0, 1, 1, 1, 1, 1]


def test_what_is_shown_before_it_was_said_counts_from_where_it_is_said() -> None:
    found = emitted((1, "a b", 0), (2, "a b", 0), (3, "a b", 2), begins_s=[0.5, 1.5])
    assert [e.first for e in found] == [0, 1]


def test_a_promise_that_is_broken_did_not_make_a_word_stable() -> None:
    assert emitted((1, "a b", 2), (2, "a x", 2), (3, "a b", 2))[1].stable == 2


def test_a_word_that_is_never_promised_is_never_stable() -> None:
    assert emitted((1, "a", 0), (2, "a b", 1))[1] == Emission(first=1, stable=None, settled=1)


def test_a_text_stands_for_the_beginning_it_is_most_like() -> None:
    placed = place(["the", "cat", "sat"], ["the", "fat", "cat", "sat", "on", "the", "mat"])
    assert placed.places == [0, 2, 3]
    assert placed.reach == 4
    assert place((), ("a",)).reach == 0
    assert place(("x",), ("a", "b")).reach == 1


def test_punctuation_alone_is_no_word() -> None:
    revision = in_words(Revision(1.0, ("Hello,", "--", "World!"), 2), plain)
    assert (revision.words, revision.n_stable) == (("hello", "world"), 1)


def test_what_is_replaced_within_a_frame_is_not_seen() -> None:
    final, rest, later = Revision(1.0, ("a",), 1), Revision(1.01, ("a", "b"), 1), Revision(2.0, (), 0)
    assert visible([final, rest, later]) == [rest, later]
    assert visible([]) == []
