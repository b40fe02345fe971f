"""Which words become stable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.session.policy import Agreement, AlignAtt, Audio, Earlier
from streamer.whisper.result import TimedWord

AUDIO = Audio(16_000, pause=False)


def letters(text: str, n_eligible: int) -> list[TimedWord]:
    """Return a word a letter, of which the first are not near the end of the audio."""
    return [
        TimedWord(letter, (1,), 0, 1_000 if i < n_eligible else AUDIO.end, probability=0.5)
        for i, letter in enumerate(text)
    ]


class Hypotheses:
    """Hypotheses one after the other, as a text remembers them."""

    def __init__(self, n: int) -> None:
        self.policy = Agreement(n)
        self.earlier: Earlier = ()

    def count(self, text: str, n_eligible: int) -> int:
        n_stable = self.policy.count(letters(text, n_eligible), self.earlier, AUDIO)
        newest = (*self.earlier, tuple(text))
        self.earlier = tuple(before[n_stable:] for before in newest[max(0, len(newest) - self.policy.n_earlier) :])
        return n_stable


@pytest.mark.parametrize(
    ("n_agreeing", "hypotheses", "stable"),
    [
        pytest.param(2, [("abx", 3), ("abc", 3)], [0, 2], id="what two begin with is stable"),
        pytest.param(2, [("ab", 2), ("ab", 1), ("b", 1)], [0, 1, 1], id="words that may be cut off are remembered"),
        pytest.param(1, [("ab", 1)], [1], id="with one, a hypothesis is believed at once"),
        pytest.param(3, [("ab", 2), ("ab", 2), ("ax", 2)], [0, 0, 1], id="three must agree where three are asked for"),
    ],
)
def test_words_become_stable_when_hypotheses_agree(
    n_agreeing: int, hypotheses: list[tuple[str, int]], stable: list[int]
) -> None:
    heard = Hypotheses(n_agreeing)
    assert [heard.count(*hypothesis) for hypothesis in hypotheses] == stable


@pytest.mark.parametrize("n_agreeing", [1, 2, 3, 4])
@given(hypotheses=st.lists(st.text("ab", max_size=8), max_size=12), data=st.data())
def test_a_word_is_stable_only_where_the_last_n_hypotheses_had_it(
    n_agreeing: int, hypotheses: list[str], data: st.DataObject
) -> None:
    heard, stable, whole = Hypotheses(n_agreeing), "", list[str]()
    for hypothesis in hypotheses:
        n_eligible = data.draw(st.integers(0, len(hypothesis)))
        n_stable = heard.count(hypothesis, n_eligible)
        assert 0 <= n_stable <= n_eligible
        whole.append(stable + hypothesis)
        stable += hypothesis[:n_stable]
        if n_stable:
            assert len(whole) >= n_agreeing
            assert all(heard.startswith(stable) for heard in whole[-n_agreeing:])


@pytest.mark.parametrize(
    ("attended", "probability", "pause", "n_stable"),
    [
        pytest.param(11_200, 0.6, False, 2, id="what is sure"),
        pytest.param(11_201, 0.6, False, 0, id="what lies in the end of the audio may be cut off"),
        pytest.param(16_000, 0.6, True, 2, id="but not in a pause"),
        pytest.param(11_200, 0.59, False, 0, id="what is improbable waits"),
        pytest.param(8_001, 0.59, True, 0, id="in a pause, too"),
        pytest.param(8_000, 0.0, False, 2, id="until there is more audio behind it"),
    ],
)
def test_a_word_is_stable_at_once_if_the_decoder_is_sure_of_it_else_later(
    attended: int, probability: float, pause: bool, n_stable: int
) -> None:
    policy = AlignAtt(margin_samples=4_800, probability=0.6, second_look_samples=8_000)
    word = TimedWord("a", (1,), 0, 8_000, probability, attended)
    assert policy.count([word, word], (), Audio(16_000, pause=pause)) == n_stable


def test_no_word_is_stable_before_the_words_before_it_are() -> None:
    doubtful, sure = TimedWord("a", (1,), 0, 2_000, 0.1, 2_000), TimedWord("b", (1,), 2_000, 4_000, 0.9, 4_000)
    policy = AlignAtt(margin_samples=4_800, probability=0.6, second_look_samples=14_001)
    assert policy.count([doubtful, sure], (), AUDIO) == 0
