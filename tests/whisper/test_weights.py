"""Checkpoints, whole and broken: each broken one is one clear line."""

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import expected_shapes, huggingface
from tests.whisper.support import NANO, TINY_CONFIG, write_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny")


def refuse(directory: Path, *parts: str) -> None:
    """Check that loading fails with one line that holds all of these."""
    with pytest.raises(ModelError) as caught:
        huggingface.load(directory)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for part in (str(directory), *parts):
        assert part in message


def change(directory: Path, **tensors: np.ndarray | None) -> None:
    """Replace tensors, or take them out."""
    path = directory / "model.safetensors"
    kept = {**load_file(path), **{f"model.{name}": value for name, value in tensors.items()}}
    save_file({name: value for name, value in kept.items() if value is not None}, path)


def test_the_embedded_model_loads() -> None:
    checkpoint = huggingface.load(NANO)
    assert checkpoint.dims == ModelDimensions(80, 1500, 192, 3, 4, 2022, 448, 192, 3, 3)
    assert checkpoint.dims.audio_head_size == checkpoint.dims.text_head_size == 64
    assert checkpoint.dims.cache_size == 447
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == expected_shapes(checkpoint.dims)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_both_float_types_load_as_they_are(tmp_path: Path, dtype: str) -> None:
    tensors = huggingface.load(write_tiny(tmp_path, dtype=dtype)).tensors
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype.name for tensor in tensors.values()} == {dtype}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, stored[f"model.{name}"])


def test_the_tied_output_projection_and_strangers_are_not_loaded(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    save_file({**load_file(path), "proj_out.weight": np.zeros((8, 4), "float32"), "ema": np.zeros(9, "int64")}, path)
    assert set(huggingface.load(tiny).tensors) == set(expected_shapes(huggingface.load(tiny).dims))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tiny: Path, file: str) -> None:
    (tiny / file).unlink()
    refuse(tiny, f"{file} is missing", "expected" if file != "config.json" else "holds", "fetch it again")


def test_a_directory_in_the_place_of_a_file(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors").mkdir()
    refuse(tiny, "model.safetensors is missing")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"d_model": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut", "not utf-8", "deep", "long number"],
)
def test_a_config_that_is_not_json(tiny: Path, text: bytes) -> None:
    (tiny / "config.json").write_bytes(text)
    refuse(tiny, "config.json is not JSON", "expected a JSON object", "fetch it again")


@pytest.mark.parametrize("text", ["[]", "null", "3", '"whisper"'])
def test_a_config_that_is_no_object(tiny: Path, text: str) -> None:
    (tiny / "config.json").write_text(text, encoding="utf-8")
    refuse(tiny, "config.json holds a JSON", "expected an object")


def test_a_config_of_many_megabytes_is_not_read(tiny: Path) -> None:
    (tiny / "config.json").write_bytes(b" " * (5 << 20))
    refuse(tiny, "config.json has more than 4 MiB")


@pytest.mark.parametrize("model_type", ["wav2vec2", None, 7, ["whisper"], "x" * 10_000])
def test_a_model_of_another_type(tiny: Path, model_type: object) -> None:
    write_tiny(tiny, {"model_type": model_type})
    refuse(tiny, "config.json has model_type", "expected 'whisper'")


@pytest.mark.parametrize("value", [2**60, 10**4000, 0, -1, True, 4.0, "4", None, [4], float("nan")])
@pytest.mark.parametrize("key", ["d_model", "vocab_size", "encoder_layers", "num_mel_bins", "max_target_positions"])
def test_a_size_that_is_none(tiny: Path, key: str, value: object) -> None:
    (tiny / "config.json").write_text(json.dumps({**TINY_CONFIG, key: value}), encoding="utf-8")
    refuse(tiny, f"config.json has {key} ", "expected a whole number from ", "fetch the file again")


@pytest.mark.parametrize("key", [key for key in TINY_CONFIG if key != "model_type"])
def test_a_size_that_is_missing(tiny: Path, key: str) -> None:
    config = {name: value for name, value in TINY_CONFIG.items() if name != key}
    (tiny / "config.json").write_text(json.dumps(config), encoding="utf-8")
    refuse(tiny, f"config.json has {key} None")


@pytest.mark.parametrize("key", ["encoder_attention_heads", "decoder_attention_heads"])
def test_heads_that_do_not_divide_the_width(tiny: Path, key: str) -> None:
    write_tiny(tiny, {key: 3})
    refuse(tiny, "d_model 4 and 3 heads", "expected a multiple")


def test_another_length_of_audio(tiny: Path) -> None:
    write_tiny(tiny, {"max_source_positions": 750})
    refuse(tiny, "max_source_positions 750", "expected 1500 (30 s of audio)")


