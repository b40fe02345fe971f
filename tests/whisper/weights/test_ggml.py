"""whisper.cpp's files, whole and broken: each broken one is one clear line."""

import struct
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import ggml, huggingface
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from streamer.whisper.weights.openai import openai_name
from tests.whisper.support import NANO, random_checkpoint
from tests.whisper.weights import checks
from tests.whisper.weights.ggml_writer import (
    QUANTIZED,
    TYPE_NUMBERS,
    pack_tensor,
    rounded,
    stored_type,
    write_ggml,
)

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


@pytest.mark.parametrize("type_name", ["f16", "f32"])
def test_the_embedded_model_is_the_same_through_ggml(tmp_path: Path, type_name: str) -> None:
    original = huggingface.load(NANO)
    filters = np.zeros((80, 201), np.float32)
    checkpoint = ggml.load(write_ggml(tmp_path / "nano.bin", original, [b"a"] * 512, filters, type_name))
    assert checkpoint.dims == original.dims
    assert set(checkpoint.tensors) == set(original.tensors)
    for name, values in original.tensors.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], values)


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


def test_opening_reads_no_tensor(path: Path) -> None:
    """A tensor that nobody asks for costs no memory, and one that is asked for not much more than itself."""
    tracemalloc.start()
    checkpoint = ggml.load(path)
    opened = tracemalloc.get_traced_memory()[1]
    values = checkpoint.tensors["encoder.embed_positions.weight"]
    read = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert opened < values.nbytes < read < 1.5 * values.nbytes + opened


@pytest.mark.parametrize("data", [b"GGUF" + b"\0" * 100, b"ggml" + b"\0" * 100, b"PK\3\4" * 30, b"\n" * 100])
def test_a_file_of_another_format(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(data)
    refuse(tmp_path / "x.bin", f"begins with {data[:4]!r}", "expected b'lmgg'")


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 2**31 - 1])
@pytest.mark.parametrize("index", range(10))
def test_a_size_that_is_none(path: Path, index: int, value: int) -> None:
    patch(path, 4 + 4 * index, value)
    refuse(path, f" {value}: expected a whole number from ")


@pytest.mark.parametrize("shape", [(-1, -1), (2**31 - 1, 2**31 - 1), (80, 201), (2, 200), (0, 201)])
def test_mel_filters_of_another_shape(path: Path, shape: tuple[int, int]) -> None:
    patch(path, HEADER_BYTES, *shape)
    refuse(path, f"mel filters of shape [{shape[0]}, {shape[1]}]: expected [2, 201]")


@pytest.mark.parametrize("n_words", [-(2**31), -1, 0, 41, 2**31 - 1])
def test_a_vocabulary_of_another_size(path: Path, n_words: int) -> None:
    patch(path, WORDS_BEGIN, n_words)
    refuse(path, f"table of {n_words} tokens: expected 1 to 40")


@pytest.mark.parametrize("n_bytes", [-(2**31), -1, 1025, 2**31 - 1])
def test_a_token_of_impossible_length(path: Path, n_bytes: int) -> None:
    patch(path, WORDS_BEGIN + 4, n_bytes)
    refuse(path, f"({n_bytes} bytes for token 0: expected 0 to 1024")


@pytest.mark.parametrize("n_dims", [-(2**31), -1, 0, 4, 2**31 - 1])
def test_a_tensor_of_impossible_dimensions(path: Path, n_dims: int) -> None:
    patch(path, TENSORS_BEGIN, n_dims)
    refuse(path, f"a tensor of {n_dims} dimensions", "expected 1 to 3")


@pytest.mark.parametrize("n_bytes", [-(2**31), -1, 0, 129, 2**31 - 1])
def test_a_name_of_impossible_length(path: Path, n_bytes: int) -> None:
    patch(path, TENSORS_BEGIN + 4, n_bytes)
    refuse(path, f"a name of {n_bytes} bytes: expected 1 to 3 and up to 128")


@pytest.mark.parametrize("rows", [2**31 - 1, 2**20])
def test_a_tensor_that_announces_more_than_there_is(path: Path, rows: int) -> None:
    at = header_of(path, "decoder.token_embedding.weight", 2)
    patch(path, at + 12, 32, rows)
    refuse(path, "ends within the tensor 'decoder.token_embedding.weight'", "fetch it again")
    patch(path, at + 12, 2**31 - 32, 2**31 - 1)
    refuse(path, "ends within the tensor 'decoder.token_embedding.weight'")


@pytest.mark.parametrize(("columns", "rows"), [(0, 40), (32, 0), (-32, 40), (-32, -40), (31, 40), (16, 80)])
def test_a_tensor_of_impossible_rows(path: Path, columns: int, rows: int) -> None:
    patch(path, header_of(path, "decoder.token_embedding.weight", 2) + 12, columns, rows)
    refuse(path, f"of shape [{rows}, {columns}]: expected rows of a multiple of 32")


