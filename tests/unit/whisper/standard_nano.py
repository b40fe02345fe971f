"""nano.en in the standard vocabulary of 51865 tokens, which openai-whisper knows by number.

Each of nano.en's tokens has the number of the standard token with the same bytes, or the special token of the same
name. Tokens that nano.en lacks have the same logit at each step, far below all others: fifty thousand copies of a row
that is merely never predicted would together be likelier than the text when sampling at a high temperature. A few of
nano.en's tokens have no standard one; they take the numbers of Russian ones.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from streamer.arrays import FloatArray
from streamer.whisper.tokens.vocabulary import BYTE_CHARACTERS
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint

NANO = Path(__file__).parents[3] / "models" / "nano.en"

N_STANDARD = 51865

# openai-whisper's table of the standard vocabulary. Like torch, the package is imported where it is used: to see what
# the tool can do takes neither.
RANKS = Path(getattr(find_spec("whisper"), "origin", "")).parent / "assets" / "multilingual.tiktoken"

EMBEDDING = "decoder.embed_tokens.weight"

# Of a token that nano.en does not have. The lowest logit of a best token is above 0.
UNUSED_LOGIT = -30.0


@cache
def standard_numbers() -> dict[int, int]:
    """Return the number in the standard vocabulary of each of nano.en's tokens."""
    spelled = json.loads((NANO / "vocab.json").read_text(encoding="utf-8"))
    special = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    standard = _standard()
    numbers = {token["id"]: standard.encode_single_token(token["content"]) for token in special}
    for text, number in spelled.items():
        spelling = _bytes(text)
        numbers[number] = standard.encode_single_token(_substitutes().get(spelling, spelling))
    return numbers


def standard_nano() -> Checkpoint:
    """Return nano.en's weights in float32 with the embedding of 51865 tokens."""
    checkpoint = huggingface.load(NANO)
    tensors = {name: np.asarray(value, dtype=np.float32) for name, value in checkpoint.tensors.items()}
    numbers = standard_numbers()
    embedding = np.tile(_constant_row(tensors), (N_STANDARD, 1))
    embedding[list(numbers.values())] = tensors[EMBEDDING][list(numbers)]
    return Checkpoint(replace(checkpoint.dims, n_vocab=N_STANDARD), {**tensors, EMBEDDING: embedding})


def _constant_row(tensors: Mapping[str, FloatArray]) -> FloatArray:
    """Return the embedding, shape (n_text_state,), whose logit is UNUSED_LOGIT at each of the decoder's steps.

    What the logits are taken of is a layer norm's output, g * n + b where n sums to 0. So its product with 1 / g is the
    sum of b / g, whatever n is.
    """
    gain, bias = (tensors[f"decoder.layer_norm.{part}"].astype(np.float64) for part in ("weight", "bias"))
    row: FloatArray = (UNUSED_LOGIT / np.sum(bias / gain) / gain).astype(np.float32)
    return row


def ranks() -> list[bytes]:
    """Return the bytes of each standard token that is not special, by number."""
    standard = _standard()
    return [standard.decode_single_token_bytes(number) for number in range(standard.eot_token)]


@cache
def _substitutes() -> dict[bytes, bytes]:
    """Return what the standard vocabulary has instead of each of nano.en's spellings that it lacks."""
    standard = _standard()
    table = set(ranks())
    spelled = json.loads((NANO / "vocab.json").read_text(encoding="utf-8"))
    missing = sorted(spelling for spelling in map(_bytes, spelled) if spelling not in table)
    russian = (standard.decode([number]) for number in range(standard.eot_token))
    chosen: list[str] = []
    substitutes: dict[bytes, bytes] = {}
    for spelling in missing:
        space = " " if spelling.startswith(b" ") else ""
        for text in russian:
            letters = text.removeprefix(space)
            distinct = not any(letters in other or other in letters for other in chosen)
            if text.startswith(space) and _is_russian(letters) and distinct:
                chosen.append(letters)
                substitutes[spelling] = text.encode("utf-8")
                break
    return substitutes


def _is_russian(text: str) -> bool:
    return len(text) > 1 and all("а" <= character <= "я" for character in text)


def _standard() -> Any:  # noqa: ANN401 - tiktoken's Encoding, of a library without types
    from whisper.tokenizer import get_tokenizer

    return get_tokenizer(True).encoding


def _bytes(text: str) -> bytes:
    """Return what a token's text in vocab.json stands for."""
    byte_of = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    return bytes(byte_of[character] for character in text)
