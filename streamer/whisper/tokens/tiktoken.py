"""tiktoken's rank files, such as openai-whisper's `multilingual.tiktoken`: a token in base64 and its number a line."""

import base64
import binascii

import tokenizers

from streamer.whisper.tokens import ranks
from streamer.whisper.tokens.files import no_tokenizer


def parse(text: str, n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Take the tokenizer of a model with `n_vocab` tokens from the content of a rank file.

    Raises ModelError where it is broken or of another model; `where` names it in the message.
    """
    table: list[bytes] = []
    for i, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        match line.split():
            # In Whisper's files the numbers follow each other.
            case [spelled, number] if number == str(len(table)):
                table.append(_decode(spelled, f"{where}, line {i},"))
            case _:
                raise no_tokenizer(where, f"line {i} is {line!r:.40}, not token {len(table)} in base64 and its number")
    return ranks.build(table, n_vocab, where)


def _decode(spelled: str, where: str) -> bytes:
    if spelled == "=":  # how the multilingual file writes its empty token
        return b""
    try:
        return base64.b64decode(spelled, validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        raise no_tokenizer(where, f"{spelled!r:.40} is not base64") from None
