"""Words, against openai-whisper's."""

import unicodedata
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_at_marks, split_to_words
from tests.unit.whisper.support import NANO, table
from tests.unit.whisper.tokens.published import CASES, ENGLISH, LARGE_V3, MULTILINGUAL, TEXTS, Case, load, reference

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)


def words_of(tokenizer: Tokenizer, tokens: list[int], language: str) -> list[str]:
    return [word for word, _ in split_to_words(tokenizer, tokens, language)]


def test_a_lone_space_is_not_a_word_of_its_own() -> None:
    space, the = TOKENIZER.encode(" ")[0], TOKENIZER.encode(" the")
    assert split_to_words(TOKENIZER, [*the, space, *the], "en") == [(" the", tuple(the)), ("  the", (space, *the))]
    assert split_to_words(TOKENIZER, [*the, space], "en") == [(" the", tuple(the))]


@pytest.mark.parametrize(
    ("language", "text", "expected", "without_last_token"),
    [
        # A character of several tokens stays whole.
        ("en", " a🙂", [" a", "🙂"], [" a"]),
        ("en", " café", [" café"], [" caf"]),
        ("en", " ő,", [" ő", ","], [" ő"]),
        (
            "en",
            ' Yes: "well-known," he',
            [" Yes", ":", ' "well-known', ',"', " he"],
            [" Yes", ":", ' "well-known', ',"'],
        ),
        ("en", "今天，好。", ["今天，好", "。"], ["今天，好"]),
        # Languages without spaces are split by characters.
        ("zh", "今天，好。", ["今", "天", "，", "好", "。"], ["今", "天", "，", "好"]),
    ],
)
def test_words_keep_their_space_and_the_marks_behind_them_are_one_word(
    language: str, text: str, expected: list[str], without_last_token: list[str]
) -> None:
    tokens = TOKENIZER.encode(text)
    assert words_of(TOKENIZER, tokens, language) == expected
    assert words_of(TOKENIZER, tokens[:-1], language) == without_last_token


@cache
def any_tokens(case: Case) -> st.SearchStrategy[list[int]]:
    """Tokens of texts, and any others: mostly those that spell a part of a character, and the one that spells none."""
    tokenizer = load(case)
    end = tokenizer.special.end_of_text
    broken = [token for token in range(end) if "\N{REPLACEMENT CHARACTER}" in tokenizer.decode([token])]
    token = st.one_of(st.sampled_from(broken), st.integers(0, end - 1), st.just(50256))
    return st.lists(token, max_size=20) | st.sampled_from([*TEXTS.values()]).map(tokenizer.encode)


@pytest.mark.parametrize(
    ("case", "language"), [(ENGLISH, "en"), (MULTILINGUAL, "en"), (LARGE_V3, "ja")], ids=["51864", "51865", "51866"]
)
@settings(max_examples=75)
@given(data=st.data())
def test_tokens_that_grow_show_more_of_the_text_and_never_half_a_character(
    case: Case, language: str, data: st.DataObject
) -> None:
    """What is broken is shown as such once it cannot become whole, and nothing that was shown changes."""
    tokenizer = load(case)
    tokens = data.draw(any_tokens(case))
    whole, before = tokenizer.decode(tokens), ""
    for n in range(len(tokens) + 1):
        words = words_of(tokenizer, tokens[:n], language)
        now = "".join(words)
        assert all(words)
        assert whole.startswith(now)
        assert now.startswith(before)
        # Half a character at the end would read as broken now and as something else later.
        assert not now.endswith("\N{REPLACEMENT CHARACTER}")
        before = now
    assert "\N{REPLACEMENT CHARACTER}" in whole or not whole.removeprefix(before).strip()


@pytest.mark.parametrize(("language", "text"), table("texts")["plain"]["words"])
def test_words_without_punctuation_equal_openai_whispers(language: str, text: str) -> None:
    tokens = load(LARGE_V3).encode(text)
    words, spellings = reference(LARGE_V3, language).split_to_word_tokens(tokens)
    expected = [(word, tuple(spelling)) for word, spelling in zip(words, spellings, strict=True)]
    assert split_to_words(load(LARGE_V3), tokens, language) == expected


@pytest.mark.parametrize(
    ("language", "text"), [("th", "น้ำใจ"), ("hi", " हिन्दी"), ("en", " cafe\N{COMBINING ACUTE ACCENT}")]
)
def test_signs_stay_with_their_letter(language: str, text: str) -> None:
    """openai-whisper splits those of Thai off."""
    words = words_of(load(MULTILINGUAL), load(MULTILINGUAL).encode(f"{text}।"), language)
    assert "".join(words) == f"{text}।"
    assert words[-1] == "।"
    assert not any(unicodedata.category(word[0]).startswith("M") for word in words)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    ("case", "language"), [*((case, "en") for case in CASES), (MULTILINGUAL, "ja"), (LARGE_V3, "ja")]
)
def test_text_is_split_at_marks_as_openai_whisper_does(case: Case, language: str, name: str) -> None:
    # What stands for broken bytes is like these.
    whole = load(case).encode(TEXTS[name].replace("\N{REPLACEMENT CHARACTER}", ""))
    theirs = reference(case, language if case.multilingual else None)
    for tokens in (whole, whole[:-1]):  # up to within a character
        # The end of the text shows what is unfinished; behind several broken bytes openai-whisper loses its place.
        words, pieces = theirs.split_to_word_tokens([*tokens, theirs.eot])
        if pieces[-1] == [theirs.eot]:
            expected = [(word, tuple(piece)) for word, piece in zip(words[:-1], pieces[:-1], strict=True)]
            assert split_at_marks(load(case), tokens, language) == expected
