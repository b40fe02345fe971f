"""Average lagging, computed by hand."""

import pytest

from streamer.bench.measure import average_lagging


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
