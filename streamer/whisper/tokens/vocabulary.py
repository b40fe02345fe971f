"""One loader for each file that a tokenizer comes in; all end in one byte-level BPE with Whisper's special tokens.

Only the numbers of tokens are taken from a file. How text is cut and put together is the same for all of Whisper's, a
file could bring a pattern that never ends, and what may be merged follows from the numbers: many published files lack
their first merge, and encode " they" otherwise than the models were trained.

Source: GPT-2's `encoder.py` (vocab.json, bytes as characters), tiktoken's `load.py` (rank files) and `_educational.py`
(merges by the number of the token that they give).
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from streamer.errors import ModelError
from streamer.whisper.files import parse_json, read_json, read_text, readable
from streamer.whisper.tokens.special import PUBLISHED, RENAMED, complete, find_special

# Largest file that is read: those of Whisper have up to 4 MB, and as values in memory take up to thirty times as much.
MAX_BYTES = 8 << 20

# All tokens in the order of their numbers, from CTranslate2.
_LISTS = ("vocabulary.json", "vocabulary.txt")

_EXPECTED = (
    "expected the tokenizer of the model (or vocab.json, or a .tiktoken file); fetch it again, or name one with"
    " --tokenizer FILE"
)

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
    """Return the tokenizer's file in a directory, or the file itself.

    A directory that has none lacks the one that is returned. Raises ModelError if it has several.
    """
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
    return rank_files[0] if rank_files else path / "tokenizer.json"


def load(path: Path, n_vocab: int) -> tokenizers.Tokenizer:
    """Load the tokenizer of a model with `n_vocab` tokens from its directory, or from a file.

    A directory holds tokenizer.json, else vocab.json, else CTranslate2's vocabulary.json or vocabulary.txt, else one
    tiktoken file. A file is any of these.

    Raises ModelError if it is missing, broken or of another model.
    """
    path = find(path)
    text = read_text(path, MAX_BYTES, _EXPECTED)
    if path.name in _LISTS:
        return _from_list(text, n_vocab, path)
    # Under a name of the user's own, the content decides.
    if path.suffix != ".json" and not text.lstrip().startswith("{"):
        return _from_ranks(text, n_vocab, str(path))
    data = parse_json(text, path)
    if path.name == "vocab.json" or isinstance(data.get("model"), int):  # an ordinary word
        return _build(data.items(), _added_beside(path), n_vocab, str(path))
    return _from_tokenizer_json(data, n_vocab, str(path))


def from_table(table: Sequence[bytes], n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Return the tokenizer whose token i spells `table[i]`; special tokens that are not in the table follow it.

    Raises ModelError if a token comes twice, or the table is of another model; `where` names it in the message.
    """
    # Latin-1 has a character for each byte.
    texts = (token.decode("latin-1").translate(_CHARACTERS) for token in table)
    return _build(((text, number) for number, text in enumerate(texts)), (), n_vocab, where)


def _from_list(text: str, n_vocab: int, path: Path) -> tokenizers.Tokenizer:
    tokens = text.removesuffix("\n").split("\n")
    if path.suffix == ".json":
        try:
            tokens = json.loads(text)
        except (ValueError, RecursionError):
            raise _no_tokenizer(str(path), "it is not valid JSON") from None
    if not isinstance(tokens, list):
        raise _no_tokenizer(str(path), "it is not a list of tokens")
    return _build(((token, number) for number, token in enumerate(tokens)), (), n_vocab, str(path))


def _from_ranks(text: str, n_vocab: int, where: str) -> tokenizers.Tokenizer:
    """Take the tokenizer from a rank file of tiktoken's: a token in base64 and its number a line."""
    table: list[bytes] = []
    for i, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            # One of Whisper's tokens spells nothing, and is written as a lone `=`.
            spelled, number = line.split()
            if number != str(len(table)):  # in Whisper's files the numbers follow each other
                raise ValueError
            table.append(b"" if spelled == "=" else base64.b64decode(spelled, validate=True))
        except ValueError:
            reason = f"line {i} is {line!r:.40}: expected token {len(table)} in base64 and its number"
            raise _no_tokenizer(where, reason) from None
    return from_table(table, n_vocab, where)


