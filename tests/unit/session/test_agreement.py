"""Local agreement of hypotheses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamer.session.agreement import Partners, agree


@pytest.mark.parametrize(
    ("n_agreeing", "hypotheses", "settled"),
    [
        pytest.param(2, [("abx", 3), ("abc", 3)], [0, 2], id="what two begin with is settled"),
        pytest.param(2, [("ab", 2), ("ab", 1), ("b", 1)], [0, 1, 1], id="words that may be cut off are remembered"),
        pytest.param(1, [("ab", 1)], [1], id="with one, a hypothesis is believed at once"),
        pytest.param(3, [("ab", 2), ("ab", 2), ("ax", 2)], [0, 0, 1], id="three must agree where three are asked for"),
    ],
)
def test_words_settle(n_agreeing: int, hypotheses: list[tuple[str, int]], settled: list[int]) -> None:
    partners: Partners = ()
    for (words, n_eligible), expected in zip(hypotheses, settled, strict=True):
        n_stable, partners = agree(partners, list(words), n_agreeing, n_eligible)
        assert n_stable == expected


@pytest.mark.parametrize("n_agreeing", [1, 2, 3, 4])
@given(hypotheses=st.lists(st.text("ab", max_size=8), max_size=12), data=st.data())
def test_a_word_settles_only_where_the_last_n_hypotheses_had_it(
    n_agreeing: int, hypotheses: list[str], data: st.DataObject
) -> None:
    partners: Partners = ()
    settled = ""
    whole: list[str] = []
    for hypothesis in hypotheses:
        n_eligible = data.draw(st.integers(0, len(hypothesis)))
        n_settled, partners = agree(partners, list(hypothesis), n_agreeing, n_eligible)
        assert 0 <= n_settled <= n_eligible
        whole.append(settled + hypothesis)
        settled += hypothesis[:n_settled]
        if n_settled:
            assert len(whole) >= n_agreeing
            assert all(heard.startswith(settled) for heard in whole[-n_agreeing:])
