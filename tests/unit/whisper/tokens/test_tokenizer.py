"""The tokenizer against transformers' on the same files."""

from pathlib import Path

import pytest

from streamer.errors import ConfigError
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


def test_text_that_reads_like_a_special_token_makes_none() -> None:
    tokens = TOKENIZER.encode(" one<|endoftext|> two<|startofprev|><|0.00|> three<|en|>")
    assert max(tokens) < TOKENIZER.special.end_of_text
    assert TOKENIZER.decode(tokens) == " one two three"


def test_old_names_of_special_tokens_are_known(tmp_path: Path) -> None:
    assert renamed(tmp_path, "<|nospeech|>", "<|nocaptions|>").special == TOKENIZER.special
    assert renamed(tmp_path, "<|en|>", "<|iw|>").languages == {"he": 514}
    assert renamed(tmp_path, "<|en|>", "<|jv|>").languages == {"jw": 514}


def test_a_token_that_is_not_written_byte_by_byte_spells_itself(tmp_path: Path) -> None:
    (number,) = TOKENIZER.encode(" the")
    assert renamed(tmp_path, "Ġthe", "日 x").decode([number]) == "日 x"


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


def test_a_multilingual_model_names_language_and_task(tmp_path: Path) -> None:
    start, special = [TOKENIZER.special.start_of_transcript], TOKENIZER.special
    for task, token in (("transcribe", special.transcribe), ("translate", special.translate)):
        assert TOKENIZER.start_sequence("en", task) == [*start, 514, token]
    for other, multilingual in ((ENGLISH_ONLY, False), (TOKENIZER, True)):
        assert other.choose_language("auto", "transcribe") == "en"
        assert other.multilingual == multilingual
        assert other.as_multilingual(False).start_sequence("en", "transcribe") == start
        assert other.as_multilingual(True).start_sequence("en", "transcribe") == [*start, 514, special.transcribe]
    both = with_added(tmp_path, {"<|de|>": 2022}, 2023)
    assert both.known_languages == ["en", "de"]
    for language in ("auto", "de"):
        assert both.choose_language(language, "translate") == language


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
