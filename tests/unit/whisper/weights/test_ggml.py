"""whisper.cpp's files, whole and broken: each broken one is one clear line."""

import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import ggml
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.support import random_checkpoint
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.ggml_writer import TYPE_NUMBERS, pack_tensor, rounded, stored_type, write_ggml

# As small as a Whisper in blocks of 32 can be: its encoder positions are fixed.
DIMS = ModelDimensions(2, 1500, 32, 2, 1, 40, 32, 32, 2, 1)
TINY = random_checkpoint(DIMS)
WORDS = [b"a", b"", b"\xff\xfe", " Wörter".encode(), b"x" * 128]
FILTERS = np.random.default_rng(0).random((2, 201), dtype=np.float32)

HEADER_BYTES = 48
WORDS_BEGIN = HEADER_BYTES + 8 + FILTERS.nbytes
TENSORS_BEGIN = WORDS_BEGIN + 4 + sum(4 + len(word) for word in WORDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_ggml(tmp_path / "ggml-tiny.bin", TINY, WORDS, FILTERS, "q5_0")


refuse = partial(checks.refuse, ggml.load)


def patch(path: Path, offset: int, *numbers: int) -> None:
    """Overwrite whole numbers of 32 bits."""
    data = bytearray(path.read_bytes())
    struct.pack_into(f"<{len(numbers)}i", data, offset, *numbers)
    path.write_bytes(data)


def header_of(path: Path, name: str, n_dims: int) -> int:
    """Return where the header of a tensor begins."""
    return path.read_bytes().index(name.encode("ascii")) - 4 * (3 + n_dims)


def drop(checkpoint: Checkpoint, name: str) -> Checkpoint:
    return Checkpoint(checkpoint.dims, {key: value for key, value in checkpoint.tensors.items() if key != name})


@pytest.mark.parametrize("type_name", list(TYPE_NUMBERS))
def test_every_type_gives_what_was_written(tmp_path: Path, type_name: str) -> None:
    checkpoint = ggml.load(write_ggml(tmp_path / "x.bin", TINY, WORDS, FILTERS, type_name))
    assert checkpoint.dims == DIMS
    assert set(checkpoint.tensors) == set(TINY.tensors)
    for name, values in TINY.tensors.items():
        found, stored = checkpoint.tensors[name], stored_type(openai_name(name), values.ndim, type_name)
        assert found.dtype == (np.float16 if stored == "f16" else np.float32)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, rounded(values, stored))


def test_a_bias_of_a_convolution_may_be_a_vector(tmp_path: Path) -> None:
    path = write_ggml(tmp_path / "x.bin", drop(TINY, "encoder.conv1.bias"), WORDS, FILTERS, "f32")
    bias = TINY.tensors["encoder.conv1.bias"]
    name = b"encoder.conv1.bias"
    with path.open("ab") as file:
        file.write(struct.pack("<iiii", 1, len(name), 0, 32) + name + bias.tobytes())
    np.testing.assert_array_equal(ggml.load(path).tensors["encoder.conv1.bias"], bias)


@pytest.mark.parametrize("type_name", ["f16", "q8_0"])
def test_the_vocabulary_is_read_as_it_is(tmp_path: Path, type_name: str) -> None:
    path = write_ggml(tmp_path / "x.bin", TINY, WORDS, FILTERS, type_name)
    assert list(ggml.load(path).vocabulary) == WORDS


@pytest.mark.parametrize("data", [b"GGUF" + b"\0" * 100, b"ggml" + b"\0" * 100, b"PK\3\4" * 30, b"\n" * 100])
def test_a_file_of_another_format(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(data)
    refuse(tmp_path / "x.bin", f"begins with {data[:4]!r}", "expected b'lmgg'")


LEAST, MOST = -(2**31), 2**31 - 1

# Numbers that lie, where they are in the file, and what is said of them.
LIES: list[tuple[int, tuple[int, ...], str]] = [
    *((4 + 4 * i, (n,), f" {n}: expected a whole number from ") for i in range(10) for n in (LEAST, -1, 0, MOST)),
    *(
        (HEADER_BYTES, shape, f"mel filters of shape {list(shape)}: expected [2, 201]")
        for shape in ((-1, -1), (MOST, MOST), (80, 201), (2, 200), (0, 201))
    ),
    *((WORDS_BEGIN, (n,), f"table of {n} tokens: expected 1 to 40") for n in (LEAST, -1, 0, 41, MOST)),
    *((WORDS_BEGIN + 4, (n,), f"({n} bytes for token 0: expected 0 to 1024") for n in (LEAST, -1, 1025, MOST)),
    *((TENSORS_BEGIN, (n,), f"a tensor of {n} dimensions and a name of ") for n in (LEAST, -1, 0, 4, MOST)),
    *((TENSORS_BEGIN + 4, (n,), f" of {n} bytes: expected 1 to 3 and up to 128") for n in (LEAST, -1, 0, 129, MOST)),
    *(
        (HEADER_BYTES - 4, (number,), f"quantized tensors of version {version}: expected 2; quantize the model again")
        for number, version in ((8, 0), (1008, 1), (3008, 3), (-1, -1), (MOST, 2147483))
    ),
]


@pytest.mark.parametrize(("offset", "numbers", "said"), LIES)
def test_a_number_that_lies(path: Path, offset: int, numbers: tuple[int, ...], said: str) -> None:
    patch(path, offset, *numbers)
    refuse(path, said)


# The same of the header of a matrix: its type, and its shape, columns first.
EMBEDDING = "decoder.token_embedding.weight"
TYPE, SHAPE = 8, 12
LIES_OF_A_MATRIX: list[tuple[int, tuple[int, ...], str]] = [
    *(
        (TYPE, (n,), f"'{EMBEDDING}' of type {n}: expected f32, f16, q4_0, q4_1, q5_0, q5_1, q8_0; fetch the model in")
        for n in (4, 10, 12, 14, 30, -1, MOST)
    ),
    *(
        (SHAPE, shape, f"ends within the tensor '{EMBEDDING}'")
        for shape in ((32, MOST), (32, 2**20), (MOST - 31, MOST))
    ),
    *(
        (SHAPE, (columns, rows), f"of shape [{rows}, {columns}]: expected rows of a multiple of 32")
        for columns, rows in ((0, 40), (32, 0), (-32, 40), (-32, -40), (31, 40), (16, 80))
    ),
]


@pytest.mark.parametrize(("offset", "numbers", "said"), LIES_OF_A_MATRIX)
def test_a_matrix_whose_header_lies(path: Path, offset: int, numbers: tuple[int, ...], said: str) -> None:
    patch(path, header_of(path, EMBEDDING, 2) + offset, *numbers)
    refuse(path, said)


def test_a_stranger(path: Path) -> None:
    with path.open("ab") as file:
        file.write(pack_tensor("decoder.proj.\x1b[2J\nweight" + "x" * 90, np.zeros((4, 4), np.float32), "f32"))
    refuse(path, "a tensor 'decoder.proj.\\x1b[2J\\n", "no file of whisper.cpp")


def test_a_tensor_twice(path: Path) -> None:
    with path.open("ab") as file:
        file.write(pack_tensor("decoder.ln.bias", np.zeros(32, np.float32), "f32"))
    refuse(path, "a tensor 'decoder.ln.bias': expected each of the model that its header describes once")
