"""Hot words: what is given for them in all is what the text has of them."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.whisper.decode.hotwords import HotWords, check_hotwords, hotwords_prompt
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO
from tests.unit.whisper.tokens.published import MULTILINGUAL, load

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
EOT = TOKENIZER.special.end_of_text
BEGIN = TOKENIZER.special.timestamp_begin
SPELLED = TOKENIZER.spelled[:EOT]

BOOST = 6.0


def spellings_of(phrases: Sequence[str], tokenizer: Tokenizer = TOKENIZER, before: str = " ") -> set[tuple[int, ...]]:
    written = [form for phrase in phrases for form in (phrase, phrase[0].upper() + phrase[1:])]
    return {tuple(tokenizer.encode(f"{before}{form}")) for form in written}


def given_for(
    phrases: Sequence[str], tokens: Sequence[int], tokenizer: Tokenizer = TOKENIZER, language: str = "en"
) -> list[float]:
    """Return what each token of a text is given, the end of text included, less what is lost to all others."""
    rule = HotWords(tokenizer, phrases, BOOST).in_language(language)
    spellings = spellings_of(phrases, tokenizer)
    if language == "ja":
        spellings |= spellings_of(phrases, tokenizer, before="")
    bonuses = []
    for i, token in enumerate(tokens):
        logits = np.zeros(tokenizer.n_vocab, dtype=np.float32)
        rule.apply(logits, tokens[:i])
        # Of a phrase that has begun and does not end here, what it was given is lost.
        ends = {tuple(tokens[n:i]) for n in range(i)}
        begun = [n / len(spelling) for spelling in spellings for n in range(1, len(spelling)) if spelling[:n] in ends]
        lost = 0.0 if spellings & ends else BOOST * max(begun, default=0.0)
        bonuses.append(float(logits[token]) - lost)
    return bonuses


def n_contained(phrases: Sequence[str], tokens: Sequence[int]) -> int:
    """Count the spellings of the phrases in a text, as whole words."""
    n_found = 0
    for spelling in spellings_of(phrases):
        for i in range(len(tokens) - len(spelling)):
            behind = tokens[i + len(spelling)]
            whole = behind >= EOT or not SPELLED[behind][:1].isalnum()
            n_found += whole and tuple(tokens[i : i + len(spelling)]) == spelling
    return n_found


@st.composite
def phrases_and_text(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    words = st.text("abn", min_size=1, max_size=4)
    phrases = draw(st.lists(st.lists(words, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=5, unique=True))
    pieces = draw(
        st.lists(
            st.one_of(
                st.sampled_from(phrases).map(lambda phrase: TOKENIZER.encode(f" {phrase}")),
                st.sampled_from(phrases).map(lambda phrase: TOKENIZER.encode(f" {phrase.capitalize()}")[:-1]),
                st.sampled_from([*TOKENIZER.encode(" abn,.'"), BEGIN]).map(lambda token: [token]),
            ),
            max_size=8,
        )
    )
    return phrases, [*itertools.chain.from_iterable(pieces), EOT]


@given(phrases_and_text())
@example((["a", "a a", "a a a"], [*TOKENIZER.encode(" a a a"), EOT]))
@example((["ab", "ab ba", "ba nab"], [*TOKENIZER.encode(" ab ba nab ab na"), EOT]))
@settings(max_examples=100, deadline=None)
def test_a_text_is_given_the_boosts_of_the_phrases_that_it_contains(case: tuple[list[str], list[int]]) -> None:
    phrases, tokens = case
    assert sum(given_for(phrases, tokens)) == pytest.approx(BOOST * n_contained(phrases, tokens), abs=1e-3)


def test_the_boost_grows_along_a_phrase_and_is_kept_at_its_end() -> None:
    tokens = [*TOKENIZER.encode(" Kennedy"), *TOKENIZER.encode(" said"), EOT]
    n = len(TOKENIZER.encode(" Kennedy"))
    bonuses = given_for(["Kennedy"], tokens)
    # What follows begins with a space, and may be the same name again.
    assert bonuses[:n] == pytest.approx([BOOST / n] * n)
    assert sum(bonuses) == pytest.approx(BOOST)


def test_a_phrase_that_begins_inside_of_another_is_given_no_less() -> None:
    phrases = ["a b c d e f g h i", "b x"]
    tokens = TOKENIZER.encode(" a b")
    n_inside = len(TOKENIZER.encode(" b x"))
    assert sum(given_for(phrases, tokens)) == pytest.approx(BOOST * len(TOKENIZER.encode(" b")) / n_inside)


@pytest.mark.parametrize(("language", "boost"), [("ja", BOOST), ("en", 0.0)])
def test_where_words_have_no_spaces_a_phrase_begins_anywhere(language: str, boost: float) -> None:
    tokenizer = load(MULTILINGUAL)
    tokens = [token for word in ("今日", "東京", "です") for token in tokenizer.encode(word)]
    tokens.append(tokenizer.special.end_of_text)
    assert sum(given_for(["東京"], tokens, tokenizer, language)) == pytest.approx(boost)


def test_what_no_phrase_is_about_keeps_its_logits() -> None:
    nothing = np.arange(TOKENIZER.n_vocab, dtype=np.float32)
    HotWords(TOKENIZER, []).in_language("en").apply(nothing, [1, 2])
    assert (nothing == np.arange(TOKENIZER.n_vocab)).all()
    rule = HotWords(TOKENIZER, ["Kennedy", "art"], BOOST).in_language("en")
    for tokens in ([], TOKENIZER.encode(" Kennedy")[:-1], TOKENIZER.encode(" art")):
        logits = np.zeros(TOKENIZER.n_vocab, dtype=np.float32)
        rule.apply(logits, tokens)
        assert (logits[EOT:] == 0).all()
        assert logits[TOKENIZER.encode(".")] == 0


def test_phrases_are_cleaned_and_may_be_long_and_many() -> None:
    assert check_hotwords([" Lee  Oswald ", "Lee Oswald", "Zapruder"]) == ("Lee Oswald", "Zapruder")
    for phrases in ([], ["x" * 100], [f"w{i}" for i in range(1000)]):
        assert check_hotwords(phrases) == tuple(phrases)


def test_the_prompt_is_the_list() -> None:
    assert hotwords_prompt(["Lee Oswald", "Zapruder"]) == "Lee Oswald, Zapruder."
    assert hotwords_prompt([]) == ""


def test_a_word_that_goes_on_with_part_of_a_character_is_longer_too() -> None:
    tokens = [*TOKENIZER.encode(" café"), EOT]
    assert SPELLED[tokens[-2]] == "é".encode()[1:]
    assert sum(given_for(["caf"], tokens)) == pytest.approx(0)
