"""The tokenizer against transformers' on the same files."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError, ModelError
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_to_words
from tests.unit.whisper.support import NANO, Untyped
from tests.unit.whisper.tokens.published import with_added

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)

TEXTS = [
    "",
    " ",
    " the Commission believes that the facts",
    "no leading space,  two spaces\nand a line\t.",
    ' "Quoted", he said: “curly” and ‘single’ — it’s 1,234.50 €.',
    " Grüße aus Köln, ça va? Ñandú; łódź; İstanbul",
    " Привет, мир! Γειά σου Κόσμε",
    " 私はガラスを食べられます。",
    " 今天天气很好，我们去公园。",
    " สวัสดีชาวโลก",
    " नमस्ते दुनिया",
    " مرحبا بالعالم שלום עולם",
    " 🙂 👩‍👩‍👧‍👦 🇪🇺 e\N{COMBINING ACUTE ACCENT}",
    " \N{REPLACEMENT CHARACTER} and \0 and \x7f",
]


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    """tokenizer.json as plain values, to be changed and made a tokenizer of."""
    data: dict[str, Any] = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))
    return data


def renamed(tmp_path: Path, tables: dict[str, Any], **names: str) -> Tokenizer:
    """Return the tokenizer with special tokens under other names."""
    text = json.dumps(tables)
    for old, new in names.items():
        text = text.replace(f"<|{old}|>", f"<|{new}|>")
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    return Tokenizer.load(tmp_path, n_vocab=2022)


def test_old_names_of_special_tokens(tmp_path: Path, tables: dict[str, Any]) -> None:
    assert renamed(tmp_path, tables, nospeech="nocaptions").special == TOKENIZER.special
    assert renamed(tmp_path, tables, en="iw").languages == {"he": 514}
    assert renamed(tmp_path, tables, en="jv").languages == {"jw": 514}


@pytest.mark.parametrize(
    "name", ["endoftext", "startoftranscript", "translate", "startofprev", "nospeech", "notimestamps", "0.00", "30.00"]
)
def test_a_special_token_under_another_name_is_refused(tmp_path: Path, tables: dict[str, Any], name: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json has .*--tokenizer FILE"):
        renamed(tmp_path, tables, **{name: "something else"})


def test_a_model_may_say_whether_it_is_multilingual() -> None:
    assert TOKENIZER.multilingual
    english_only = TOKENIZER.as_multilingual(False)
    assert not english_only.multilingual
    assert english_only.as_multilingual(True).multilingual
    assert TOKENIZER.multilingual


def test_added_tokens_are_text_as_they_spell(tmp_path: Path) -> None:
    """Such as of models that write down every hesitation. Names like those of special tokens are no text."""
    added = {"[UM]": 2022, "<äh>": 2023, "नमस्ते": 2024, "<|gsw|>": 2025, "<|music|>": 2026}
    tokenizer = with_added(tmp_path, added, 2030)
    assert tokenizer.added_text == {2022, 2023, 2024}
    for name in ("[UM]", "<äh>", "नमस्ते"):
        text = f" so {name}, yes{name}"
        tokens = tokenizer.encode(text)
        assert tokens.count(added[name]) == 2
        assert tokenizer.decode(tokens) == text
        assert tokenizer.is_text(added[name])
        words = split_to_words(tokenizer, tokens, "en")
        assert "".join(word for word, _ in words) == text
        assert [token for _, spelling in words for token in spelling] == tokens
    assert tokenizer.languages == {"en": 514, "gsw": 2025}
    assert not tokenizer.is_text(2026)
    assert tokenizer.decode([2022, 2025, 2026, 2029]) == "[UM]"
    assert tokenizer.encode("<|music|>") == []
    path = tmp_path / "again.json"
    path.write_bytes(tokenizer.to_json())
    again = Tokenizer.load(path, n_vocab=2030)
    assert (again.spelled, again.added_text) == (tokenizer.spelled, tokenizer.added_text)


def test_a_token_that_is_not_written_byte_by_byte_spells_itself(tmp_path: Path, tables: dict[str, Any]) -> None:
    tables = copy.deepcopy(tables)
    number = tables["model"]["vocab"].pop(" the".replace(" ", "Ġ"))
    tables["model"]["vocab"]["日 x"] = number
    assert renamed(tmp_path, tables).decode([number]) == "日 x"


@pytest.mark.parametrize("text", TEXTS)
def test_text_to_tokens_and_back_equals_transformers(processor: Untyped, text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert tokens == processor.tokenizer(text, add_special_tokens=False).input_ids
    assert TOKENIZER.decode(tokens) == processor.tokenizer.decode(tokens, clean_up_tokenization_spaces=False) == text


@given(st.lists(st.integers(0, 511), max_size=30))
def test_any_tokens_read_as_transformers_reads_them(processor: Untyped, tokens: list[int]) -> None:
    assert TOKENIZER.decode(tokens) == processor.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


def test_text_that_reads_like_a_special_token_makes_none() -> None:
    tokens = TOKENIZER.encode(" one<|endoftext|> two<|startofprev|><|0.00|> three<|en|>")
    assert max(tokens) < TOKENIZER.special.end_of_text
    assert TOKENIZER.decode(tokens) == " one two three"


def test_special_tokens_and_times_are_not_text() -> None:
    begin = TOKENIZER.special.timestamp_begin
    text = TOKENIZER.encode(" one")
    assert TOKENIZER.decode([begin, *text, begin + 50, TOKENIZER.special.end_of_text]) == " one"


@pytest.mark.parametrize("language", ["xx", "", "EN", "endoftext", "auto"])
def test_a_language_that_is_not_known(language: str) -> None:
    with pytest.raises(ConfigError, match=r"does not know the language .*: expected auto or one of its 1, such as en"):
        TOKENIZER.start_sequence(language, "transcribe")


def test_an_english_only_model_names_neither() -> None:
    tokenizer = Tokenizer.load(NANO, n_vocab=2022, multilingual=False)
    assert tokenizer.start_sequence("en", "transcribe") == [tokenizer.special.start_of_transcript]
    with pytest.raises(ConfigError, match=r"English only, not 'de'"):
        tokenizer.start_sequence("de", "transcribe")
    with pytest.raises(ConfigError, match="expected task transcribe"):
        tokenizer.start_sequence("en", "translate")


def test_the_only_language_need_not_be_found_out() -> None:
    assert TOKENIZER.choose_language("auto", "transcribe") == "en"
    english_only = Tokenizer.load(NANO, n_vocab=2022, multilingual=False)
    assert english_only.choose_language("auto", "transcribe") == "en"
    with pytest.raises(ConfigError, match="English only"):
        english_only.choose_language("auto", "translate")


def test_one_of_several_languages_is_found_out(tmp_path: Path) -> None:
    tokenizer = with_added(tmp_path, {"<|de|>": 2022}, 2023)
    assert tokenizer.choose_language("auto", "transcribe") == "auto"
    assert tokenizer.choose_language("de", "translate") == "de"
    with pytest.raises(ConfigError, match="'fr'"):
        tokenizer.choose_language("fr", "transcribe")
