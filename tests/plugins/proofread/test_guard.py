"""What a language model may change, and what it may not."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.plugins.proofread.guard import RefusedError, changes, likeness


def result(old: str, new: str) -> str:
    """Return a text with a correction, or why it is refused."""
    try:
        changes(old.split(), new.split())
    except RefusedError as refusal:
        return str(refusal)
    return "let through"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("we met shivon at the station", "we met Siobhan at the station"),
        ("good morning ice berg watchers today", "Good morning, iceberg watchers today."),
        ("i think that alot of it is is gone", "I think that alot of it is gone."),
        ("he went to the the market", "He went to the market."),
        ("we go to go to the market now and then", "we go to the market now and then"),
        ("so so so what did nasa say about it", "So what did NASA say about it?"),
        ("this is new york city at night", "This is New York City at night."),
        ("it grew by 5 in the last year", "It grew by 5, in the last year."),
        ("the patient has new monia again today", "the patient has newmonia again today"),
        ("dr smiths house is over there by the lake", "Dr. Smith's house is over there by the lake."),
        ("the well known ecommerce site is down again today", "The well-known e-commerce site is down again today."),
        ("nothing to correct here", "nothing to correct here"),
    ],
)
def test_spelling_case_punctuation_and_repeats_may_be_corrected(old: str, new: str) -> None:
    assert result(old, new) == "let through"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("we met at the station", "we all met at the station", "puts words in"),
        ("we met at the station", "we met at the station today", "puts words in"),
        ("we met at the old station", "we met at the station", "takes words out"),
        ("the big cat sleeps in here", "the cat sleeps in here", "takes words out"),
        ("we met a big cat there", "we met a bagatelle there", "unlike"),
        ("the dog sleeps in here", "the cat sleeps in here", "unlike"),
        ("he is note here for us", "he is not here for us", "negation"),
        ("he is not here for us", "he is note here for us", "negation"),
        ("we can't leave it at that", "we can leave it at that", "negation"),
        ("we can't leave it at that", "we cant leave it at that", "negation"),
        ("no no it is over there", "no it is over there", "negation"),
        ("it costs 15 dollars a month", "it costs 50 dollars a month", "number"),
        ("it costs 15 dollars a month", "it costs 15% dollars a month", "number"),
        ("minus -5 degrees in the night", "minus 5 degrees in the night", "number"),
        ("we met marc in the stat", "We nett Marg in tho stad", "unlike|of 6 words"),
        ("see you in june or later then", "see you in July or later then", "unlike"),
        ("there is 1 car", "there are 1 car", "unlike"),
        ("alpha bravo gamma delta", "alfa brava gamma delta", "2 of 4 words"),
        ("we said hello to the crowd", "WE SAID HELLO TO THE CROWD", "6 of 6 words"),
        ("we met york at the station", "we met york-burned at the station", "unlike"),
        ("we met york at the station", "we met york.Burned at the station", "unlike"),
        ("we met anna at the station", "we met anna!!!!!!! at the station", "punctuation"),
        ("we met anna at the station", "we met an\u200bna at the station", "no letters"),
        ("we met anna at the station", "we met Аnnа at the station", "unlike"),
        ("we met alexandra at the station", "we met alехandra at the station", "no letters"),
        ("мы встретили анну на вокзале", "мы встретили aнну на вокзале", "no letters"),
        ("we met anna at the station", "we met <b>anna</b> at the station", "unlike|no letters"),
    ],
)
def test_anything_else_is_refused(old: str, new: str, why: str) -> None:
    assert re.search(why, result(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("das ist kein guter tag für uns", "das ist ein guter tag für uns"),
        ("il n'est pas venu avec nous hier", "il est pas venu avec nous hier"),
        ("ele não vem para casa conosco", "ele nos vem para casa conosco"),
        ("wij hebben geen geld voor hem", "wij hebben een geld voor hem"),
        ("я не приду домой сегодня вечером", "я на приду домой сегодня вечером"),
        ("wir haben 21 stück davon", "wir haben 21. stück davon, 2"),
    ],
)
def test_numbers_and_negations_stay_in_any_language(old: str, new: str) -> None:
    assert "a number or a negation" in result(old, new)
    assert result(old, old) == "let through"


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


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(old=words, new=st.lists(st.text(st.characters(exclude_categories=["Zs", "Cs", "Cc"]), min_size=1), max_size=9))
def test_nothing_that_an_answer_says_breaks_the_guard(old: list[str], new: list[str]) -> None:
    text = " ".join(new).split()
    if result(" ".join(old), " ".join(text)) == "let through":
        assert frozen_in(old) == frozen_in(text)
