"""Byte-level byte-pair encoding: from a vocabulary and its merges to a tokenizer.

Source: GPT-2's `encoder.py` (bytes as printable characters, the pattern that text is cut by before it is merged).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from streamer.errors import ModelError
from streamer.whisper.tokens.files import no_tokenizer
from streamer.whisper.tokens.special import PUBLISHED, complete, named_in

_PRINTABLE = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
_OTHER = [byte for byte in range(256) if byte not in _PRINTABLE]

# How a vocabulary writes each byte: those that cannot be printed as characters from 256 on.
BYTE_CHARACTERS = [chr(byte) if byte in _PRINTABLE else chr(256 + _OTHER.index(byte)) for byte in range(256)]


# Most tokens that a file may add; each costs the search for them in text some kilobytes. Whisper has 1609.
_MAX_ADDED = 16_384


def build(
    vocabulary: Mapping[str, Any],
    merges: Sequence[tuple[str, str]],
    added: Sequence[str],
    n_vocab: int,
    where: str,
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a model with `n_vocab` tokens.

    vocabulary : token to number, special tokens included; those of Whisper that it does not name are put behind it
    merges : pairs of tokens, the first to be merged first
    added : tokens of the vocabulary that are found in text before it is cut and merged, besides Whisper's

    Raises ModelError where numbers are used twice or beyond the model's, merges lead nowhere, or sizes do not fit.
    """
    _check_numbers(vocabulary, n_vocab, where)
    for left, right in merges:
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise no_tokenizer(where, f"it merges {left!r:.40} and {right!r:.40}, which are not all tokens")
    if len(added) > _MAX_ADDED:
        raise no_tokenizer(where, f"it adds {len(added)} tokens, more than {_MAX_ADDED}")
    whole = complete(vocabulary, n_vocab, where)
    highest = max(whole.values())
    if n_vocab in PUBLISHED and highest + 1 != n_vocab:
        raise _of_another_model(where, highest + 1, n_vocab)
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=whole, merges=list(merges)))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([*named_in(whole), *added])
    except BaseException as error:
        # The library raises bare Exception, and where it panics, what is not even one.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise no_tokenizer(where, str(error)) from None
        raise
    return backend


def _check_numbers(vocabulary: Mapping[str, Any], n_vocab: int, where: str) -> None:
    texts: dict[int, str] = {}
    for text, number in vocabulary.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise no_tokenizer(where, f"the token {text!r:.40} has the number {number!r:.40}")
        if number in texts:
            raise no_tokenizer(
                where, f"the tokens {texts[number]!r:.40} and {text!r:.40} both have the number {number}"
            )
        texts[number] = text
    if not texts:
        raise no_tokenizer(where, "it has no tokens")
    if max(texts) >= n_vocab:
        raise _of_another_model(where, max(texts) + 1, n_vocab)


def _of_another_model(where: str, n_tokens: int, n_vocab: int) -> ModelError:
    return ModelError(
        f"{where} has {n_tokens!s:.40} tokens, the model {n_vocab}: the files are from different models;"
        " fetch both again from one place"
    )
