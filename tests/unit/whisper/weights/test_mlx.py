"""MLX's directories, whole and broken: each broken one is one clear line."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whisper.model
from numpy.typing import NDArray
from safetensors.numpy import save_file

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import mlx
from streamer.whisper.weights.checkpoint import Checkpoint
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.support import NANO, TINY_CONFIG, random_checkpoint, write_tiny
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.mlx_writer import is_quantized, mlx_tensors, rounded, write_mlx

# As small as a Whisper in groups of 64 can be: its encoder positions are fixed.
DIMS = ModelDimensions(2, 1500, 64, 2, 1, 40, 32, 64, 2, 1)
TINY = random_checkpoint(DIMS)

POSITIONS = "encoder.embed_positions.weight"
FILES = ["weights.npz", "weights.safetensors", "model.safetensors"]


def half(checkpoint: Checkpoint) -> Checkpoint:
    return Checkpoint(checkpoint.dims, {name: value.astype("float16") for name, value in checkpoint.tensors.items()})


refuse = partial(checks.refuse, mlx.load)


def change(directory: Path, tensors: dict[str, NDArray[Any]], **others: NDArray[Any] | None) -> None:
    """Write `weights.npz` with some tensors replaced, or left out. A dot in a name is written as two underscores."""
    changed = {**tensors, **{name.replace("__", "."): value for name, value in others.items()}}
    kept = {name: value for name, value in changed.items() if value is not None}
    np.savez(directory / "weights.npz", allow_pickle=False, **kept)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("checkpoint", [TINY, half(TINY)], ids=["f32", "f16"])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 64), (4, 32), (2, 32), (3, 64), (6, 32)])
def test_quantized_matrices(tmp_path: Path, bits: int, group_size: int, checkpoint: Checkpoint, file: str) -> None:
    loaded = mlx.load(write_mlx(tmp_path, checkpoint, bits, group_size, file))
    for name, values in checkpoint.tensors.items():
        quantized = is_quantized(openai_name(name), values)
        found = loaded.tensors[name]
        assert found.flags.c_contiguous
        if name != POSITIONS:
            assert found.dtype == (np.float32 if quantized else values.dtype)
            np.testing.assert_array_equal(found, rounded(values, bits, group_size) if quantized else values)


def test_only_some_matrices_may_be_quantized(tmp_path: Path) -> None:
    write_mlx(tmp_path, TINY, 4)
    embedding = TINY.tensors["decoder.embed_tokens.weight"]
    change(
        tmp_path,
        mlx_tensors(TINY, 4),
        decoder__token_embedding__weight=embedding,
        decoder__token_embedding__scales=None,
        decoder__token_embedding__biases=None,
    )
    np.testing.assert_array_equal(mlx.load(tmp_path).tensors["decoder.embed_tokens.weight"], embedding)


@pytest.mark.parametrize("width", [4, 64, 384, 1280])
def test_the_encoder_positions_are_those_of_openai(width: int) -> None:
    dims = ModelDimensions(2, 1500, width, 1, 1, 8, 32, width, 1, 1)
    found = mlx.sinusoids(dims.n_audio_ctx, dims.n_audio_state)
    assert found.dtype == np.float32
    # Between the two, the last bit of an angle of up to 1500.
    expected = whisper.model.sinusoids(1500, width).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1.3e-4)


def test_encoder_positions_in_the_file_are_taken(tmp_path: Path) -> None:
    write_mlx(tmp_path, TINY)
    change(tmp_path, mlx_tensors(TINY), encoder__positional_embedding=TINY.tensors[POSITIONS])
    np.testing.assert_array_equal(mlx.load(tmp_path).tensors[POSITIONS], TINY.tensors[POSITIONS])


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    """Also scales of quantized matrices, as MLX writes them for a model in bfloat16."""
    write_mlx(tmp_path, TINY, 4)
    upper = {
        name: (value.view("<u4") >> 16).astype("<u2") if value.dtype == np.float32 else value
        for name, value in mlx_tensors(TINY, 4).items()
    }
    save_file(upper, tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"U16"', b'"BF16"')
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])

    (tmp_path / "npz").mkdir()
    (tmp_path / "npz" / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    np.savez(
        tmp_path / "npz" / "weights.npz",
        allow_pickle=False,
        **{name: value.view("V2") if value.dtype == np.uint16 else value for name, value in upper.items()},
    )
    for checkpoint in (mlx.load(tmp_path), mlx.load(tmp_path / "npz")):
        bias = TINY.tensors["decoder.layer_norm.bias"]
        np.testing.assert_array_equal(
            checkpoint.tensors["decoder.layer_norm.bias"].view("<u4"), bias.view("<u4") >> 16 << 16
        )
        embedding = TINY.tensors["decoder.embed_tokens.weight"]
        assert np.abs(checkpoint.tensors["decoder.embed_tokens.weight"] - embedding).max() < 0.3
        kernel = TINY.tensors["encoder.conv2.weight"]
        np.testing.assert_allclose(checkpoint.tensors["encoder.conv2.weight"], kernel, rtol=0.01)


def test_a_config_of_hugging_face(tmp_path: Path) -> None:
    """As mlx-audio writes it, the tensors being MLX's."""
    dims = ModelDimensions.from_huggingface(TINY_CONFIG, tmp_path)
    tiny = random_checkpoint(dims)
    write_mlx(tmp_path, tiny, file="model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG), encoding="utf-8")
    assert mlx.matches(tmp_path)
    checkpoint = mlx.load(tmp_path)
    assert checkpoint.dims == dims
    np.testing.assert_array_equal(checkpoint.tensors["encoder.conv1.weight"], tiny.tensors["encoder.conv1.weight"])


def test_what_matches(tmp_path: Path) -> None:
    for file in FILES:
        assert mlx.matches(write_mlx(tmp_path / file, TINY, 4, file=file))
    assert not mlx.matches(write_tiny(tmp_path / "hf"))
    assert not mlx.matches(NANO)
    assert not mlx.matches(tmp_path)
    assert not mlx.matches(tmp_path / "none")
    assert not mlx.matches(tmp_path / "hf" / "config.json")
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"garbage")
    assert not mlx.matches(tmp_path / "hf")
    (tmp_path / "hf" / "config.json").write_bytes(b"\xff{")
    assert not mlx.matches(tmp_path / "hf")


