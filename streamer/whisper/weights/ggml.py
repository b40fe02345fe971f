"""whisper.cpp's `ggml-*.bin`: dimensions, mel filters, vocabulary and tensors in one file, all little-endian.

Source: what whisper.cpp writes, from openai-whisper's and Hugging Face's files (`models/convert-pt-to-ggml.py`,
`models/convert-h5-to-ggml.py`) and when it quantizes (`examples/quantize`).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

from streamer.constants import N_FFT
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights.binary import File, open_file, unfit
from streamer.whisper.weights.checkpoint import Checkpoint, as_checkpoint, expected_shapes, first_bytes
from streamer.whisper.weights.ggml_blocks import BLOCK_SIZE, BLOCKS, dequantize
from streamer.whisper.weights.openai import openai_name
from streamer.whisper.weights.tensors import TYPES, Tensor, stored

NAME = "ggml"
FILES = (("ggml-*.bin",),)
MAGIC = b"lmgg"  # 0x67676d6c, "ggml" in a number

# The header's numbers, in the order of the file; then comes the type of the tensors.
DIMENSIONS = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels"),
)

# Version of the blocks' layout; the header's type is this times the factor, plus what most tensors are.
_QUANTIZATION_VERSION = 2
_VERSION_FACTOR = 1000

# By ggml's number of a type. Those of whisper.cpp's k-quants (10 to 14) and bf16 (30) are not read.
_FLOATS = {0: "F32", 1: "F16"}
_QUANTIZED = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0"}

_MAX_TOKEN_BYTES = 1024  # the longest of Whisper's has 128
_MAX_NAME_BYTES = 128  # the longest tensor's has 41

# Vectors that the file holds as matrices of one column.
_CONVOLUTION_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")


def matches(path: Path) -> bool:
    """Return whether a path is such a file. Raises OSError if it cannot be read."""
    return first_bytes(path) == MAGIC


def load(path: Path) -> Checkpoint:
    """Load a checkpoint, quantized or not. Raises ModelError if it is truncated or no such file."""
    with open_file(path, "whisper.cpp") as file:
        dims, version = _read_header(file)
        vocabulary = tuple(_read_words(file, dims.n_vocab))
        names = {openai_name(name): name for name in expected_shapes(dims)}
        tensors: dict[str, Tensor] = {}
        while file.left_bytes():
            name, tensor = _read_tensor(file, version)
            if name not in names or names[name] in tensors:
                raise ValueError(f"tensor {name!r:.60} is unknown or stored twice")
            tensors[names[name]] = tensor
    return replace(as_checkpoint(dims, tensors, str(path), "its header"), vocabulary=vocabulary)


def _read_header(file: File) -> tuple[ModelDimensions, int]:
    """Read up to the vocabulary; return the dimensions and the version of quantized blocks."""
    magic = file.read_all(4, "its header")
    if magic != MAGIC:
        raise ValueError(f"it begins with {magic!r}: expected {MAGIC!r}")
    *sizes, tensor_type = file.read_numbers(f"{len(DIMENSIONS) + 1}i", "its header")
    dims = ModelDimensions.from_openai(dict(zip(DIMENSIONS, sizes, strict=True)), file.path)
    filters, expected = file.read_numbers("2i", "its mel filters"), (dims.n_mels, N_FFT // 2 + 1)
    if filters != expected:
        raise ValueError(f"mel filters of shape {list(filters)}: expected {list(expected)}")
    file.skip(4 * prod(filters), "its mel filters")
    return dims, tensor_type // _VERSION_FACTOR


def _read_words(file: File, n_vocab: int) -> Iterator[bytes]:
    (n_words,) = file.read_numbers("i", "its vocabulary")
    if not 1 <= n_words <= n_vocab:
        raise ValueError(f"it has {n_words} tokens: expected 1 to {n_vocab}")
    for i in range(n_words):
        (n_bytes,) = file.read_numbers("i", "its vocabulary")
        if not 0 <= n_bytes <= _MAX_TOKEN_BYTES:  # one of Whisper's tokens is empty
            raise ValueError(f"token {i} has {n_bytes} bytes: expected 0 to {_MAX_TOKEN_BYTES}")
        yield file.read_all(n_bytes, "its vocabulary")


def _read_tensor(file: File, version: int) -> tuple[str, Tensor]:
    """Read what precedes a tensor, and skip its elements; return its name in the file, too."""
    n_dims, n_name_bytes, kind = file.read_numbers("3i", "the header of a tensor")
    if not 1 <= n_dims <= 3 or not 1 <= n_name_bytes <= _MAX_NAME_BYTES:
        found = f"a tensor of {n_dims} dimensions and a name of {n_name_bytes} bytes"
        raise ValueError(f"{found}: expected 1 to 3 and up to {_MAX_NAME_BYTES}")
    shape = file.read_numbers(f"{n_dims}i", "the header of a tensor")[::-1]
    name = file.read_all(n_name_bytes, "the header of a tensor").decode("utf-8", "replace")
    if kind not in (*_FLOATS, *_QUANTIZED):
        fact, expected = f"has {name!r:.60} of type {kind}", f"f32, f16, {', '.join(_QUANTIZED.values())}"
        remedy = "fetch the model in one of these, such as q5_0, q5_1 or q8_0, or quantize it to one"
        raise unfit(file.path, fact, expected, remedy)
    if kind in _QUANTIZED and version != _QUANTIZATION_VERSION:
        fact = f"has quantized tensors of version {version}"
        remedy = "quantize the model again with a newer whisper.cpp"
        raise unfit(file.path, fact, str(_QUANTIZATION_VERSION), remedy)
    size = BLOCK_SIZE if kind in _QUANTIZED else 1
    if min(shape) < 1 or shape[-1] % size:
        raise ValueError(f"{name!r:.60} of shape {list(shape)}: expected rows of a multiple of {size}")
    layout = BLOCKS[_QUANTIZED[kind]] if kind in _QUANTIZED else TYPES[_FLOATS[kind]]
    n_bytes = prod(shape) // size * layout.itemsize
    start = file.skip(n_bytes, f"the tensor {name!r:.60}")
    if name in _CONVOLUTION_BIASES and shape[1:] == (1,):
        shape = shape[:1]
    if kind in _FLOATS:
        return name, stored(file.path, _FLOATS[kind], shape, start)
    blocks = stored(file.path, "U8", (n_bytes,), start)
    return name, Tensor(shape, "F32", lambda: dequantize(blocks.load().view(layout)).reshape(shape))
