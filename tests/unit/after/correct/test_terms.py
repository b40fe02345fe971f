"""Where a text means a term."""

from itertools import pairwise

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Near in spelling and sound, of one word to three.
        ("we run cubernetis.", "we run Kubernetes."),
        ("the quarbex, again", "the Quorbix, again"),
        ("in pordraven hold now", "in Port Dravenholt now"),
        ("in port draven hote now", "in Port Dravenholt now"),
        ("from wolodimir to woodge", "from Wołodymyr to woodge"),
        ("in sao tome", "in São Tomé"),
        # The nearer, the surer the model is and the shorter a term is.
        ("the quarbex %50", "the Quorbix"),
        ("the quarbex %100", "the quarbex"),
        ("the quorbicks %90", "the Quorbix"),
        ("dear ruthe %50", "dear Ruth"),
        ("dear rathe %50", "dear rathe"),
        # What stands around it stays.
        ("(kubernets's) “kubernets”…", "(Kubernetes's) “Kubernetes”…"),
        ("Gradel or gradel", "Gradle or gradle"),
        # As it is to be.
        ("Kubernetes and kubernetes", "Kubernetes and Kubernetes"),
        # Usual words mean themselves, also side by side; so do those that a term is written as.
        ("the sole time it was", "the sole time it was"),
        ("quarter books of it", "quarter books of it"),
        # Across the end of a sentence or clause nothing is one.
        ("by port. Dravenhold", "by port. Dravenhold"),
        # Numbers and negations stay.
        ("kuber 9 etes", "kuber 9 etes"),
        ("cube not tes", "cube not tes"),
        # Short acronyms by their very spellings.
        ("the en pee you, the npu and the mpu", "the NPU, the NPU and the mpu"),
        ("see plus plus is C++ and no c", "C++ is C++ and no c"),
        # Find, and mask.
        ("Grey, grey, greyish", "Gray, gray, greyish"),
        ("Damn it, damned", "**** it, damned"),
        # Without rules of sound.
        ("из владивостока вот", "из Владивосток вот"),
        ("из владислава вот", "из владислава вот"),
        ("在 北京大雪 。", "在 北京大学 。"),
    ],
)
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