def to_ranks(table: Iterable[bytes]) -> bytes:
    """Return the rank file of tokens that spell this, as `_from_ranks` reads it."""
    return b"".join(b"%s %d\n" % (base64.b64encode(token) or b"=", number) for number, token in enumerate(table))


def _added_beside(vocabulary_path: Path) -> list[tuple[object, object]]:
    """Return the tokens that transformers adds to a vocab.json, which stand in one of two files beside it."""
    added: list[tuple[object, object]] = []
    path = vocabulary_path.with_name("added_tokens.json")
    if path.is_file():
        added += read_json(path, MAX_BYTES).items()
    path = vocabulary_path.with_name("tokenizer_config.json")
    if path.is_file():
        listed = read_json(path, MAX_BYTES).get("added_tokens_decoder") or {}
        if not isinstance(listed, dict):
            raise _no_tokenizer(str(path), "its added_tokens_decoder is not an object")
        for number, token in listed.items():
            # No token has a number of more than nine digits.
            if not isinstance(token, dict) or not (number.isascii() and number.isdecimal() and len(number) < 10):
                raise _no_tokenizer(str(path), f"an added token has the number {number!r:.40}")
            added.append((token.get("content"), int(number)))
    return added


def _from_tokenizer_json(data: dict[str, Any], n_vocab: int, where: str) -> tokenizers.Tokenizer:
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise _no_tokenizer(where, "its model is not BPE")
    for part in ("pre_tokenizer", "decoder"):
        if not isinstance(data.get(part), dict) or data[part].get("type") != "ByteLevel":
            raise _no_tokenizer(where, f"its {part} is not ByteLevel")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict):
        raise _no_tokenizer(where, "its model has no vocab")
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise _no_tokenizer(where, "its added_tokens is not a list of tokens")
    numbers = [(token.get("content"), token.get("id")) for token in added]
    return _build(vocabulary.items(), numbers, n_vocab, where)


def _build(
    vocabulary: Iterable[tuple[str, object]],
    added: Sequence[tuple[object, object]],
    n_vocab: int,
    where: str,
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a model with `n_vocab` tokens.

    vocabulary : tokens and their numbers; of Whisper's special tokens, those that neither this nor `added` names are
        completed
    added : tokens and numbers that are found in text before it is cut and merged, as Whisper's special tokens are

    Raises ModelError if numbers are used twice or beyond the model's, a byte cannot be spelled, or sizes do not fit.
    """
    whole: dict[str, int] = {}
    texts: dict[int, str] = {}
    for text, number in (*vocabulary, *added):
        if not isinstance(text, str):
            raise _no_tokenizer(where, f"a token has the text {text!r:.40}")
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
    merged = {text: number for text, number in whole.items() if number not in found_in_text}
    if not whole.keys() >= {*_ALPHABET}:
        raise _no_tokenizer(where, "tokens are missing for some of the 256 bytes")
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=whole, merges=_merges(merged)))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([text for text, number in whole.items() if number in found_in_text])
    except BaseException as error:
        # The library raises bare Exception, and if it panics, what is not even one.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise _no_tokenizer(where, str(error)) from None
        raise
    return backend


def _merges(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every way to put a token together out of two others, in the order of the tokens' numbers.

    Of two neighbours, those are joined first that spell the token of the lowest number.
    """
    return [
        (text[:i], text[i:])
        for text in sorted(vocabulary, key=vocabulary.__getitem__)
        for i in range(1, len(text))
        if text[:i] in vocabulary and text[i:] in vocabulary
    ]


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
    return ModelError(f"{where} is not a Whisper tokenizer ({reason:.160}): fetch it again")