def test_missing_files(tmp_path: Path) -> None:
    refuse(tmp_path, "config.json is missing")
    write_mlx(tmp_path, TINY)
    (tmp_path / "weights.npz").unlink()
    refuse(tmp_path, "has no weights", "expected one of model.safetensors, weights.safetensors, weights.npz")


def test_missing_tensors(tmp_path: Path) -> None:
    write_mlx(tmp_path, TINY)
    change(tmp_path, mlx_tensors(TINY), decoder__ln__bias=None)
    refuse(tmp_path, "lacks the tensor decoder.layer_norm.bias:", "config.json describes")
    change(tmp_path, mlx_tensors(TINY, 4), decoder__token_embedding__biases=None)
    refuse(tmp_path, "decoder.token_embedding.weight with scales and without biases", "convert the model again")
    change(tmp_path, mlx_tensors(TINY, 4), decoder__token_embedding__scales=None)
    refuse(tmp_path, "decoder.embed_tokens.weight of type 'U32': expected F16")


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    write_mlx(tmp_path, TINY)
    change(tmp_path, mlx_tensors(TINY), encoder__conv1__weight=TINY.tensors["encoder.conv1.weight"])
    refuse(tmp_path, "encoder.conv1.weight of shape [64, 3, 2], config.json asks for [64, 2, 3]")
    change(tmp_path, mlx_tensors(TINY), encoder__conv1__weight=np.zeros((64, 6), "float32"))
    refuse(tmp_path, "encoder.conv1.weight of shape [64, 6], config.json asks for [64, 2, 3]")
    change(tmp_path, mlx_tensors(TINY, 4), decoder__token_embedding__weight=np.zeros((40, 7), "uint32"))
    refuse(tmp_path, "decoder.token_embedding.weight quantized to U32 [40, 7]", "expected MLX's affine quantization")


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool", "object", "U4"])
def test_a_tensor_of_another_type(tmp_path: Path, dtype: str) -> None:
    write_mlx(tmp_path, TINY)
    tensors: dict[str, Any] = {**mlx_tensors(TINY), "decoder.ln.bias": np.zeros(64, dtype)}
    np.savez(tmp_path / "weights.npz", **tensors)
    refuse(tmp_path, "decoder.layer_norm.bias of type ", "expected F16, BF16 or F32")


def test_a_width_without_sinusoids(tmp_path: Path) -> None:
    dims = ModelDimensions(2, 1500, 3, 1, 1, 8, 32, 3, 1, 1)
    refuse(write_mlx(tmp_path, random_checkpoint(dims)), "lacks the tensor encoder.embed_positions.weight")
