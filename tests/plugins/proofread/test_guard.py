"""What a language model may change, and what it may not."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.plugins.proofread.guard import RefusedError, changes, likeness

PATH = Path(__file__).parents[2] / "golden" / "proofread.toml"
ROWS = tomllib.loads(PATH.read_text(encoding="utf-8"))["correction"]


def result(old: str, new: str) -> str:
    """Return a text with a correction, or why it is refused."""
    try:
        changes(old.split(), new.split())
    except RefusedError as refusal:
        return str(refusal)
    return "let through"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['old']} / {row['new']}")
def test_corrections_are_let_through_or_refused_as_they_were_read(row: dict[str, str]) -> None:
    assert result(row["old"], row["new"]) == row["result"]
    assert result(row["old"], row["old"]) == "let through"


def test_words_are_alike_in_spelling() -> None:
    assert likeness("shivon", "Siobhan") >= 0.6
    assert likeness("dog", "cat") < 0.6
    assert likeness("café", "CAFE") == 1.0
    assert likeness("", "word") == 0.0


# Words that tempt: each has a neighbour of another meaning among them.
TEMPTING = [
    *("not", "note", "no", "know", "now", "never", "ever", "5", "15", "50", "five", "fifteen", "fifty", "-5", "5."),
    *("the", "then", "than", "a", "an", "in", "is", "it's", "its", "to", "too", "two", "can", "can't", "cant", "$5"),
    *("happy", "unhappy", "careless", "careful", "June", "July", "Monday", "Sunday", "said", "sad", "say", "says"),
    *("shivon", "Siobhan", "new", "news", "york", "York", "city", "citi", "dog", "dogs", "Anna", "Ann", "hello", "5%"),
]
words = st.lists(st.sampled_from(TEMPTING), min_size=1, max_size=9)


def frozen_in(texts: list[str]) -> list[str]:
    """Return the numbers and negations among words, found otherwise than the guard does."""
    found = []
    for text in texts:
        bare = text.lower().strip(".,!?")
        if re.search(r"\d", bare) or bare in ("not", "no", "never", "can't"):
            found.append(bare)
    return found


@settings(max_examples=100)
@given(old=words, data=st.data())
def test_whatever_is_proposed_what_has_a_meaning_stays_and_most_words_stay(old: list[str], data: st.DataObject) -> None:
    new = list(old)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(new)))
        until = data.draw(st.integers(at, min(at + 2, len(new))))
        new[at:until] = data.draw(st.lists(st.sampled_from(TEMPTING), max_size=2))
    if result(" ".join(old), " ".join(new)) != "let through":
        return
    assert frozen_in(old) == frozen_in(new)
    found = changes(old, new)
    assert [*range(len(old))] == [n for was, _ in found for n in was]
    assert [*range(len(new))] == [n for _, becomes in found for n in becomes]
    bare_old, bare_new = ([word.lower().strip(".,") for word in side] for side in (old, new))
    assert len(new) <= len(old)
    assert sum(word in bare_old for word in bare_new) >= len(old) - 2 * (len(old) // 3)


@settings(max_examples=100)
@given(old=words, new=st.lists(st.text(st.characters(exclude_categories=["Zs", "Cs", "Cc"]), min_size=1), max_size=9))
def test_nothing_that_an_answer_says_breaks_the_guard(old: list[str], new: list[str]) -> None:
    text = " ".join(new).split()
    if result(" ".join(old), " ".join(text)) == "let through":
        assert frozen_in(old) == frozen_in(text)
