"""Where a text means a term."""

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamer.after.correct.corrector import text_of
from streamer.after.correct.glossary import Form, Term
from streamer.after.correct.terms import TermIndex, rewritten, usual_words
from tests.builders import timed_words, words

USUAL = frozenset("the sole time it was quarter books of by port see plus and you en we run in now from to".split())  # noqa: SIM905
NAMES = "Kubernetes", "Quorbix", "Port Dravenholt", "Solheim", "Ruth", "Wołodymyr", "IT", "São Tomé", "Łódź"
TERMS = [
    *(Term(name, (name,)) for name in (*NAMES, "Владивосток")),
    Term("NPU", ("NPU", "en pee you")),
    Term("C++", ("C++", "see plus plus")),
    Term("北京大学", ("北京大学", "北京大雪")),
    Term("gradle", ("gradle",), Form.WORD),
    Term("gray", ("grey",), Form.REPLACED),
    Term("", ("damn",), Form.MASKED),
]
INDEX = TermIndex(TERMS, USUAL.__contains__)


def spelled(text: str, probability: float) -> str:
    said = words(text, step=1.0, probability=probability)
    result = rewritten(said, INDEX.replacements(said))
    assert (result[0].start, result[-1].end) == (said[0].start, said[-1].end)
    assert all(a.end <= b.start for a, b in pairwise(result))
    return text_of(result)


EXAMPLES = tomllib.loads((Path(__file__).parents[3] / "golden" / "terms.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "expected"), EXAMPLES.items())
def test_what_is_meant_is_spelled(text: str, expected: str) -> None:
    said, _, percent = text.partition(" %")
    assert spelled(said, int(percent or 70) / 100) == expected


def test_a_word_in_pieces_is_replaced_as_a_whole() -> None:
    said = timed_words(*((text, i, i + 1) for i, text in enumerate((" 北", "京", "大", "雪", "。"))))
    assert [word.word for word in rewritten(said, INDEX.replacements(said))] == [" 北京大学。"]


def test_as_many_words_keep_their_times() -> None:
    port, hold = timed_words((" Port", 1.0, 1.2), (" dravenhold,", 1.5, 2.0))
    said = [replace(port, probability=0.5, speaker="S1"), replace(hold, probability=0.7, speaker="S1")]
    assert rewritten(said, INDEX.replacements(said)) == [
        replace(said[0], probability=0.6),
        replace(said[1], probability=0.6, word=" Dravenholt,"),
    ]


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6))
def test_any_text_keeps_its_times_and_loses_nothing_to_an_empty_glossary(pieces: list[str]) -> None:
    said = list(timed_words(*((text, i, i + 1) for i, text in enumerate(pieces))))
    assert rewritten(said, TermIndex([], USUAL.__contains__).replacements(said)) == said
    found = rewritten(said, INDEX.replacements(said))
    assert all(word.word for word in found)
    assert (found[0].start, found[-1].end) == (0, len(pieces))


def test_usual_words_have_a_token_of_their_own_among_the_most_frequent() -> None:
    usual = usual_words({" time": [640], " dravenholt": [1, 2], " seltene": [40_000]}.__getitem__)
    assert [usual(word) for word in ("time", "dravenholt", "seltene")] == [True, False, False]
