"""Words, against openai-whisper's."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_at_marks, split_to_words
from tests.unit.whisper.support import NANO
from tests.unit.whisper.tokens.published import CASES, ENGLISH, LARGE_V3, MULTILINGUAL, TEXTS, Case, load, reference

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.n_vocab))


def test_a_lone_space_is_no_word_of_its_own() -> None:
    space, the = TOKENIZER.encode(" ")[0], TOKENIZER.encode(" the")
    assert split_to_words(TOKENIZER, [*the, space, *the], "en") == [(" the", tuple(the)), ("  the", (space, *the))]
    assert split_to_words(TOKENIZER, [*the, space], "en") == [(" the", tuple(the))]


@pytest.mark.parametrize(
    ("text", "whole", "before"),
    [(" a🙂", [" a", "🙂"], [" a"]), (" café", [" café"], [" caf"]), (" ő,", [" ő", ","], [" ő"])],
)
def test_a_character_of_several_tokens_stays_whole(text: str, whole: list[str], before: list[str]) -> None:
    tokens = TOKENIZER.encode(text)
    assert [word for word, _ in split_to_words(TOKENIZER, tokens, "en")] == whole
    assert [word for word, _ in split_to_words(TOKENIZER, tokens[:-1], "en")] == before


def test_words_keep_their_space_and_the_marks_behind_them_are_one_word() -> None:
    words = split_to_words(TOKENIZER, TOKENIZER.encode(' He said: "yes, well-known," didn\'t he?'), "en")
    expected = [" He", " said", ":", ' "yes', ",", " well-known", ',"', " didn't", " he", "?"]
    assert [word for word, _ in words] == expected


def test_languages_without_spaces_are_split_by_characters() -> None:
    tokens = TOKENIZER.encode("今天，好。")
    assert [word for word, _ in split_to_words(TOKENIZER, tokens, "zh")] == ["今", "天", "，", "好", "。"]
    assert [word for word, _ in split_to_words(TOKENIZER, tokens, "en")] == ["今天，好", "。"]


def shown(tokenizer: Tokenizer, tokens: list[int], language: str) -> str:
    return "".join(word for word, _ in split_to_words(tokenizer, tokens, language))


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("case", [ENGLISH, LARGE_V3], ids=["51864", "51866"])
def test_a_text_that_grows_by_tokens_shows_no_half_character(case: Case, text: str, language: str) -> None:
    tokenizer = load(case)
    tokens = tokenizer.encode(text)
    before = ""
    for n in range(len(tokens) + 1):
        now = shown(tokenizer, tokens[:n], language)
        assert text.startswith(now)
        assert now.startswith(before)
        before = now
    assert text.removeprefix(before) in ("", " ")


def _any_tokens() -> st.SearchStrategy[list[int]]:
    tokenizer = load(MULTILINGUAL)
    end = tokenizer.special.end_of_text
    broken = [token for token in range(end) if "\N{REPLACEMENT CHARACTER}" in tokenizer.decode([token])]
    return st.lists(st.one_of(st.sampled_from(broken), st.integers(0, 50256), st.just(50256)), max_size=20)


# Mostly of those that spell a part of a character, and the one that spells nothing.
ANY_TOKENS = st.deferred(_any_tokens)


@pytest.mark.parametrize("language", ["en", "ja"])
@settings(max_examples=75, deadline=None)
@given(data=st.data())
def test_any_tokens_that_grow_show_a_prefix_of_the_whole(language: str, data: st.DataObject) -> None:
    """What is broken is shown as such once it cannot become whole, and nothing that was shown changes."""
    tokenizer = load(MULTILINGUAL)
    tokens = data.draw(ANY_TOKENS)
    whole = tokenizer.decode(tokens)
    before = ""
    for n in range(len(tokens) + 1):
        words = split_to_words(tokenizer, tokens[:n], language)
        now = "".join(word for word, _ in words)
        assert all(word for word, _ in words)
        assert whole.startswith(now)
        assert now.startswith(before)
        # Half a character at the end would read as broken now and as something else later.
        assert not now.endswith("\N{REPLACEMENT CHARACTER}")
        before = now


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", " it took us half a day to get there and back again"),
        ("de", " gestern Abend überquerten sechzehn Fußgänger die Straße"),
        ("ru", " сегодня мы едем на дачу"),
        ("ko", " 오늘 날씨가 정말 좋네요"),
        ("hi", " आज मौसम बहुत अच्छा है"),
        ("ar", " كيف حالك اليوم يا صديقي"),
        ("zh", "今天天气很好我们去公园散步吧龘𠮷"),
        ("ja", "昨日友達とラーメンを食べました"),
        ("yue", "我哋今日去公園行下啦"),
    ],
)
def test_words_without_punctuation_equal_openai_whispers(language: str, text: str) -> None:
    tokenizer = load(LARGE_V3)
    tokens = tokenizer.encode(text)
    words, spellings = reference(LARGE_V3, language).split_to_word_tokens(tokens)
    expected = [(word, tuple(spelling)) for word, spelling in zip(words, spellings, strict=True)]
    assert split_to_words(tokenizer, tokens, language) == expected


@pytest.mark.parametrize(
    ("language", "text"), [("th", "น้ำใจ"), ("hi", " हिन्दी"), ("en", " cafe\N{COMBINING ACUTE ACCENT}")]
)
def test_signs_stay_with_their_letter(language: str, text: str) -> None:
    """openai-whisper splits those of Thai off."""
    tokenizer = load(MULTILINGUAL)
    words = split_to_words(tokenizer, tokenizer.encode(f"{text}।"), language)
    assert "".join(word for word, _ in words) == f"{text}।"
    assert words[-1][0] == "।"
    assert not any(unicodedata.category(word[0]).startswith("M") for word, _ in words)


def assert_split_equals(case: Case, language: str, tokens: list[int]) -> None:
    theirs = reference(case, language) if case.multilingual else reference(case)
    # The end of the text shows what is unfinished; behind several broken bytes openai-whisper loses its place.
    words, pieces = theirs.split_to_word_tokens([*tokens, theirs.eot])
    if pieces[-1] == [theirs.eot]:
        expected = [(word, tuple(piece)) for word, piece in zip(words[:-1], pieces[:-1], strict=True)]
        assert split_at_marks(load(case), tokens, language) == expected


@cases
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("language", ["en", "ja"])
def test_text_is_split_at_marks_as_openai_whisper_does(case: Case, name: str, language: str) -> None:
    if language == "ja" and not case.multilingual:
        return
    # What stands for broken bytes is like these.
    tokens = load(case).encode(TEXTS[name].replace("\N{REPLACEMENT CHARACTER}", ""))
    assert_split_equals(case, language, tokens)
    # Up to within a character.
    assert_split_equals(case, language, tokens[:-1])
