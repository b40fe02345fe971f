"""Weights that openai-whisper runs as well as we do: nano.en in the standard vocabulary, random ones of tiny's size.

openai-whisper's special tokens are hard-wired to the multilingual vocabulary of 51865 tokens. So each of nano.en's
tokens is put where that vocabulary spells the same bytes, or has the special token of the same name.
"""

import json
import shutil
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
import whisper
import whisper.model
import whisper.tokenizer

from streamer.whisper.devices import DeviceSettings
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.vocabularies.bpe import BYTE_CHARACTERS
from streamer.whisper.weights import Checkpoint, huggingface
from streamer.whisper.weights.names import openai_name
from tests.whisper.sizes import N_MULTILINGUAL, SIZES, lively_checkpoint
from tests.whisper.support import NANO, Untyped, tensor, write_openai

RANKS = Path(whisper.__file__).parent / "assets" / "multilingual.tiktoken"

EMBEDDING = "decoder.embed_tokens.weight"

# Part of every Whisper's vocabulary, and of no text that nano.en was trained on.
NEVER_PREDICTED = "<|startoflm|>"

# The heads that nano.en's generation_config.json names.
NANO_HEADS = ((2, 0), (2, 1))


@cache
def standard_numbers() -> dict[int, int]:
    """Return the number in the standard vocabulary of each of nano.en's tokens."""
    spelled = json.loads((NANO / "vocab.json").read_text(encoding="utf-8"))
    special = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    standard = whisper.tokenizer.get_tokenizer(True).encoding
    byte_of = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    numbers = {token["id"]: standard.encode_single_token(token["content"]) for token in special}
    others = []
    for text, number in spelled.items():
        try:
            numbers[number] = standard.encode_single_token(bytes(byte_of[character] for character in text))
        except KeyError:
            others.append(number)
    # What no standard token spells takes the place of another word: a different text, but a text.
    used = set(numbers.values())
    words = (n for n in range(standard.eot_token) if n not in used and standard.decode([n]).isalpha())
    return numbers | dict(zip(others, words, strict=False))


def standard_nano() -> Checkpoint:
    """Return nano.en's weights with the embedding of 51865 tokens; those it lacks have the row of one it never says."""
    checkpoint = huggingface.load(NANO)
    numbers = standard_numbers()
    small = np.asarray(checkpoint.tensors[EMBEDDING], dtype=np.float32)
    unused = whisper.tokenizer.get_tokenizer(True).encoding.encode_single_token(NEVER_PREDICTED)
    never = next(number for number, standard in numbers.items() if standard == unused)
    embedding = np.tile(small[never], (N_MULTILINGUAL, 1))
    embedding[list(numbers.values())] = small[list(numbers)]
    tensors = {name: np.asarray(value, dtype=np.float32) for name, value in checkpoint.tensors.items()}
    return Checkpoint(replace(checkpoint.dims, n_vocab=N_MULTILINGUAL), {**tensors, EMBEDDING: embedding})


def random_tiny() -> Checkpoint:
    """Return random weights of tiny's size that follow the audio."""
    return lively_checkpoint(SIZES["tiny"])


def write_standard(directory: Path, checkpoint: Checkpoint, heads: tuple[tuple[int, int], ...] | None = None) -> Path:
    """Write a checkpoint of the standard vocabulary as openai-whisper does, in float32, and its tokenizer beside it.

    With alignment heads a `generation_config.json` as of the published models names them; else the file says nothing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_openai(directory / "model.pt", checkpoint, "float32")
    shutil.copy(RANKS, directory)
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


def load_ours(directory: Path) -> WhisperModel:
    """Load what `write_standard` wrote."""
    return load_model(str(directory), DeviceSettings("CPU"), cache_dir=str(directory / "compiled"))


def openai_whisper(checkpoint: Checkpoint, heads: tuple[tuple[int, int], ...] | None = None) -> Untyped:
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