def test_missing_tensors_are_counted(tiny: Path) -> None:
    change(tiny, **{"decoder.layer_norm.bias": None})
    refuse(tiny, "lacks the tensor decoder.layer_norm.bias:", "fetch it again, all of it")
    change(tiny, **{"encoder.conv1.bias": None, "encoder.conv2.bias": None})
    refuse(tiny, "lacks the tensor decoder.layer_norm.bias and 2 more")


def test_a_tensor_of_another_shape(tiny: Path) -> None:
    change(tiny, **{"encoder.conv1.weight": np.zeros((4, 5, 3), "float32")})
    refuse(tiny, "encoder.conv1.weight of shape [4, 5, 3], config.json asks for [4, 2, 3]", "different models")


def test_weights_of_another_size(tiny: Path) -> None:
    write_tiny(tiny, {"encoder_layers": 2})
    refuse(tiny, "lacks the tensor encoder.layers.1.")
    write_tiny(tiny, {"vocab_size": 9})
    refuse(tiny, "decoder.embed_tokens.weight of shape [8, 4], config.json asks for [9, 4]")


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool"])
def test_a_tensor_of_another_type(tiny: Path, dtype: str) -> None:
    change(tiny, **{"decoder.embed_tokens.weight": np.zeros((8, 4), dtype)})
    refuse(tiny, "decoder.embed_tokens.weight of type", "expected F16 or F32")


def test_bfloat16_is_refused(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    header, tensors = split(path.read_bytes())
    join(path, header.replace(b'"F32"', b'"BF16"'), tensors)
    with pytest.raises(ModelError, match=r"type BF16|cannot be read"):
        huggingface.load(tiny)


@pytest.mark.parametrize("n_bytes", [0, 1, 7, 8, 9, 100, 2000, -1000, -1])
def test_truncated_weights(tiny: Path, n_bytes: int) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:n_bytes])
    refuse(tiny, "model.safetensors cannot be read", "truncated or no safetensors file", "fetch it again")


@pytest.mark.parametrize("data", [b"garbage" * 100, b"\0" * 1000, b"\xff" * 1000, b"PK\x03\x04" + b"\0" * 500])
def test_weights_that_are_garbage(tiny: Path, data: bytes) -> None:
    (tiny / "model.safetensors").write_bytes(data)
    refuse(tiny, "model.safetensors cannot be read", "fetch it again")


@pytest.mark.parametrize("length", [2**20, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_announces_more_than_there_is(tiny: Path, length: int) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    refuse(tiny, "model.safetensors cannot be read")


@pytest.mark.parametrize("end", [2**40, 2**63, 2**64 - 1, 2**80])
def test_a_tensor_that_announces_more_than_there_is(tiny: Path, end: int) -> None:
    path = tiny / "model.safetensors"
    header, tensors = split(path.read_bytes())
    table = json.loads(header)
    table["model.encoder.conv1.weight"]["data_offsets"][1] = end
    table["model.encoder.conv1.weight"]["shape"] = [end // 4]
    join(path, json.dumps(table).encode(), tensors)
    refuse(tiny, "model.safetensors cannot be read")


def test_a_large_stranger_costs_no_memory(tiny: Path) -> None:
    """A sparse file with a gigabyte that nobody asked for."""
    path = tiny / "model.safetensors"
    header, tensors = split(path.read_bytes())
    table = json.loads(header)
    table["stranger"] = {"dtype": "F32", "shape": [1 << 28], "data_offsets": [len(tensors), len(tensors) + (1 << 30)]}
    join(path, json.dumps(table).encode(), tensors)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + (1 << 30))
    tracemalloc.start()
    huggingface.load(tiny)
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
@example(flips=[(0.0, 255)])
def test_flipped_bytes_never_do_harm(tmp_path: Path, flips: list[tuple[float, int]]) -> None:
    if not (tmp_path / "good").is_dir():
        write_tiny(tmp_path / "good")
        write_tiny(tmp_path / "bad")
    data = bytearray((tmp_path / "good" / "model.safetensors").read_bytes())
    length = 8 + struct.unpack("<Q", data[:8])[0]  # the header is where harm can be done
    for place, mask in flips:
        data[int(place * length)] ^= mask
    (tmp_path / "bad" / "model.safetensors").write_bytes(data)
    message = ""
    tracemalloc.start()
    try:
        checkpoint = huggingface.load(tmp_path / "bad")
        assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == expected_shapes(checkpoint.dims)
    except ModelError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "\n" not in message
    assert peak < 20 << 20


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return header and tensors of a safetensors file."""
    length = struct.unpack("<Q", data[:8])[0]
    return data[8 : 8 + length], data[8 + length :]


def join(path: Path, header: bytes, tensors: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + tensors)
