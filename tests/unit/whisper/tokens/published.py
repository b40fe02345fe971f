"""The published vocabularies as openai-whisper has them, and the same in Hugging Face's files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import whisper
import whisper.tokenizer

from streamer.whisper.tokens.special import PUBLISHED
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.vocabulary import BYTE_CHARACTERS
from tests.unit.whisper.support import NANO, Untyped
from tests.unit.whisper.support import table as data

ASSETS = Path(whisper.__file__).parent / "assets"

# A language or a script each.
TEXTS: dict[str, str] = data("texts")["texts"]


@dataclass(frozen=True, slots=True)
class Case:
    """A vocabulary of the published models."""

    asset: str
    n_languages: int
    n_vocab: int

    @property
    def path(self) -> Path:
        return ASSETS / f"{self.asset}.tiktoken"

    @property
    def multilingual(self) -> bool:
        return self.asset == "multilingual"


ENGLISH = Case("gpt2", 99, 51864)
MULTILINGUAL = Case("multilingual", 99, 51865)
LARGE_V3 = Case("multilingual", 100, 51866)
CASES = (ENGLISH, MULTILINGUAL, LARGE_V3)


@cache
def load(case: Case) -> Tokenizer:
    return Tokenizer.load(case.path, n_vocab=case.n_vocab)


def reference(case: Case, language: str | None = None) -> Untyped:
    """Return openai-whisper's tokenizer."""
    return whisper.tokenizer.get_tokenizer(case.multilingual, num_languages=case.n_languages, language=language)


def check(tokenizer: Tokenizer, case: Case) -> None:
    """Hold a tokenizer against openai-whisper's: text, special tokens and sizes."""
    expected = reference(case)
    for text in TEXTS.values():
        tokens = expected.encode(text)
        assert tokenizer.encode(text) == tokens
        assert tokenizer.decode(tokens) == expected.decode(tokens) == text
    assert tokenizer.special == PUBLISHED[case.n_vocab]
    languages = dict(zip(expected.all_language_codes, expected.all_language_tokens, strict=True))
    assert tokenizer.languages == languages
    assert list(tokenizer.languages) == sorted(languages, key=lambda code: languages[code])
    assert tokenizer.n_vocab == case.n_vocab
    assert tokenizer.multilingual == case.multilingual


@cache
def table(asset: str) -> list[bytes]:
    """Return what the tokens spell, in their order."""
    encoding = whisper.tokenizer.get_encoding(asset)
    return [encoding.decode_single_token_bytes(i) for i in range(encoding.eot_token)]


@cache
def numbers(asset: str) -> dict[str, int]:
    """Return tokens and their numbers as GPT-2's vocab.json has them."""
    return {"".join(BYTE_CHARACTERS[byte] for byte in token): i for i, token in enumerate(table(asset))}


@cache
def special_tokens(case: Case) -> dict[str, int]:
    """Return openai-whisper's special tokens, in the order of their numbers."""
    return dict(sorted(reference(case).special_tokens.items(), key=lambda item: item[1]))


def with_added(directory: Path, added: Mapping[str, int], n_vocab: int) -> Tokenizer:
    """Return nano.en's tokenizer with more tokens, as fine-tunes have them."""
    data = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))
    data["added_tokens"] += [{"content": name, "id": number} for name, number in added.items()]
    (directory / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return Tokenizer.load(directory, n_vocab=n_vocab)


def tokenizer_json(case: Case, special: Mapping[str, int]) -> str:
    """Return Hugging Face's tokenizer.json with special tokens; what may be merged is not read of it."""
    parts = {name: {"type": "ByteLevel"} for name in ("pre_tokenizer", "decoder")}
    added = [{"id": number, "content": name, "special": True} for name, number in special.items()]
    return json.dumps({**parts, "added_tokens": added, "model": {"type": "BPE", "vocab": numbers(case.asset)}})


def old_table(case: Case) -> list[bytes]:
    """Return the table of whisper.cpp's files of before October 2022: bytes that are no whole character are lost."""
    words = [token.decode("utf-8", errors="replace").encode("utf-8") for token in table(case.asset)]
    return words if case.multilingual else [*words, b"<|endoftext|>"]
