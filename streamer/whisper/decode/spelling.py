"""What each token of text spells, in bytes: a character may be spread over several tokens."""

import json
from functools import lru_cache

from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.vocabulary import BYTE_CHARACTERS

_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


@lru_cache(maxsize=2)
def token_bytes(tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """Return the bytes of the tokens before the end of text, none for a free number; kept: it takes half a second."""
    vocabulary: dict[str, int] = json.loads(tokenizer.to_json())["model"]["vocab"]
    spelled = {number: _spell(text) for text, number in vocabulary.items()}
    return tuple(spelled.get(number, b"") for number in range(tokenizer.special.end_of_text))


def _spell(text: str) -> bytes:
    # What is not written byte by byte stands for itself.
    if all(character in _BYTES for character in text):
        return bytes(_BYTES[character] for character in text)
    return text.encode("utf-8")
