"""The tokenizers of all published models, from each kind of file, against openai-whisper's."""

import json
import unicodedata
from collections.abc import Callable
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


def early_tokenizer_json(case: Case) -> str:
    """Return what the first fine-tunes had: without the times, some names older than openai-whisper's."""
    old = {new: old for old, new in RENAMED.items()}
    named = {old.get(name, name): number for name, number in special_tokens(case).items() if "." not in name}
    return tokenizer_json(case, named)


def config_of(case: Case) -> str:
    decoder = {str(number): {"content": text, "special": True} for text, number in special_tokens(case).items()}
    return json.dumps({"tokenizer_class": "WhisperTokenizer", "added_tokens_decoder": decoder})


def vocab_json(case: Case) -> str:
    return json.dumps(numbers(case.asset))


# Files of a directory, and what is in them.
FILES: dict[str, dict[str, Callable[[Case], str]]] = {
    "tokenizer.json": {"tokenizer.json": lambda case: tokenizer_json(case, special_tokens(case))},
    "an early tokenizer.json": {"tokenizer.json": early_tokenizer_json},
    "vocab.json": {"vocab.json": vocab_json},
    "vocab.json and added tokens": {
        "vocab.json": vocab_json,
        "added_tokens.json": lambda case: json.dumps(special_tokens(case)),
    },
    "vocab.json and a config": {"vocab.json": vocab_json, "tokenizer_config.json": config_of},
}

# Special tokens behind the text in the tables of ggml files; the older ones of English-only models have the end.
NAMED: dict[str, Callable[[Case], list[str]]] = {
    "none": lambda case: [],
    "the end": lambda case: ["<|endoftext|>"],
    "all": lambda case: list(special_tokens(case)),
}

# The multilingual vocabularies differ in one language only.
two_cases = pytest.mark.parametrize("case", [ENGLISH, LARGE_V3], ids=["51864", "51866"])


@cases
def test_a_tiktoken_file_equals_openai_whisper(case: Case) -> None:
    check(load(case), case)


@two_cases
@pytest.mark.parametrize("kind", FILES)
def test_files_of_hugging_face_give_the_same(tmp_path: Path, kind: str, case: Case) -> None:
    for name, content in FILES[kind].items():
        (tmp_path / name).write_text(content(case), encoding="utf-8")
    check(Tokenizer.load(tmp_path, n_vocab=case.n_vocab), case)


def test_what_transformers_saves_gives_the_same(tmp_path: Path) -> None:
    known = numbers(LARGE_V3.asset)
    theirs = transformers.WhisperTokenizer(vocab={**known, "<|endoftext|>": len(known)}, merges=[])
    theirs.add_tokens(list(special_tokens(LARGE_V3)), special_tokens=True)
    theirs.save_pretrained(tmp_path)
    check(Tokenizer.load(tmp_path, n_vocab=LARGE_V3.n_vocab), LARGE_V3)


@two_cases
@pytest.mark.parametrize("named", NAMED)
def test_a_table_gives_the_same(named: str, case: Case) -> None:
    spelled = [*table(case.asset), *(name.encode() for name in NAMED[named](case))]
    check(Tokenizer(vocabulary.from_table(spelled, case.n_vocab, "ggml"), where="ggml"), case)


@cases
def test_every_token_and_every_start_is_openai_whispers(case: Case) -> None:
    tokenizer, expected = load(case), reference(case)
    tokens = list(range(tokenizer.special.end_of_text))
    assert [tokenizer.decode([token]) for token in tokens] == [expected.decode([token]) for token in tokens]
    assert tokenizer.decode(tokens) == expected.decode(tokens)
    for language in tokenizer.languages if case.multilingual else ["en"]:
        expected_start = list(reference(case, language).sot_sequence)
        assert tokenizer.start_sequence(language, "transcribe") == expected_start


@cases
@settings(max_examples=75, deadline=None)
@given(data=st.data(), text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_and_any_tokens_are_read_as_openai_whisper_reads_them(
    case: Case, data: st.DataObject, text: str
) -> None:
    # Python's and the tokenizers' tables of characters are of different years.
    text = "".join(character for character in text if unicodedata.category(character) != "Cn")
    # What reads like a special token is left out here, and an error there.
    assume("<|" not in text)
    tokenizer = load(case)
    tokens = tokenizer.encode(text)
    assert tokens == reference(case).encode(text)
    assert tokenizer.decode(tokens) == text
    tokens = data.draw(st.lists(st.integers(0, tokenizer.special.end_of_text - 1), max_size=30))
    assert tokenizer.decode(tokens) == reference(case).decode(tokens)
