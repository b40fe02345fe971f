"""whisper.cpp's files: what was written comes back; refusals are rows of `weights.toml`."""

import struct
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamer.whisper.weights import ggml
from streamer.whisper.weights.ggml_blocks import BLOCK_SIZE, BLOCKS, dequantize
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.support import ROOT
from tests.unit.whisper.weights.ggml_writer import TYPE_NUMBERS, as_read, stored_type, write_ggml
from tests.unit.whisper.weights.models import TINY

WORDS = [b"a", b"", b"\xff\xfe", " Wörter".encode(), b"x" * 128]
FILTERS = np.random.default_rng(0).random((2, 201), dtype=np.float32)

BY_REFERENCE = tomllib.loads((ROOT / "tests" / "data" / "quantized.toml").read_text(encoding="utf-8"))["ggml"]


@pytest.mark.parametrize("type_name", list(TYPE_NUMBERS))
def test_every_type_gives_what_was_written(tmp_path: Path, type_name: str) -> None:
    checkpoint = ggml.load(write_ggml(tmp_path / "x.bin", TINY, WORDS, FILTERS, type_name))
    assert (checkpoint.dims, list(checkpoint.vocabulary)) == (TINY.dims, WORDS)
    assert set(checkpoint.tensors) == set(TINY.tensors)
    for name, values in TINY.tensors.items():
        found, stored = checkpoint.tensors[name], stored_type(openai_name(name), values.ndim, type_name)
        assert found.dtype == (np.float16 if stored == "f16" else np.float32)
        np.testing.assert_array_equal(found, as_read(values, stored))


def test_a_bias_of_a_convolution_may_be_a_vector(tmp_path: Path) -> None:
    name, tensors = "encoder.conv1.bias", dict(TINY.tensors)
    bias = tensors.pop(name)
    path = write_ggml(tmp_path / "x.bin", replace(TINY, tensors=tensors), WORDS, FILTERS, "f32")
    with path.open("ab") as file:
        file.write(struct.pack("<iiii", 1, len(name), 0, len(bias)) + name.encode() + bias.tobytes())
    np.testing.assert_array_equal(ggml.load(path).tensors[name], bias)


@pytest.mark.parametrize("type_name", list(BY_REFERENCE))
def test_a_block_is_read_as_the_reference_reads_it(type_name: str) -> None:
    data, numbers = BY_REFERENCE[type_name]
    values = dequantize(np.frombuffer(bytes.fromhex(data), BLOCKS[type_name]))
    assert values.dtype == np.float32
    assert values.tolist() == [[float(number) for number in numbers.split()]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("type_name", list(BLOCKS))
def test_any_bytes_at_all_are_numbers(type_name: str) -> None:
    data = np.random.default_rng(1).integers(0, 256, (3000, BLOCKS[type_name].itemsize), dtype=np.uint8)
    assert dequantize(np.frombuffer(data.tobytes(), BLOCKS[type_name])).shape == (3000, BLOCK_SIZE)
