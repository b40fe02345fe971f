"""`vocab.json` and `merges.txt`, GPT-2's own files, with the tokens that Hugging Face's transformers adds to them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers

from streamer.whisper.tokens.bpe import build
from streamer.whisper.tokens.files import no_tokenizer, parse_object, read_text

# What the first line of merges.txt begins with.
HEADER = "#version"


def read(vocab_path: Path, merges_path: Path, n_vocab: int) -> tokenizers.Tokenizer:
    """Read both files of a model with `n_vocab` tokens, and what lies beside vocab.json: added_tokens.json and
    tokenizer_config.json.

    Raises ModelError where one is missing, broken, or of another model.
    """
    where = str(vocab_path)
    vocabulary: Mapping[str, object] = parse_object(read_text(vocab_path), vocab_path)
    lines = read_text(merges_path).split("\n")  # tokens may hold what else ends a line
    if lines[0].startswith(HEADER):
        del lines[0]
    merges = [split_pair(line.rstrip("\r"), str(merges_path)) for line in lines if line.strip()]

    added: list[tuple[object, object]] = []
    path = vocab_path.with_name("added_tokens.json")
    if path.is_file():
        added += parse_object(read_text(path), path).items()
    path = vocab_path.with_name("tokenizer_config.json")
    if path.is_file():
        added += _added_in_config(path)
    return build(add(vocabulary, added, where), merges, [str(text) for text, _ in added], n_vocab, where)


def split_pair(merge: object, where: str) -> tuple[str, str]:
    """Split a merge, either "left right" or a list of both; raise ModelError where it is neither."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    match parts:
        case [str(left), str(right)] if left and right:
            return left, right
    raise no_tokenizer(where, f"it has the merge {merge!r:.40}")


def add(vocabulary: Mapping[str, object], added: Iterable[tuple[object, object]], where: str) -> dict[str, object]:
    """Return the vocabulary with more tokens; raise ModelError where one has another number in it already."""
    whole = dict(vocabulary)
    for text, number in added:
        if not isinstance(text, str):
            raise no_tokenizer(where, f"it adds the token {text!r:.40}")
        if whole.setdefault(text, number) != number:
            raise no_tokenizer(where, f"the token {text!r:.40} has the numbers {whole[text]!r:.40} and {number!r:.40}")
    return whole


def _added_in_config(path: Path) -> list[tuple[object, object]]:
    """Return the tokens that a tokenizer_config.json lists, by their numbers."""
    added = parse_object(read_text(path), path).get("added_tokens_decoder") or {}
    if not isinstance(added, dict):
        raise no_tokenizer(str(path), "its added_tokens_decoder is no object")
    tokens: list[tuple[object, object]] = []
    for number, token in added.items():
        # No token has a number of more than nine digits.
        if not isinstance(token, dict) or not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise no_tokenizer(str(path), f"it adds the token {number!r:.40}")
        tokens.append((token.get("content"), int(number)))
    return tokens