def test_a_tensor_of_another_shape(path: Path) -> None:
    patch(path, header_of(path, "decoder.token_embedding.weight", 2) + 12, 64, 20)
    refuse(path, "decoder.embed_tokens.weight of shape [20, 64], its header asks for [40, 32]", "different models")


@pytest.mark.parametrize(
    "number",
    [4, 10, 12, 14, 30, -1, 2**31 - 1],
)
def test_a_type_that_cannot_be_read(path: Path, number: int) -> None:
    patch(path, header_of(path, "decoder.token_embedding.weight", 2) + 8, number)
    refuse(
        path,
        f"'decoder.token_embedding.weight' of type {number}:",
        "expected f32, f16, q4_0, q4_1",
        "fetch the model in one of these, such as q5_0, q5_1 or q8_0, or quantize it to one",
    )


@pytest.mark.parametrize(("file_type", "version"), [(8, 0), (1008, 1), (3008, 3), (-1, -1), (2**31 - 1, 2147483)])
def test_blocks_of_another_version(path: Path, file_type: int, version: int) -> None:
    patch(path, HEADER_BYTES - 4, file_type)
    refuse(path, f"quantized tensors of version {version}: expected 2", "quantize the model again")


def test_a_stranger(path: Path) -> None:
    with path.open("ab") as file:
        file.write(pack_tensor("decoder.proj.\x1b[2J\nweight" + "x" * 90, np.zeros((4, 4), np.float32), "f32"))
    refuse(path, "a tensor 'decoder.proj.\\x1b[2J\\n", "no file of whisper.cpp")


def test_a_tensor_twice(path: Path) -> None:
    with path.open("ab") as file:
        file.write(pack_tensor("decoder.ln.bias", np.zeros(32, np.float32), "f32"))
    refuse(path, "a tensor 'decoder.ln.bias': expected each of the model that its header describes once")


def test_missing_tensors(tmp_path: Path) -> None:
    path = write_ggml(tmp_path / "x.bin", drop(TINY, "decoder.layer_norm.bias"), WORDS, FILTERS, "f16")
    refuse(path, "lacks the tensor decoder.layer_norm.bias:", "its header describes")
    refuse(write_ggml(path, Checkpoint(DIMS, {}), WORDS, FILTERS, "f16"), "lacks the tensor", "more")


def test_a_file_that_is_cut_after_it_was_opened(path: Path) -> None:
    last = list(TINY.tensors)[-1]
    checkpoint = ggml.load(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    checkpoint.tensors["encoder.conv1.weight"]
    with pytest.raises(ModelError, match="became shorter while it was read"):
        checkpoint.tensors[last]
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        checkpoint.tensors[last]


def interesting(data: bytes | bytearray) -> list[int]:
    """Return where the file is structure rather than numbers."""
    places = [*range(HEADER_BYTES + 8), *range(WORDS_BEGIN, TENSORS_BEGIN)]
    for name, shape in expected_shapes(DIMS).items():
        end = data.index(openai_name(name).encode("ascii")) + len(openai_name(name))
        places += range(end - len(openai_name(name)) - 12 - 4 * len(shape), end)
    return places


check_loads_or_refuses = partial(checks.check_loads_or_refuses, ggml.load, most_bytes=4 << 20)


def good(tmp_path: Path, type_name: str) -> bytes:
    path = tmp_path / f"good-{type_name}.bin"
    return path.read_bytes() if path.exists() else write_ggml(path, TINY, WORDS, FILTERS, type_name).read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    type_name=st.sampled_from(["f16", *QUANTIZED]),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4),
)
@example(type_name="f16", flips=[(HEADER_BYTES - 4, 255)])
def test_flipped_bytes_never_do_harm(tmp_path: Path, type_name: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray(good(tmp_path, type_name))
    places = interesting(data)
    for place, mask in flips:
        data[places[place % len(places)]] ^= mask
    (tmp_path / "bad.bin").write_bytes(data)
    check_loads_or_refuses(tmp_path / "bad.bin")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=75)
@given(place=st.integers(0, 10_000), number=st.integers(-(2**31), 2**31 - 1))
def test_lying_numbers_never_do_harm(tmp_path: Path, place: int, number: int) -> None:
    data = bytearray(good(tmp_path, "q4_1"))
    places = interesting(data)
    struct.pack_into("<i", data, places[place % len(places)], number)
    (tmp_path / "bad.bin").write_bytes(data)
    check_loads_or_refuses(tmp_path / "bad.bin")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(share=st.floats(0, 1, exclude_max=True), structure=st.booleans())
@example(share=0.0, structure=False)
def test_a_truncated_file_is_always_refused(tmp_path: Path, share: float, structure: bool) -> None:
    data = good(tmp_path, "q8_0")
    places = interesting(data) if structure else range(len(data))
    (tmp_path / "bad.bin").write_bytes(data[: places[int(share * len(places))]])
    with checks.at_most(4 << 20):
        refuse(tmp_path / "bad.bin")
