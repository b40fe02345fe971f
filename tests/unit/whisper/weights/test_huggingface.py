"""Checkpoints, whole and broken: each broken one is one clear line."""

import copy
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from tests.unit.whisper.support import TINY_CONFIG, Untyped, write_tiny
from tests.unit.whisper.weights import checks


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny")


def refuse(directory: Path, *parts: str) -> None:
    checks.refuse(huggingface.load, directory, *parts)


def change(directory: Path, **tensors: np.ndarray | None) -> None:
    """Replace tensors, or take them out."""
    path = directory / "model.safetensors"
    kept = {**load_file(path), **{f"model.{name}": value for name, value in tensors.items()}}
    save_file({name: value for name, value in kept.items() if value is not None}, path)


def test_the_tied_output_projection_and_strangers_are_not_loaded(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    save_file({**load_file(path), "proj_out.weight": np.zeros((8, 4), "float32"), "ema": np.zeros(9, "int64")}, path)
    assert set(huggingface.load(tiny).tensors) == set(expected_shapes(huggingface.load(tiny).dims))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("max_shard_size", ["100KB", "1MB", "1GB"])
def test_the_embedded_model_as_transformers_saves_it(
    tmp_path: Path, reference: Untyped, max_shard_size: str, dtype: str
) -> None:
    model = copy.deepcopy(reference).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors").is_file() == (max_shard_size == "1GB")
    assert len(list(tmp_path.glob("*.safetensors"))) > (10 if max_shard_size == "100KB" else 0)
    checks.assert_tensors_equal(huggingface.load(tmp_path), checkpoint_of(model.model))


def test_a_model_without_its_head_has_names_without_prefix(tmp_path: Path, reference: Untyped) -> None:
    reference.model.save_pretrained(tmp_path)
    assert "encoder.conv1.bias" in load_file(tmp_path / "model.safetensors")
    checks.assert_tensors_equal(huggingface.load(tmp_path), checkpoint_of(reference.model))


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_embedded_model_as_pytorch_files(tmp_path: Path, reference: Untyped, dtype: str, n_shards: int) -> None:
    """As transformers before version 5 saves it with `safe_serialization=False`, the tied head too."""
    model = copy.deepcopy(reference).to(getattr(torch, dtype))
    model.config.save_pretrained(tmp_path)
    write_pytorch(tmp_path, model.state_dict(), n_shards)
    checks.assert_tensors_equal(huggingface.load(tmp_path), checkpoint_of(model.model))


def test_safetensors_are_preferred(tiny: Path) -> None:
    (tiny / "pytorch_model.bin").write_bytes(b"garbage")
    assert huggingface.load(tiny).tensors
    (tiny / "model.safetensors").unlink()
    refuse(tiny, "pytorch_model.bin cannot be read")


def test_an_adapter_says_what_to_do(tiny: Path) -> None:
    (tiny / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert huggingface.load(tiny).tensors  # an adapter's directory may hold the whole model too
    (tiny / "config.json").unlink()
    refuse(tiny, "holds an adapter alone", "use --model with the model that it was made for, and --lora")


@pytest.mark.parametrize(
    "shard",
    [
        "../tiny/model.safetensors", "/etc/passwd", "sub/model.safetensors", "sub\\model.safetensors", "..", ".", "",
        "C:model.safetensors", "C:\\model.safetensors", "\\\\host\\share", "a\0b", "a\nb", "model.safetensors\n",
        "x" * 10_000, "\ud800", None, 3, ["model.safetensors"],
    ],
)  # fmt: skip
def test_a_shard_outside_of_the_directory(tiny: Path, shard: object) -> None:
    write_index(tiny, {"model.encoder.conv1.bias": shard})
    refuse(tiny, "model.safetensors.index.json has 'model.encoder.conv1.bias' in ", "expected the plain name")


def test_an_index_that_does_not_fit_its_shards(tiny: Path) -> None:
    weight_map: dict[str, object] = dict.fromkeys(load_file(tiny / "model.safetensors"), "shard-1.safetensors")
    write_index(tiny, weight_map)
    refuse(tiny, "shard-1.safetensors is missing", "expected all shards that")
    (tiny / "hidden").rename(tiny / "shard-1.safetensors")
    assert huggingface.load(tiny).tensors
    whole = load_file(tiny / "shard-1.safetensors")
    save_file({name: value for name, value in whole.items() if "conv1" not in name}, tiny / "shard-1.safetensors")
    refuse(tiny, "index.json lacks the tensor encoder.conv1.bias and 1 more")
    values: tuple[object, ...] = (None, [], "model.safetensors")
    for value in values:
        (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": value}), encoding="utf-8")
        refuse(tiny, "index.json lacks weight_map")


def test_a_directory_in_the_place_of_a_file(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors").mkdir()
    refuse(tiny, "model.safetensors is missing")


@pytest.mark.parametrize("model_type", ["wav2vec2", None, 7, ["whisper"], "x" * 10_000])
def test_a_model_of_another_type(tiny: Path, model_type: object) -> None:
    write_tiny(tiny, {"model_type": model_type})
    refuse(tiny, "config.json has model_type", "expected 'whisper'")


@pytest.mark.parametrize("value", [2**60, 10**4000, 0, -1, True, 4.0, "4", None, [4], float("nan")])
@pytest.mark.parametrize("key", ["d_model", "vocab_size", "encoder_layers", "num_mel_bins", "max_target_positions"])
def test_a_size_that_is_none(tiny: Path, key: str, value: object) -> None:
    (tiny / "config.json").write_text(json.dumps({**TINY_CONFIG, key: value}), encoding="utf-8")
    refuse(tiny, f"config.json has {key} ", "expected a whole number from ", "fetch the file again")


@pytest.mark.parametrize("key", ["encoder_attention_heads", "decoder_attention_heads"])
def test_heads_that_do_not_divide_the_width(tiny: Path, key: str) -> None:
    write_tiny(tiny, {key: 3})
    refuse(tiny, "d_model 4 and 3 heads", "expected a multiple")


def test_another_length_of_audio(tiny: Path) -> None:
    write_tiny(tiny, {"max_source_positions": 750})
    refuse(tiny, "max_source_positions 750", "expected 1500 (30 s of audio)")


@pytest.mark.parametrize("activation", ["relu", "gelu_new", None, ["gelu"], "x" * 999])
def test_another_activation_is_refused(tiny: Path, activation: object) -> None:
    write_tiny(tiny, {"activation_function": activation})
    refuse(tiny, "config.json has activation_function ", "expected 'gelu'")


def test_an_output_projection_of_its_own_is_loaded(tiny: Path) -> None:
    write_tiny(tiny, {"tie_word_embeddings": False})
    refuse(tiny, "lacks the tensor proj_out.weight:")
    path = tiny / "model.safetensors"
    own = np.arange(32, dtype="float32").reshape(8, 4)
    save_file({**load_file(path), "proj_out.weight": own}, path)
    np.testing.assert_array_equal(huggingface.load(tiny).tensors["proj_out.weight"], own)
    write_tiny(tiny, {"tie_word_embeddings": "no"})
    refuse(tiny, "has tie_word_embeddings 'no': expected true or false")


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool"])
def test_a_tensor_of_another_type(tiny: Path, dtype: str) -> None:
    change(tiny, **{"decoder.embed_tokens.weight": np.zeros((8, 4), dtype)})
    refuse(tiny, "decoder.embed_tokens.weight of type", "expected F16, BF16 or F32")


@pytest.mark.parametrize("data", [b"garbage" * 100, b"\0" * 1000, b"\xff" * 1000, b"PK\x03\x04" + b"\0" * 500])
def test_weights_that_are_garbage(tiny: Path, data: bytes) -> None:
    (tiny / "model.safetensors").write_bytes(data)
    refuse(tiny, "model.safetensors cannot be read", "fetch it again")


@pytest.mark.parametrize("length", [2**20, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_announces_more_than_there_is(tiny: Path, length: int) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    refuse(tiny, "model.safetensors cannot be read")


def entry(shape: object, offsets: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("table", "n_bytes"),
    [
        ({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, 12),  # an overlap
        ({"a": entry([2], [0, 8]), "b": entry([2], [0, 8])}, 8),
        ({"a": entry([2], [0, 8]), "b": entry([2], [12, 20])}, 20),  # a gap
        ({"a": entry([2], [4, 12])}, 12),
        ({"a": entry([2], [0, 8])}, 12),  # bytes that are nobody's
        ({"a": entry([2], [0, 8])}, 4),
        ({"a": entry([2], [8, 0])}, 8),
        ({"a": entry([3], [0, 8])}, 8),
        ({"a": entry([2**60], [0, 2**62])}, 8),
        ({"a": entry([2**32, 2**32, 0], [0, 8])}, 8),
        ({"a": entry([-2], [0, 8])}, 8),
        ({"a": entry([-2, -1], [0, 8])}, 8),
        ({"a": entry([2], [-8, 0])}, 8),
        ({"a": entry([2.0], [0, 8])}, 8),
        ({"a": entry([True, 2], [0, 8])}, 8),
        ({"a": entry(["2"], [0, 8])}, 8),
        ({"a": entry(2, [0, 8])}, 8),
        ({"a": entry([2], [0])}, 8),
        ({"a": entry([2], [0, 8, 8])}, 8),
        ({"a": entry([2], None)}, 8),
        ({"a": entry([2], [0, 8], None)}, 8),
        ({"a": entry([2], [0, 8], ["F32"])}, 8),
        ({"a": None}, 0),
        ({"a\nb" * 100: [1]}, 0),
        ([], 0),
        (None, 0),
        ("F32", 0),
    ],
)
def test_a_table_that_lies(tiny: Path, table: object, n_bytes: int) -> None:
    join(tiny / "model.safetensors", json.dumps(table).encode(), bytes(n_bytes))
    refuse(tiny, "model.safetensors cannot be read", "fetch it again")
    with pytest.raises(SafetensorError), safe_open(tiny / "model.safetensors", "numpy"):
        pass  # the library says so too


def test_a_tensor_of_a_hundred_thousand_dimensions(tiny: Path) -> None:
    join(tiny / "model.safetensors", json.dumps({"a": entry([1] * 100_000, [0, 4])}).encode(), bytes(4))
    refuse(tiny, "model.safetensors cannot be read (a wrong entry for 'a')")


def test_a_type_that_would_break_the_line(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    header, data = split(path.read_bytes())
    join(path, header.replace(b'"F32"', b'"F\\n\\u001b[2J' + b"x" * 500 + b'"'), data)
    refuse(tiny, "of type 'F\\n", "expected F16, BF16 or F32")


@pytest.mark.parametrize("header", [b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"\xff{}", b"", b"{", b"{}{}"])
def test_a_table_that_is_not_json(tiny: Path, header: bytes) -> None:
    join(tiny / "model.safetensors", header, b"")
    refuse(tiny, "model.safetensors cannot be read")


def checkpoint_of(model: Untyped) -> Checkpoint:
    """Return the weights of transformers' `WhisperModel` as they have to be read."""
    state = {
        name: value.float() if value.dtype is torch.bfloat16 else value for name, value in model.state_dict().items()
    }
    dims = ModelDimensions.from_huggingface(model.config.to_dict(), Path("config.json"))
    return Checkpoint(dims, {name: value.numpy() for name, value in state.items()})


def write_pytorch(directory: Path, state: Mapping[str, Untyped], n_shards: int) -> None:
    if n_shards == 1:
        torch.save(state, directory / "pytorch_model.bin")
        return
    shards = {name: f"pytorch_model-{n % n_shards + 1:05}-of-{n_shards:05}.bin" for n, name in enumerate(state)}
    for file in set(shards.values()):
        torch.save({name: state[name] for name in state if shards[name] == file}, directory / file)
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}), encoding="utf-8")


def write_index(directory: Path, weight_map: Mapping[str, object]) -> None:
    """Write the index of shards, and take the whole file away."""
    if (directory / "model.safetensors").is_file():
        (directory / "model.safetensors").rename(directory / "hidden")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return header and tensors of a safetensors file."""
    length = struct.unpack("<Q", data[:8])[0]
    return data[8 : 8 + length], data[8 + length :]


def join(path: Path, header: bytes, tensors: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + tensors)
