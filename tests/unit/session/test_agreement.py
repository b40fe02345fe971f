"""Local agreement of hypotheses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamer.session.agreement import Partners, agree


class Hypotheses:
    """Successive hypotheses of one utterance."""

    def __init__(self, n_agreeing: int) -> None:
        self.n_agreeing = n_agreeing
        self.partners: Partners = ()

    def update(self, words: list[str], n_eligible: int) -> int:
        """Take the words after the stable ones; return how many become stable."""
        n_stable, self.partners = agree(self.partners, words, self.n_agreeing, n_eligible)
        return n_stable


def test_what_two_hypotheses_begin_with_is_settled() -> None:
    agreement = Hypotheses(2)
    assert agreement.update(["a", "b", "x"], 3) == 0
    assert agreement.update(["a", "b", "c"], 3) == 2


def test_words_that_may_be_cut_off_do_not_settle_but_are_remembered() -> None:
    agreement = Hypotheses(2)
    agreement.update(["a", "b"], 2)
    assert agreement.update(["a", "b"], 1) == 1
    assert agreement.update(["b"], 1) == 1


def test_with_one_a_hypothesis_is_believed_at_once() -> None:
    assert Hypotheses(1).update(["a", "b"], 1) == 1


def test_three_must_agree_where_three_are_asked_for() -> None:
    agreement = Hypotheses(3)
    assert agreement.update(["a", "b"], 2) == 0
    assert agreement.update(["a", "b"], 2) == 0
    assert agreement.update(["a", "x"], 2) == 1


@pytest.mark.parametrize("n_agreeing", [1, 2, 3, 4])
@given(hypotheses=st.lists(st.lists(st.sampled_from("ab"), max_size=8), max_size=12), data=st.data())
def test_a_word_settles_only_where_the_last_n_hypotheses_had_it(
    n_agreeing: int, hypotheses: list[list[str]], data: st.DataObject
) -> None:
    agreement = Hypotheses(n_agreeing)
    settled: list[str] = []
    whole: list[list[str]] = []
    for hypothesis in hypotheses:
        n_eligible = data.draw(st.integers(0, len(hypothesis)))
        n_settled = agreement.update(hypothesis, n_eligible)
        assert 0 <= n_settled <= n_eligible
        whole.append(settled + hypothesis)
        settled = settled + hypothesis[:n_settled]
        if n_settled:
            assert len(whole) >= n_agreeing
            assert all(heard[: len(settled)] == settled for heard in whole[-n_agreeing:])
