"""Average lagging and LongYAAL, computed by hand, and by omnisteval 0.1.10 where numbers are long."""

import random

import pytest

from tools.benchmarks.lagging import average_lagging, long_yaal, soft_align

# Two utterances of two words, of 2 s and 1 s.
SAID = (("good", 1.0, 2.0), ("morning", 2.0, 3.0), ("nice", 5.0, 5.5), ("day", 5.5, 6.0))


def test_each_utterance_lags_behind_an_even_speaker_of_its_own() -> None:
    words = ["good", "morning", "nice", "day"]
    # The even speaker says them at 1, 2, 5 and 5.5 s.
    assert long_yaal(SAID, [0, 2], words, [2.0, 3.5, 5.7, 5.9]) == pytest.approx([1.25, 0.55])


def test_words_behind_the_end_of_the_last_utterance_do_not_count() -> None:
    assert long_yaal(SAID, [0, 2], ["good", "nice", "day"], [6.5, 5.8, 6.0]) == pytest.approx([0.8])
    assert long_yaal((), [], ["good"], [1.0]) == []


def test_a_text_that_is_too_long_gains_nothing() -> None:
    # An even speaker of three words says them at 1, 1.667 and 2.333 s.
    lags = long_yaal(SAID[:2], [0], ["good", "god", "morning"], [2.0, 2.2, 2.4])
    assert lags == pytest.approx([((2 - 1) + (2.2 - 5 / 3) + (2.4 - 7 / 3)) / 3])


def test_words_stand_beside_those_with_the_same_letters() -> None:
    assert soft_align(["good", "morning", "nice", "day"], ["god", "mourning", "day"]) == [0, 1, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (["ab", "ax", "cd"], [0, 0, 1]),  # more like the word before
        (["ab", "cx", "ax", "cd"], [0, 1, 1, 1]),  # more like the word behind, and what follows goes there too
        (["cx", "ab", "cd"], [0, 0, 1]),
        (["ab", "cd", "ce"], [0, 1, 1]),
    ],
)
def test_a_word_that_is_put_in_goes_to_the_word_that_it_is_like(text: list[str], expected: list[int]) -> None:
    assert soft_align(["ab", "cd"], text) == expected


def test_it_is_what_omnisteval_gives() -> None:
    chance = random.Random(7)
    said, begins, at_s = [], [], 0.0
    for k in range(40):
        if k % 9 == 0:
            begins.append(k)
            at_s += 2.0
        said.append(("".join(chance.choices("abcdefgh", k=4)), at_s, at_s + 0.3))
        at_s += 0.3
    text = [word if chance.random() < 0.7 else "".join(chance.choices("abcdefgh", k=3)) for word, _, _ in said]
    emitted_s = [end + chance.uniform(0.2, 1.5) for _, _, end in said]
    del text[12:15], emitted_s[12:15]
    text[20:20], emitted_s[20:20] = ["abc", "fgh"], [emitted_s[20]] * 2
    expected = [0.954453, 1.496553, 1.375512, 1.385155, 0.83747]
    assert long_yaal(said, begins, text, emitted_s) == pytest.approx(expected, abs=1e-6)


def test_words_that_come_at_their_even_times_plus_a_second_lag_a_second() -> None:
    assert average_lagging([1.0, 2.0, 3.0, 4.0], 5.0, 5, adaptive=False) == pytest.approx(1.0)


def test_words_behind_the_first_that_came_at_the_end_do_not_count() -> None:
    # An even speaker says the words at 0, 1, 2, 3 of 4 s; (1 - 0 + 4 - 1) / 2.
    assert average_lagging([1.0, 4.0, 4.0, 4.0], 4.0, 4, adaptive=False) == pytest.approx(2.0)


def test_a_text_that_is_too_long_gains_nothing_when_the_pace_is_adapted() -> None:
    delays_s = [1.0, 1.5, 2.0, 2.5]
    # Twice as many words as were said: the even speaker says them at 0, 1.5, 3, 4.5, or at 0, 0.75, 1.5, 2.25.
    assert average_lagging(delays_s, 3.0, 2, adaptive=False) == pytest.approx((1 + 0 - 1 - 2) / 4)
    assert average_lagging(delays_s, 3.0, 2, adaptive=True) == pytest.approx((1 + 0.75 + 0.5 + 0.25) / 4)


def test_without_words_there_is_no_lag() -> None:
    assert average_lagging([], 3.0, 2, adaptive=True) is None
    assert average_lagging([1.0], 3.0, 0, adaptive=True) is None
