"""nano.en for peers that know Whisper's special tokens by number: laid out in the standard vocabulary of 51865 tokens.

Each of nano.en's tokens is put where that vocabulary spells the same bytes, or has the special token of the same name;
the rows that nano.en lacks have the same logit whatever is said, far below all others. (Fifty thousand copies of a row
that is merely never predicted would together be likelier than the text, when a peer samples at a high temperature.) A
few of nano.en's tokens are spelled by no standard one; they take the place of Russian ones. Tokenizers that we write
spell them as nano.en does; for peers that bring their own, `restore` puts that spelling back into a text.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from streamer.arrays import FloatArray
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.vocabulary import BYTE_CHARACTERS
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tools.benchmarks.peers.environment import TORCH, Environment

NANO = Path(__file__).parents[3] / "models" / "nano.en"

N_STANDARD = 51865

# openai-whisper's table of the standard vocabulary. Like torch, the package is imported where it is used: to see what
# the tool can do takes neither.
RANKS = Path(getattr(find_spec("whisper"), "origin", "")).parent / "assets" / "multilingual.tiktoken"

EMBEDDING = "decoder.embed_tokens.weight"

# Of a token that nano.en does not have. The lowest logit of a best token is above 0.
UNUSED_LOGIT = -30.0

CONVERTER = Environment("ctranslate2", ((TORCH,), ("ctranslate2==4.8.5", "transformers==5.23.0", TORCH)))


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


def restore(text: str) -> str:
    """Return a text of the standard layout as nano.en spells it."""
    for spelling, substitute in _substitutes().items():
        text = text.replace(substitute.decode("utf-8"), spelling.decode("utf-8"))
    return text


def spelled_ranks() -> list[bytes]:
    """Return what the tokens spell in the standard layout, by number, with nano.en's own spellings."""
    spellings = {substitute: spelling for spelling, substitute in _substitutes().items()}
    return [spellings.get(token, token) for token in ranks()]


def ranks() -> list[bytes]:
    """Return the bytes of each standard token that is not special, by number."""
    standard = _standard()
    return [standard.decode_single_token_bytes(number) for number in range(standard.eot_token)]


def write_huggingface(directory: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint of the standard layout as transformers reads it, with the settings of nano.en."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True)
    tensors = {f"model.{name}": np.ascontiguousarray(value) for name, value in checkpoint.tensors.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "generation_config.json"):
        _write_json(directory / name, {**_renumbered(_read_json(NANO / name)), **_SIZE.get(name, {})})
    tokenizer = vocabulary.from_table(spelled_ranks(), N_STANDARD, str(RANKS))
    tokenizer.save(str(directory / "tokenizer.json"))
    model = _read_json(directory / "tokenizer.json")["model"]
    _write_json(directory / "vocab.json", model["vocab"])
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "preprocessor_config.json"):
        shutil.copy(NANO / name, directory)


def write_openai(directory: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint of the standard layout as openai-whisper does, and its tokenizer beside it."""
    directory.mkdir(parents=True)
    write_pt(directory / "nano.pt", checkpoint)
    shutil.copy(RANKS, directory)
    generation = _renumbered(_read_json(NANO / "generation_config.json"))
    _write_json(directory / "generation_config.json", generation)


def write_pt(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as openai-whisper does, with tensors of the types that they have."""
    import torch

    tensors = {openai_name(name): np.ascontiguousarray(value) for name, value in checkpoint.tensors.items()}
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    torch.save({"dims": asdict(checkpoint.dims), "model_state_dict": state}, path)


def alignment_heads() -> list[tuple[int, int]]:
    """Return layer and number of each head of nano.en whose cross-attention tells the words' times."""
    heads: list[list[int]] = _read_json(NANO / "generation_config.json")["alignment_heads"]
    return [(layer, head) for layer, head in heads]


_SIZE: Mapping[str, Mapping[str, object]] = {
    "config.json": {"vocab_size": N_STANDARD, "torch_dtype": "float32", "_name_or_path": "streamer/nano.en.standard"}
}

# Settings of nano.en that are token numbers.
_NUMBERS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "begin_suppress_tokens",
    "suppress_tokens",
    "lang_to_id",
    "task_to_id",
    "no_timestamps_token_id",
    "prev_sot_token_id",
)


def _renumbered(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _renumber(value) if key in _NUMBERS else value for key, value in settings.items()}


def _renumber(value: Any) -> Any:  # noqa: ANN401 - JSON is untyped
    match value:
        case dict():
            return {key: _renumber(item) for key, item in value.items()}
        case list():
            return [_renumber(item) for item in value]
    return standard_numbers()[value]


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


def _read_json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
