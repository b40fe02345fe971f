"""One loader for each source of a tokenizer; all end in one byte-level BPE with Whisper's special tokens.

Only vocabulary, merges and added tokens are taken from a file. How text is cut and put together is the same for all of
Whisper's, and a file could bring a pattern that never ends.

Source: GPT-2's `encoder.py` (vocab.json, merges.txt, bytes as characters), tiktoken's `load.py` (rank files).
"""

import base64
import binascii
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from streamer.errors import ModelError
from streamer.whisper.files import parse_json, read_json, read_text, readable
from streamer.whisper.tokens.special import PUBLISHED, RENAMED, complete, find_special

# Largest file that is read: those of Whisper have up to 4 MB, and as values in memory take up to thirty times as much.
MAX_BYTES = 8 << 20

# Most tokens that a file may add; each costs the search for them in text some kilobytes. Whisper has 1609.
_MAX_ADDED = 16_384

# Bytes of all tokens of a table together, of which Whisper's have 320 thousand: there may be as many merges.
_MAX_TABLE_BYTES = 1 << 19

# All tokens in the order of their numbers, from CTranslate2.
_LISTS = ("vocabulary.json", "vocabulary.txt")

_END = "<|endoftext|>"  # the first token in such a list that is no text

_MERGES_HEADER = "#version"  # how the first line of merges.txt begins
_EXPECTED = "expected a file of the tokenizer; fetch it again, or name another tokenizer with --tokenizer FILE"

# How a vocabulary writes each byte: as its Latin-1 character, or if that cannot be printed, as one from 256 on.
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_UNPRINTABLE = [byte for byte in range(256) if chr(byte) not in _ALPHABET]
_CHARACTERS = dict(enumerate(map(chr, range(256)))) | dict(
    zip(_UNPRINTABLE, _ALPHABET[-len(_UNPRINTABLE) :], strict=True)
)
BYTE_CHARACTERS = list(_CHARACTERS.values())
_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def spell(token: str) -> bytes:
    """Return the bytes that a token of a vocabulary spells; one that is not written byte by byte spells itself."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def find(path: Path) -> Path:
    """Return the tokenizer's file in a directory, or the file itself; raise ModelError where a directory has none."""
    with readable(path, "a tokenizer that you may read"):
        if not path.is_dir():
            return path
        for name in ("tokenizer.json", "vocab.json", *_LISTS):
            if (path / name).is_file():
                return path / name
        rank_files = sorted(path.glob("*.tiktoken"))
    if len(rank_files) > 1:
        raise ModelError(
            f"{path} has {rank_files[0].name} and {rank_files[1].name}: expected one tokenizer; say which with"
            " --tokenizer FILE"
        )
    if rank_files:
        return rank_files[0]
    raise ModelError(
        f"{path / 'tokenizer.json'} is missing: expected the tokenizer of the model (or vocab.json with merges.txt, or"
        " a .tiktoken file); fetch it again, or name one with --tokenizer FILE"
    )


def load(path: Path, n_vocab: int) -> tokenizers.Tokenizer:
    """Load the tokenizer of a model with `n_vocab` tokens from its directory, or from a file.

    A directory holds tokenizer.json, else vocab.json and merges.txt, else vocabulary.json or vocabulary.txt, else one
    tiktoken file. A file is any of these.

    Raises ModelError where there is none, or it is broken or of another model.
    """
    path = find(path)
    if path.name in ("vocab.json", "merges.txt"):
        return _from_gpt2_files(path.with_name("vocab.json"), path.with_name("merges.txt"), n_vocab)
    text = read_text(path, MAX_BYTES, _EXPECTED)
    if path.name in _LISTS:
        return _from_list(text, n_vocab, path)
    # Under a name of the user's own, the content tells.
    if path.name != "tokenizer.json":
        if text.startswith(_MERGES_HEADER):
            return _from_gpt2_files(path.with_name("vocab.json"), path, n_vocab)
        if not text.lstrip().startswith("{"):
            return _from_ranks(text, n_vocab, str(path))
    data = parse_json(text, path)
    if isinstance(data.get("model"), int):  # an ordinary word
        return _from_gpt2_files(path, path.with_name("merges.txt"), n_vocab)
    return _from_tokenizer_json(data, n_vocab, str(path))


