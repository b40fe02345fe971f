"""The tokenizer against transformers' on the same files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError, ModelError
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_to_words
from tests.unit.whisper.support import NANO, Untyped
from tests.unit.whisper.tokens.published import TEXTS, with_added

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
ENGLISH_ONLY = Tokenizer.load(NANO, n_vocab=2022, multilingual=False)


def renamed(folder: Path, old: str, new: str) -> Tokenizer:
    """Return nano.en's tokenizer with another name for a token."""
    text = (NANO / "tokenizer.json").read_text(encoding="utf-8")
    assert f'"{old}"' in text
    (folder / "tokenizer.json").write_text(text.replace(f'"{old}"', f'"{new}"'), encoding="utf-8")
    return Tokenizer.load(folder, n_vocab=2022)


@pytest.mark.parametrize("text", [*TEXTS.values(), " ", " the Commission's facts", " e\N{COMBINING ACUTE ACCENT} \0"])
def test_text_to_tokens_and_back_equals_transformers(processor: Untyped, text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert tokens == processor.tokenizer(text, add_special_tokens=False).input_ids
    assert TOKENIZER.decode(tokens) == processor.tokenizer.decode(tokens, clean_up_tokenization_spaces=False) == text


@given(st.lists(st.integers(0, 511), max_size=30))
def test_any_tokens_decode_as_in_transformers(processor: Untyped, tokens: list[int]) -> None:
    assert TOKENIZER.decode(tokens) == processor.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


def test_text_that_reads_like_a_special_token_makes_none() -> None:
    tokens = TOKENIZER.encode(" one<|endoftext|> two<|startofprev|><|0.00|> three<|en|>")
    assert max(tokens) < TOKENIZER.special.end_of_text
    assert TOKENIZER.decode(tokens) == " one two three"


def test_old_names_of_special_tokens_are_known(tmp_path: Path) -> None:
    assert renamed(tmp_path, "<|nospeech|>", "<|nocaptions|>").special == TOKENIZER.special
    assert renamed(tmp_path, "<|en|>", "<|iw|>").languages == {"he": 514}
    assert renamed(tmp_path, "<|en|>", "<|jv|>").languages == {"jw": 514}


@pytest.mark.parametrize(
    "name", ["endoftext", "startoftranscript", "translate", "startofprev", "nospeech", "notimestamps", "0.00", "30.00"]
)
def test_a_special_token_under_another_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError):
        renamed(tmp_path, f"<|{name}|>", "<|something else|>")


def test_a_token_that_is_not_written_byte_by_byte_spells_itself(tmp_path: Path) -> None:
    (number,) = TOKENIZER.encode(" the")
    assert renamed(tmp_path, "Ġthe", "日 x").decode([number]) == "日 x"


def test_a_model_may_say_whether_it_is_multilingual() -> None:
    assert not TOKENIZER.as_multilingual(False).multilingual
    assert ENGLISH_ONLY.as_multilingual(True).multilingual
    assert (TOKENIZER.multilingual, ENGLISH_ONLY.multilingual) == (True, False)


@pytest.mark.parametrize("name", ["[UM]", "<äh>", "नमस्ते"])
def test_added_tokens_are_text_as_they_spell(tmp_path: Path, name: str) -> None:
    """Such as of models that write down every hesitation. Names like those of special tokens are no text."""
    tokenizer = with_added(tmp_path, {name: 2022, "<|gsw|>": 2025, "<|music|>": 2026}, 2030)
    assert tokenizer.added_text == {2022}
    assert tokenizer.languages == {"en": 514, "gsw": 2025}
    assert [tokenizer.is_text(number) for number in (2022, 2025, 2026)] == [True, False, False]
    text = f" so {name}, yes{name}"
    tokens = tokenizer.encode(text)
    assert tokens.count(2022) == 2
    assert tokenizer.decode([*tokens, 2025, 2026, 2029, 2030]) == text
    words = split_to_words(tokenizer, tokens, "en")
    assert "".join(word for word, _ in words) == text
    assert [token for _, spelling in words for token in spelling] == tokens
    assert tokenizer.encode("<|music|>") == []
    (tmp_path / "again.json").write_bytes(tokenizer.to_json())
    again = Tokenizer.load(tmp_path / "again.json", n_vocab=2030)
    assert (again.spelled, again.added_text) == (tokenizer.spelled, tokenizer.added_text)


def test_a_packed_tokenizer_encodes_as_before() -> None:
    tokenizer = Tokenizer.load(NANO, n_vocab=2022)
    tokenizer.pack()
    tokenizer.pack()
    assert tokenizer.encode(" Ünlike <|en|> streamers") == TOKENIZER.encode(" Ünlike <|en|> streamers")


def test_a_multilingual_model_names_language_and_task() -> None:
    special = TOKENIZER.special
    for task, token in (("transcribe", special.transcribe), ("translate", special.translate)):
        assert TOKENIZER.start_sequence("en", task) == [special.start_of_transcript, 514, token]
    assert ENGLISH_ONLY.start_sequence("en", "transcribe") == [special.start_of_transcript]


@pytest.mark.parametrize(
    ("tokenizer", "language", "task"),
    [
        *((TOKENIZER, language, "transcribe") for language in ("xx", "", "EN", "endoftext")),
        *((ENGLISH_ONLY, language, task) for language, task in (("de", "transcribe"), ("auto", "translate"))),
    ],
)
def test_a_language_or_task_that_the_model_lacks_is_refused(tokenizer: Tokenizer, language: str, task: str) -> None:
    with pytest.raises(ConfigError):
        tokenizer.choose_language(language, task)


def test_auto_is_the_only_language_or_left_to_the_model(tmp_path: Path) -> None:
    assert TOKENIZER.choose_language("auto", "transcribe") == "en"
    assert ENGLISH_ONLY.choose_language("auto", "transcribe") == "en"
    both = with_added(tmp_path, {"<|de|>": 2022}, 2023)
    assert both.choose_language("auto", "translate") == "auto"
    assert both.choose_language("de", "translate") == "de"
    assert both.known_languages == ["en", "de"]
