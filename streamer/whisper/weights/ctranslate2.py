"""CTranslate2's `model.bin`, the format of faster-whisper, with `config.json` beside it.

The file holds a version, the kind of network, variables (name, shape, type, values) and aliases of variables. Matrices
that multiply the same input are one matrix. A quantized matrix is divided by the scale of each row (int8) or by its one
scale (int16).

Source: `_serialize` and `_quantize` in `python/ctranslate2/specs/model_spec.py` and `src/ops/dequantize_cpu.cc` of
CTranslate2, which has Whisper since version 6 of the format.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from streamer.arrays import FloatArray
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.weights.binary import File, open_file, unfit
from streamer.whisper.weights.checkpoint import Checkpoint, as_checkpoint, expected_shapes, first_bytes
from streamer.whisper.weights.tensors import FLOATS, TYPES, Tensor, stored

NAME = "CTranslate2"

# Translation models have two vocabularies, or a shared one.
FILES = (("model.bin", "vocabulary.json"), ("model.bin", "vocabulary.txt"))

_FILE = "model.bin"
_EXPECTED = "beside model.bin lie config.json, tokenizer.json and a vocabulary; fetch all of them again"
_VERSION = 6
_KIND = "WhisperSpec"

# Version of the format, length and name of the kind of network.
_HEADER = re.compile(rb".\0\0\0.\0\w+\0", re.DOTALL)

# By CTranslate2's numbers, under the names that safetensors gives them.
_TYPES = ("F32", "I8", "I16", "I32", "F16", "BF16")

_MAX_VARIABLES = 1 << 14  # large-v3, quantized, has 1900

_EMBEDDING, _OUTPUT = "decoder/embeddings/weight", "decoder/projection/weight"

# What Hugging Face's names become, one after the other.
_RENAMED = (
    (r"\.layers\.(\d+)", r"/layer_\1"),
    (r"\.", "/"),
    ("proj_out", "decoder/projection"),
    ("embed_tokens", "embeddings"),
    ("embed_positions/weight", "position_encodings/encodings"),
    ("layer_norm/weight", "layer_norm/gamma"),
    ("layer_norm/bias", "layer_norm/beta"),
    ("self_attn_layer_norm", "self_attention/layer_norm"),
    ("encoder_attn_layer_norm", "attention/layer_norm"),
    ("final_layer_norm", "ffn/layer_norm"),
    ("self_attn/[qkv]_proj", "self_attention/linear_0"),
    ("self_attn/out_proj", "self_attention/linear_1"),
    ("encoder_attn/q_proj", "attention/linear_0"),
    ("encoder_attn/[kv]_proj", "attention/linear_1"),
    ("encoder_attn/out_proj", "attention/linear_2"),
    ("fc1", "ffn/linear_0"),
    ("fc2", "ffn/linear_1"),
)

# Matrices of several projections, one behind the other.
_TOGETHER = {"/self_attention/linear_0/": "qkv", "/attention/linear_1/": "kv"}


def matches(path: Path) -> bool:
    """Return whether a path is such a file, of any network, or a directory with one. Raises OSError."""
    if path.is_dir():
        # Beside Hugging Face's config.json are Hugging Face's weights, too.
        config = path / "config.json"
        return matches(path / _FILE) and not (config.is_file() and "model_type" in read_json(config))
    return _HEADER.match(first_bytes(path, 64)) is not None


def load(path: Path) -> Checkpoint:
    """Load a checkpoint, quantized or not. Raises ModelError if it is damaged or of another network, and OSError."""
    path = path / _FILE if path.is_dir() else path
    with open_file(path, "CTranslate2") as file:
        variables = _read_variables(file)
        dims = _read_dimensions(path, variables)
    tied = variables.get(_OUTPUT) in (None, variables[_EMBEDDING])
    tensors = {name: _find_tensor(variables, name) for name in expected_shapes(dims, tied=tied)}
    checkpoint = as_checkpoint(dims, tensors, str(path), "its other tensors", tied=tied)
    return replace(checkpoint, config=read_json(path.with_name("config.json"), expected=_EXPECTED))


def _read_variables(file: File) -> dict[str, Tensor]:
    """Return the variables under all of their names."""
    (version,) = file.read_numbers("I", "its header")
    kind = _read_text(file)
    if version != _VERSION or kind != _KIND:
        fact = f"is a {kind!r:.40} in version {version} of CTranslate2's format"
        remedy = "choose a Whisper model, or convert it again with CTranslate2 4"
        raise unfit(file.path, fact, f"{_KIND!r} in version {_VERSION}", remedy)
    _, n_variables = file.read_numbers("2I", "its header")
    if n_variables > _MAX_VARIABLES:
        raise ValueError(f"{n_variables} variables: expected up to {_MAX_VARIABLES}")
    variables = dict(_read_variable(file) for _ in range(n_variables))
    (n_aliases,) = file.read_numbers("I", "its aliases")
    for _ in range(n_aliases):
        alias, name = _read_text(file), _read_text(file)
        for suffix in ("", "_scale"):
            if name + suffix in variables:
                variables.setdefault(alias + suffix, variables[name + suffix])
    return variables


def _read_variable(file: File) -> tuple[str, Tensor]:
    name = _read_text(file)
    (rank,) = file.read_numbers("B", "the header of a variable")
    *shape, number, n_bytes = file.read_numbers(f"{rank}IBI", "the header of a variable")
    dtype = _TYPES[number] if number < len(_TYPES) else ""
    if not dtype or TYPES[dtype].itemsize * math.prod(shape) != n_bytes:
        raise ValueError(f"{name!r:.60} of shape {shape!s:.60} and type {number} in {n_bytes} bytes")
    return name, stored(file.path, dtype, tuple(shape), file.skip(n_bytes, f"the variable {name!r:.60}"))


def _read_text(file: File) -> str:
    (n_bytes,) = file.read_numbers("H", "a name")
    return file.read_all(n_bytes, "a name").rstrip(b"\0").decode("utf-8", "replace")


def _read_dimensions(path: Path, variables: dict[str, Tensor]) -> ModelDimensions:
    """Return what the shapes say, checked as the dimensions of other formats are."""

    def shape(name: str, rank: int) -> tuple[int, ...]:
        found = variables[name].shape if name in variables else ()
        if len(found) != rank:
            raise ValueError(f"{name} of {len(found)} dimensions: expected {rank}, as in Whisper models")
        return found

    sizes = {"n_mels": shape("encoder/conv1/weight", 3)[1], "n_vocab": shape(_EMBEDDING, 2)[0]}
    for side, part in (("encoder", "audio"), ("decoder", "text")):
        n_positions, width = shape(f"{side}/position_encodings/encodings", 2)
        layers = {name.split("/")[1] for name in variables if name.startswith(f"{side}/layer_")} - {"layer_norm"}
        heads = variables.get(f"{side}/num_heads")
        n_head = int(heads.read().flat[0]) if heads else width // 64
        found = {"ctx": n_positions, "state": width, "head": n_head, "layer": len(layers)}
        sizes |= {f"n_{part}_{name}": size for name, size in found.items()}
    return ModelDimensions.from_openai(sizes, path)


def variable_name(name: str) -> str:
    """Return CTranslate2's name of a tensor, given Hugging Face's; projections of one input have the same."""
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def _find_tensor(variables: dict[str, Tensor], name: str) -> Tensor | None:
    """Return the tensor that has this name in Hugging Face's models; None if it is missing."""
    there = variable_name(name)
    whole = _dequantized(variables, there)
    projections = next((found for matrix, found in _TOGETHER.items() if matrix in there), "")
    if whole is None or not whole.shape or not projections:
        return whole
    n_rows = whole.shape[0] // len(projections)
    first = n_rows * projections.index(name.split(".")[-2][0])
    return whole.view((n_rows, *whole.shape[1:]), lambda values: values[first : first + n_rows])


def _dequantized(variables: dict[str, Tensor], name: str) -> Tensor | None:
    """Return a variable, whole numbers divided by their scales, (n_rows,) or () for all of them."""
    values, scales = variables.get(name), variables.get(f"{name}_scale")
    if values is None or scales is None or values.dtype not in ("I8", "I16") or scales.dtype not in FLOATS:
        return values  # numbers without their scales are refused for their type
    if scales.shape not in ((), values.shape[:1]):
        return values

    def load() -> FloatArray:
        # A scale of zero is found by the reader of the result.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            by_row = np.float32(1) / scales.read().astype(np.float32).reshape(-1, *(1,) * (len(values.shape) - 1))
            floats: FloatArray = values.load() * by_row
        return floats

    return Tensor(values.shape, "F32", load)