def from_table(table: Sequence[bytes], n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Return the tokenizer whose token i spells `table[i]`; special tokens that are not in the table follow it.

    The merges are not in such a table, which is tiktoken's form of a vocabulary, and ggml's. tiktoken needs none: it
    joins the two neighbours that together spell the token of the lowest number. So every way to put a token together
    out of two others is a merge, and comes as early as the token.

    Raises ModelError where a token comes twice, a byte cannot be spelled, or the table is of another model; `where`
    names it in the message.
    """
    # Latin-1 has a character for each byte.
    texts = [token.decode("latin-1").translate(_CHARACTERS) for token in table]
    return _from_texts(texts, (), n_vocab, where)


def _from_list(text: str, n_vocab: int, path: Path) -> tokenizers.Tokenizer:
    """Take the tokenizer from all of its tokens, ordinary ones written as in vocab.json."""
    tokens = text.removesuffix("\n").split("\n")
    if path.suffix == ".json":
        try:
            tokens = json.loads(text)
        except (ValueError, RecursionError):
            tokens = []
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens) or _END not in tokens:
        raise _no_tokenizer(str(path), f"it is no list of tokens with {_END} among them")
    n_text = tokens.index(_END)
    return _from_texts(tokens[:n_text], list(zip(tokens, itertools.count()))[n_text:], n_vocab, str(path))


def _from_texts(
    texts: Sequence[str], added: Collection[tuple[object, object]], n_vocab: int, where: str
) -> tokenizers.Tokenizer:
    """Build the tokenizer of tokens without merges: these follow from the tokens' order, as `from_table` says."""
    n_bytes = sum(len(text) for text in texts)
    if len(texts) > n_vocab or n_bytes > _MAX_TABLE_BYTES:
        raise ModelError(
            f"{where} has {len(texts)} tokens of {n_bytes} bytes in all: expected up to {n_vocab} tokens and"
            f" {_MAX_TABLE_BYTES} bytes; fetch it again, or name the tokenizer.json of the model with --tokenizer FILE"
        )
    vocabulary: dict[str, int] = {}
    for number, text in enumerate(texts):
        if vocabulary.setdefault(text, number) != number:
            raise _no_tokenizer(where, f"the tokens {vocabulary[text]} and {number} both are {text!r:.40}")
    if not vocabulary.keys() >= set(_ALPHABET):
        raise _no_tokenizer(where, "it has no token for some of the 256 bytes")
    merges = [
        (texts[left], texts[right])
        for text in texts
        for i in range(1, len(text))
        if (left := vocabulary.get(text[:i])) is not None and (right := vocabulary.get(text[i:])) is not None
    ]
    return _build(vocabulary, merges, added, n_vocab, where)


def _from_ranks(text: str, n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Take the tokenizer from a rank file of tiktoken's: a token in base64 and its number a line."""
    table: list[bytes] = []
    for i, line in enumerate(text.split("\n"), 1):
        match line.split():
            case []:
                continue
            # In Whisper's files the numbers follow each other.
            case [spelled, number] if number == str(len(table)):
                try:
                    # The multilingual file writes its empty token as "=".
                    table.append(base64.b64decode("" if spelled == "=" else spelled, validate=True))
                except (binascii.Error, ValueError):  # ValueError: not ASCII
                    raise _no_tokenizer(f"{where}, line {i},", f"{spelled!r:.40} is not base64") from None
            case _:
                raise _no_tokenizer(where, f"line {i} is {line!r:.40}, not token {len(table)} in base64 and its number")
    return from_table(table, n_vocab, where)


def _from_gpt2_files(vocab_path: Path, merges_path: Path, n_vocab: int) -> tokenizers.Tokenizer:
    """Read vocab.json, merges.txt, and the tokens that transformers adds to them, in one of two files beside."""
    vocabulary = read_json(vocab_path, MAX_BYTES, _EXPECTED)
    lines = read_text(merges_path, MAX_BYTES, _EXPECTED).split("\n")  # tokens may hold what else ends a line
    if lines[0].startswith(_MERGES_HEADER):
        del lines[0]
    merges = [_split_pair(line.rstrip("\r"), str(merges_path)) for line in lines if line.strip()]

    added: list[tuple[object, object]] = []
    path = vocab_path.with_name("added_tokens.json")
    if path.is_file():
        added += read_json(path, MAX_BYTES).items()
    path = vocab_path.with_name("tokenizer_config.json")
    if path.is_file():
        listed = read_json(path, MAX_BYTES).get("added_tokens_decoder") or {}
        if not isinstance(listed, dict):
            raise _no_tokenizer(str(path), "its added_tokens_decoder is no object")
        for number, token in listed.items():
            # No token has a number of more than nine digits.
            if not isinstance(token, dict) or not (number.isascii() and number.isdecimal() and len(number) < 10):
                raise _no_tokenizer(str(path), f"it adds the token {number!r:.40}")
            added.append((token.get("content"), int(number)))
    return _build(vocabulary, merges, added, n_vocab, str(vocab_path))


def _from_tokenizer_json(data: dict[str, Any], n_vocab: int, where: str) -> tokenizers.Tokenizer:
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise _no_tokenizer(where, "its model is no BPE")
    for part in ("pre_tokenizer", "decoder"):
        if not isinstance(data.get(part), dict) or data[part].get("type") != "ByteLevel":
            raise _no_tokenizer(where, f"its {part} is not ByteLevel")
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise _no_tokenizer(where, "its model lacks vocab or merges")
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise _no_tokenizer(where, "its added_tokens are no list of tokens")
    numbers = [(token.get("content"), token.get("id")) for token in added]
    return _build(vocabulary, [_split_pair(merge, where) for merge in merges], numbers, n_vocab, where)


def _split_pair(merge: object, where: str) -> tuple[str, str]:
    """Split a merge, either "left right" or a list of both; raise ModelError where it is neither."""
    match merge.split(" ") if isinstance(merge, str) else merge:
        case [str(left), str(right)] if left and right:
            return left, right
    raise _no_tokenizer(where, f"it has the merge {merge!r:.40}")


def _build(
    vocabulary: Mapping[str, object],
    merges: Sequence[tuple[str, str]],
    added: Collection[tuple[object, object]],
    n_vocab: int,
    where: str,
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a model with `n_vocab` tokens.

    vocabulary : token to number; of Whisper's special tokens, those that neither this nor `added` names are completed
    merges : pairs of tokens, the first to be merged first
    added : tokens and numbers that are found in text before it is cut and merged, as Whisper's special tokens are

    Raises ModelError if numbers are used twice or beyond the model's, merges lead nowhere, or sizes do not fit.
    """
    if len(added) > _MAX_ADDED:
        raise _no_tokenizer(where, f"it adds {len(added)} tokens, more than {_MAX_ADDED}")
    whole: dict[str, int] = {}
    texts: dict[int, str] = {}
    for text, number in (*vocabulary.items(), *added):
        if not isinstance(text, str):
            raise _no_tokenizer(where, f"it adds the token {text!r:.40}")
        text = RENAMED.get(text, text)
        if type(number) is not int or number < 0:
            raise _no_tokenizer(where, f"the token {text!r:.40} has the number {number!r:.40}")
        if whole.setdefault(text, number) != number:
            raise _no_tokenizer(where, f"the token {text!r:.40} has the numbers {whole[text]!r:.40} and {number!r:.40}")
        if texts.setdefault(number, text) != text:
            raise _no_tokenizer(
                where, f"the tokens {texts[number]!r:.40} and {text!r:.40} both have the number {number!s:.40}"
            )
    if not whole:
        raise _no_tokenizer(where, "it has no tokens")
    _check_size(1 + max(texts), n_vocab, where)
    special = find_special(whole, n_vocab, where)
    whole = complete(whole, special, where)
    _check_size(1 + max(whole.values()), n_vocab, where, whole=n_vocab in PUBLISHED)
    found_in_text = {*range(special.end_of_text, special.timestamp_end), *(number for _, number in added)}
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=whole, merges=list(merges)))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([text for text, number in whole.items() if number in found_in_text])
    except BaseException as error:
        # The library raises bare Exception, and where it panics, what is not even one.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise _no_tokenizer(where, str(error)) from None
        raise
    return backend


def _check_size(n_tokens: int, n_vocab: int, where: str, *, whole: bool = False) -> None:
    """Raise ModelError if a tokenizer has more tokens than the model, or fewer if it has to be whole."""
    if n_tokens > n_vocab or (whole and n_tokens < n_vocab):
        raise ModelError(
            f"{where} has {n_tokens!s:.40} tokens, the model {n_vocab}: the files are from different models;"
            " fetch both again from one place"
        )


def _no_tokenizer(where: str, reason: str) -> ModelError:
    """Return the error of a file that holds something else; the reason may quote it."""
    reason = " ".join(reason.split())
    return ModelError(f"{where} is no tokenizer ({reason:.160}): expected Whisper's; fetch it again")
