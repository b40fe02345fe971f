"""A list of what tokens spell, in the order of their numbers: tiktoken's form of a vocabulary, and ggml's.

The merges are not in it. tiktoken needs none: it joins the two neighbours that together spell the token of the lowest
number. So every way to put a token together out of two others is a merge, and comes as early as the token.
"""

from collections.abc import Sequence

import tokenizers

from streamer.errors import ModelError
from streamer.whisper.tokens.bpe import BYTE_CHARACTERS
from streamer.whisper.tokens.bpe import build as build_bpe
from streamer.whisper.tokens.files import no_tokenizer

# Bytes of all tokens together, of which Whisper's have 320 thousand: there may be as many merges.
_MAX_BYTES = 1 << 19

_CHARACTERS = dict(enumerate(BYTE_CHARACTERS))


def build(table: Sequence[bytes], n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Build the tokenizer of a model with `n_vocab` tokens, of which `table` has the first; special tokens follow.

    Raises ModelError where a token comes twice, a byte cannot be spelled, or the table is of another model.
    """
    n_bytes = sum(len(token) for token in table)
    if len(table) > n_vocab or n_bytes > _MAX_BYTES:
        raise ModelError(
            f"{where} has {len(table)} tokens of {n_bytes} bytes in all: expected up to {n_vocab} tokens and"
            f" {_MAX_BYTES} bytes; fetch it again, or name the tokenizer.json of the model with --tokenizer FILE"
        )
    # Latin-1 has a character for each byte.
    texts = [token.decode("latin-1").translate(_CHARACTERS) for token in table]
    vocabulary: dict[str, int] = {}
    for number, text in enumerate(texts):
        if vocabulary.setdefault(text, number) != number:
            raise no_tokenizer(where, f"the tokens {vocabulary[text]} and {number} both are {table[number]!r:.40}")
    if not vocabulary.keys() >= set(BYTE_CHARACTERS):
        raise no_tokenizer(where, "it has no token for some of the 256 bytes")
    merges = [
        (texts[left], texts[right])
        for text in texts
        for i in range(1, len(text))
        if (left := vocabulary.get(text[:i])) is not None and (right := vocabulary.get(text[i:])) is not None
    ]
    return build_bpe(vocabulary, merges, (), n_vocab, where)
