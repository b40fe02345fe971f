"""nano.en in the standard vocabulary of 51865 tokens, which openai-whisper knows by number and runs as well as we do.

Each of nano.en's tokens has the number of the standard token with the same bytes, or the special token of the same
name. Tokens that nano.en lacks have the same logit at each step, far below all others: fifty thousand copies of a row
that is merely never predicted would together be likelier than the text when sampling at a high temperature. A few of
nano.en's tokens have no standard one; they take the numbers of Russian ones.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import whisper
import whisper.model
import whisper.tokenizer

from streamer.arrays import FloatArray
from streamer.whisper.dims import Heads
from streamer.whisper.tokens.vocabulary import BYTE_CHARACTERS
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.support import NANO, Untyped, tensor, write_openai
from tests.unit.whisper.tokens.published import MULTILINGUAL, table

# The heads that nano.en's generation_config.json names.
NANO_HEADS = ((2, 0), (2, 1))

EMBEDDING = "decoder.embed_tokens.weight"

# Of a token that nano.en does not have. The lowest logit of a best token is above 0.
UNUSED_LOGIT = -30.0


def standard_nano() -> Checkpoint:
    """Return nano.en's weights in float32 with the embedding of 51865 tokens."""
    checkpoint = huggingface.load(NANO)
    tensors = {name: np.asarray(value, dtype=np.float32) for name, value in checkpoint.tensors.items()}
    numbers = _standard_numbers()
    embedding = np.tile(_constant_row(tensors), (MULTILINGUAL.n_vocab, 1))
    embedding[list(numbers.values())] = tensors[EMBEDDING][list(numbers)]
    dims = replace(checkpoint.dims, n_vocab=MULTILINGUAL.n_vocab)
    return Checkpoint(dims, {**tensors, EMBEDDING: embedding})


def write_standard(directory: Path, checkpoint: Checkpoint, heads: Heads | None = None) -> Path:
    """Write a checkpoint of the standard vocabulary as openai-whisper does, in float32, and its tokenizer beside it.

    With alignment heads a `generation_config.json` as of the published models names them; else the file says nothing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_openai(directory / "model.pt", checkpoint, "float32")
    shutil.copy(MULTILINGUAL.path, directory)
    if heads is not None:
        tokenizer = whisper.tokenizer.get_tokenizer(True)
        controls = ("transcribe", "translate", "sot", "sot_prev", "sot_lm", "no_speech")
        suppressed = {*tokenizer.non_speech_tokens, *(getattr(tokenizer, name) for name in controls)}
        config = {
            "alignment_heads": heads,
            "begin_suppress_tokens": [*tokenizer.encode(" "), tokenizer.eot],
            "suppress_tokens": sorted(suppressed),
            "max_initial_timestamp_index": 50,
            "is_multilingual": True,
            "no_timestamps_token_id": tokenizer.no_timestamps,
        }
        (directory / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def openai_whisper(checkpoint: Checkpoint, heads: Heads | None = None) -> Untyped:
    """Return openai-whisper's model of a checkpoint of the standard vocabulary, in float32."""
    untyped: Untyped = whisper.model
    model = untyped.Whisper(untyped.ModelDimensions(**asdict(checkpoint.dims)))
    state = {openai_name(name): tensor(value) for name, value in checkpoint.tensors.items()}
    model.load_state_dict(state, strict=True, assign=True)
    if heads is not None:
        chosen = torch.zeros(checkpoint.dims.n_text_layer, checkpoint.dims.n_text_head, dtype=torch.bool)
        for layer, head in heads:
            chosen[layer, head] = True
        model.register_buffer("alignment_heads", chosen.to_sparse(), persistent=False)
    return model.eval()


def _standard_numbers() -> dict[int, int]:
    """Return the number in the standard vocabulary of each of nano.en's tokens."""
    byte_of = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    written = json.loads((NANO / "vocab.json").read_text(encoding="utf-8"))
    spelled = {number: bytes(byte_of[character] for character in text) for text, number in written.items()}
    special = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    encoding: Untyped = whisper.tokenizer.get_tokenizer(True).encoding
    substitutes = _substitutes(set(spelled.values()))
    names = {token["id"]: encoding.encode_single_token(token["content"]) for token in special}
    return names | {
        number: encoding.encode_single_token(substitutes.get(spelling, spelling))
        for number, spelling in spelled.items()
    }


def _constant_row(tensors: Mapping[str, FloatArray]) -> FloatArray:
    """Return the embedding, shape (n_text_state,), whose logit is UNUSED_LOGIT at each of the decoder's steps.

    What the logits are taken of is a layer norm's output, g * n + b where n sums to 0. So its product with 1 / g is the
    sum of b / g, whatever n is.
    """
    gain, bias = (tensors[f"decoder.layer_norm.{part}"].astype(np.float64) for part in ("weight", "bias"))
    row: FloatArray = (UNUSED_LOGIT / np.sum(bias / gain) / gain).astype(np.float32)
    return row


def _substitutes(spellings: set[bytes]) -> dict[bytes, bytes]:
    """Return what the standard vocabulary has instead of each of the spellings that it lacks."""
    russian = (spelling.decode("utf-8", errors="replace") for spelling in table("multilingual"))
    chosen: list[str] = []
    substitutes: dict[bytes, bytes] = {}
    for spelling in sorted(spellings - {*table("multilingual")}):
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
