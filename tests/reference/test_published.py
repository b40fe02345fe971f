"""The tokenizers of all published models, from each kind of file, against openai-whisper's."""

import json
import unicodedata
from pathlib import Path

import pytest
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.special import RENAMED
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.tokens.published import (
    CASES,
    ENGLISH,
    LARGE_V3,
    Case,
    check,
    load,
    numbers,
    reference,
    special_tokens,
    table,
    tokenizer_json,
)

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.n_vocab))


def from_tokenizer_json(directory: Path, case: Case) -> Tokenizer:
    (directory / "tokenizer.json").write_text(tokenizer_json(case, special_tokens(case)), encoding="utf-8")
    return Tokenizer.load(directory, n_vocab=case.n_vocab)


def from_early_tokenizer_json(directory: Path, case: Case) -> Tokenizer:
    """As the first fine-tunes had it: without the times, some names older than openai-whisper's."""
    old = {new: old for old, new in RENAMED.items()}
    named = {old.get(name, name): number for name, number in special_tokens(case).items() if "." not in name}
    (directory / "tokenizer.json").write_text(tokenizer_json(case, named), encoding="utf-8")
    return Tokenizer.load(directory, n_vocab=case.n_vocab)


def from_what_transformers_saves(directory: Path, case: Case) -> Tokenizer:
    vocabulary = numbers(case.asset)
    theirs = transformers.WhisperTokenizer(vocab={**vocabulary, "<|endoftext|>": len(vocabulary)}, merges=[])
    theirs.add_tokens(list(special_tokens(case)), special_tokens=True)
    theirs.save_pretrained(directory)
    return Tokenizer.load(directory, n_vocab=case.n_vocab)


def from_vocab_json(directory: Path, case: Case) -> Tokenizer:
    (directory / "vocab.json").write_text(json.dumps(numbers(case.asset)), encoding="utf-8")
    return Tokenizer.load(directory, n_vocab=case.n_vocab)


def from_vocab_json_with_added_tokens(directory: Path, case: Case) -> Tokenizer:
    (directory / "added_tokens.json").write_text(json.dumps(special_tokens(case)), encoding="utf-8")
    return from_vocab_json(directory, case)


def from_vocab_json_with_a_config(directory: Path, case: Case) -> Tokenizer:
    decoder = {str(number): {"content": text, "special": True} for text, number in special_tokens(case).items()}
    config = {"tokenizer_class": "WhisperTokenizer", "added_tokens_decoder": decoder}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return from_vocab_json(directory, case)


def from_table(directory: Path, case: Case) -> Tokenizer:
    return Tokenizer(vocabulary.from_table(table(case.asset), case.n_vocab, "ggml"), where="ggml")


def from_table_with_the_end(directory: Path, case: Case) -> Tokenizer:
    """As the older ggml files of English-only models have it."""
    words = [*table(case.asset), b"<|endoftext|>"]
    return Tokenizer(vocabulary.from_table(words, case.n_vocab, "ggml"), where="ggml")


def from_whole_table(directory: Path, case: Case) -> Tokenizer:
    words = [*table(case.asset), *(name.encode() for name in special_tokens(case))]
    return Tokenizer(vocabulary.from_table(words, case.n_vocab, "ggml"), where="ggml")


SOURCES = {
    function.__name__.removeprefix("from_"): function
    for function in (
        from_tokenizer_json,
        from_early_tokenizer_json,
        from_what_transformers_saves,
        from_vocab_json,
        from_vocab_json_with_added_tokens,
        from_vocab_json_with_a_config,
        from_table,
        from_table_with_the_end,
        from_whole_table,
    )
}


@cases
def test_a_tiktoken_file_equals_openai_whisper(case: Case) -> None:
    check(load(case), case)


# The multilingual vocabularies differ in one language only.
@pytest.mark.parametrize("case", [ENGLISH, LARGE_V3], ids=["51864", "51866"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_other_source_gives_the_same(tmp_path: Path, source: str, case: Case) -> None:
    check(SOURCES[source](tmp_path, case), case)


@cases
def test_every_text_of_one_token_comes_back(case: Case) -> None:
    """What the tokens spell, each and all in a row."""
    tokenizer, expected = load(case), reference(case)
    tokens = list(range(tokenizer.special.end_of_text))
    assert [tokenizer.decode([token]) for token in tokens] == [expected.decode([token]) for token in tokens]
    assert tokenizer.decode(tokens) == expected.decode(tokens)


@cases
@settings(max_examples=75, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_equals_openai_whisper(case: Case, text: str) -> None:
    # Python's and the tokenizers' tables of characters are of different years.
    text = "".join(character for character in text if unicodedata.category(character) != "Cn")
    # What reads like a special token is left out here, and an error there.
    assume("<|" not in text)
    tokenizer = load(case)
    tokens = tokenizer.encode(text)
    assert tokens == reference(case).encode(text)
    assert tokenizer.decode(tokens) == text


@cases
@settings(max_examples=75, deadline=None)
@given(data=st.data())
def test_any_tokens_read_as_openai_whisper_reads_them(case: Case, data: st.DataObject) -> None:
    tokenizer = load(case)
    tokens = data.draw(st.lists(st.integers(0, tokenizer.special.end_of_text - 1), max_size=30))
    assert tokenizer.decode(tokens) == reference(case).decode(tokens)


@cases
def test_the_start_equals_openai_whispers(case: Case) -> None:
    tokenizer = load(case)
    for language in tokenizer.languages if case.multilingual else ["en"]:
        expected = list(reference(case, language).sot_sequence)
        assert tokenizer.start_sequence(language, "transcribe") == expected
