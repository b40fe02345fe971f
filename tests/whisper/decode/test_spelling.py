"""What tokens spell, against tiktoken and against our own decoder."""

import json

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.whisper.decode.spelling import token_bytes
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.whisper.support import NANO
from tests.whisper.tokens.published import MULTILINGUAL, load, table

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)


def test_tokens_of_a_published_vocabulary_spell_what_tiktoken_says() -> None:
    assert list(token_bytes(load(MULTILINGUAL))) == table("multilingual")


def test_a_token_that_is_not_written_byte_by_byte_spells_itself() -> None:
    data = json.loads(TOKENIZER.to_json())
    merge = data["model"]["merges"].pop()
    number = data["model"]["vocab"].pop("".join(merge))
    data["model"]["vocab"]["日 x"] = number
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(data)), where="x")
    assert tokenizer.decode([number]) == "日 x"
    assert token_bytes(tokenizer)[number] == "日 x".encode()


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_the_bytes_of_a_text_s_tokens_are_the_text(text: str) -> None:
    spelled = token_bytes(TOKENIZER)
    tokens = TOKENIZER.encode(text)
    assert b"".join(spelled[token] for token in tokens).decode("utf-8", errors="replace") == TOKENIZER.decode(tokens)
