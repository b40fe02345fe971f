"""CTranslate2's files: those of its own converter, and broken ones."""

import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import ctranslate2, formats
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import ROOT, random_checkpoint
from tests.unit.whisper.weights.checks import assert_tensors_equal, at_most, refuse
from tests.unit.whisper.weights.ctranslate2_writer import packed, quantize, variables_of, write_ctranslate2

DIMS = ModelDimensions(2, 1500, 4, 2, 1, 8, 32, 4, 2, 2)

# `model.bin` of `small_checkpoint` in each precision, written by CTranslate2 4.8: the weights were loaded into
# transformers' model, and of this came `spec = WhisperLoader().get_model_spec(model)`, with the eight tokens as
# vocabulary; then `spec.optimize(quantization=kind)` and `spec.save(directory)`.
WRITTEN = ROOT / "tests" / "data" / "ctranslate2.zip"
KINDS = ("float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16", "int16")


def small_checkpoint() -> Checkpoint:
    """Return weights of which some are equal: CTranslate2 keeps these once."""
    tensors = dict(random_checkpoint(DIMS).tensors)
    tensors["encoder.embed_positions.weight"] = np.zeros((1500, 4), np.float32)
    tensors["decoder.layers.1.fc1.bias"] = tensors["decoder.layers.0.fc1.bias"]
    tensors["decoder.layers.1.fc2.weight"] = tensors["decoder.layers.0.fc2.weight"]
    return Checkpoint(DIMS, tensors)


def extracted(directory: Path, kind: str) -> Path:
    with zipfile.ZipFile(WRITTEN) as archive:
        (directory / "model.bin").write_bytes(archive.read(f"{kind}.bin"))
    (directory / "config.json").write_text(json.dumps({"suppress_ids": [1]}), encoding="utf-8")
    return directory


def rounded(values: FloatArray, kind: str, name: str) -> FloatArray:
    """Return what CTranslate2 keeps of a tensor, computed another way than by the loader."""
    quantized = name.endswith(("_proj.weight", "fc1.weight", "fc2.weight", "embed_tokens.weight"))
    quantized = quantized or (name.startswith("encoder.conv") and name.endswith("weight"))
    if kind.startswith("int8") and quantized:
        numbers, scales = quantize(values)
        return numbers * (1 / scales).reshape(-1, *(1,) * (values.ndim - 1))
    if kind.endswith("bfloat16"):
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return values.astype(np.float16) if kind.endswith("float16") else values


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "int16"])
def test_what_its_own_converter_writes(tmp_path: Path, kind: str) -> None:
    checkpoint = small_checkpoint()
    expected = {name: rounded(values, kind, name) for name, values in checkpoint.tensors.items()}
    found = formats.find(extracted(tmp_path, kind))
    assert found == (ctranslate2, tmp_path)
    assert_tensors_equal(ctranslate2.load(tmp_path), replace(checkpoint, tensors=expected))


def test_sixteen_bits_with_a_scale_for_a_whole_matrix(tmp_path: Path) -> None:
    found, expected = ctranslate2.load(extracted(tmp_path, "int16")).tensors, small_checkpoint().tensors
    for name, values in expected.items():
        # The scale is that of all projections of one input, so that up to half a step of the largest is lost.
        np.testing.assert_allclose(found[name], values, rtol=0, atol=np.abs(values).max() / 500, err_msg=name)
        assert found[name].dtype == np.float32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_ctranslate2(tmp_path, small_checkpoint()) / "model.bin"


def test_an_output_projection_of_its_own(tmp_path: Path) -> None:
    variables = variables_of(small_checkpoint())
    own = variables["decoder/embeddings/weight"] + 1
    path = write_ctranslate2(tmp_path, small_checkpoint())
    (path / "model.bin").write_bytes(packed({**variables, "decoder/projection/weight": own}))
    np.testing.assert_array_equal(ctranslate2.load(path).tensors["proj_out.weight"], own)


def test_heads_of_64_where_the_file_does_not_count_them(path: Path) -> None:
    dims = ModelDimensions(1, 1500, 128, 2, 1, 8, 32, 128, 2, 1)
    variables = variables_of(random_checkpoint(dims))
    path.write_bytes(packed({name: values for name, values in variables.items() if "num_heads" not in name}))
    assert ctranslate2.load(path).dims == dims


def test_what_matches(path: Path) -> None:
    for found in (path, path.parent):
        assert ctranslate2.matches(found)
        assert formats.find(found) == (ctranslate2, found)
    (path.parent / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    assert not ctranslate2.matches(path.parent)
    for data in (b"", b"lmgg" + bytes(100), b"PK\3\4" + bytes(100), bytes(100), b"\6\0\0\0\x0c\0Whisper"):
        path.write_bytes(data)
        assert not ctranslate2.matches(path)


@pytest.mark.parametrize("kind", ["TransformerSpec", "TransformerDecoderSpec", "Wav2Vec2Spec"])
def test_another_network_of_the_same_name(path: Path, kind: str) -> None:
    path.write_bytes(packed({}, kind=kind))
    assert formats.find(path) == (ctranslate2, path)
    refuse(
        ctranslate2.load,
        path,
        f"is a '{kind}' in version 6 of CTranslate2's format",
        "expected 'WhisperSpec'",
        "choose a Whisper",
    )


@pytest.mark.parametrize("version", [5, 7, 255])
def test_another_version(path: Path, version: int) -> None:
    path.write_bytes(packed({}, version=version))
    refuse(ctranslate2.load, path, f"in version {version} of CTranslate2's format", "in version 6", "convert it again")


def test_numbers_without_their_scale(path: Path) -> None:
    variables = variables_of(small_checkpoint())
    name = "decoder/layer_0/self_attention/linear_0/weight"
    numbers, scales = quantize(variables[name])
    for scale in ({}, {f"{name}_scale": scales[:-1]}, {f"{name}_scale": scales.astype(np.int8)}):
        path.write_bytes(packed({**variables, name: numbers, **scale}))
        refuse(ctranslate2.load, path, "decoder.layers.0.self_attn.q_proj.weight of type 'I8'", "convert the model")


def test_a_scale_of_zero(path: Path) -> None:
    variables = variables_of(small_checkpoint())
    numbers, scales = quantize(variables["encoder/conv1/weight"])
    scale = {"encoder/conv1/weight_scale": 0 * scales}
    path.write_bytes(packed({**variables, "encoder/conv1/weight": numbers, **scale}))
    with pytest.raises(ModelError, match=r"encoder\.conv1\.weight that is not finite"):
        ctranslate2.load(path).tensors["encoder.conv1.weight"]


@pytest.mark.parametrize(
    "name", ["encoder/conv1/weight", "decoder/embeddings/weight", "decoder/layer_1/ffn/linear_0/bias"]
)
def test_a_variable_that_is_missing_or_of_another_shape(path: Path, name: str) -> None:
    variables = variables_of(small_checkpoint())
    path.write_bytes(packed({**variables, name: variables[name].reshape(-1, 1, 1, 1)}))
    refuse(ctranslate2.load, path)
    del variables[name]
    path.write_bytes(packed(variables))
    refuse(ctranslate2.load, path)


def test_a_missing_config(path: Path) -> None:
    (path.parent / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        ctranslate2.load(path)


def header(n_variables: int = 1, *variable: bytes) -> bytes:
    return packed({})[:-8] + struct.pack("<I", n_variables) + b"".join(variable)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (header()[:-2], "ends within its header"),
        (header(2**32 - 1), "4294967295 variables: expected up to 16384"),
        (header(1, b"\xff\xff"), "ends within a name"),
        (header(1, b"\2\0a\0\xff"), "ends within the header of a variable"),
        (header(1, b"\2\0a\0" + struct.pack("<BIBI", 1, 4, 6, 16)), "type 6"),
        (header(1, b"\2\0a\0" + struct.pack("<BIBI", 1, 4, 0, 17)), "in 17 bytes"),
        (header(1, b"\2\0a\0" + struct.pack("<BIIBI", 2, 2**31, 2**31, 0, 0)), "in 0 bytes"),
        (header(1, b"\2\0a\0" + struct.pack("<BIBI", 1, 2**30 - 1, 0, 2**32 - 4)), "ends within the variable 'a'"),
        (header(0, struct.pack("<I", 2**32 - 1)), "ends within a name"),
        (header(0), "ends within its aliases"),
    ],
)
def test_lengths_that_lie(path: Path, data: bytes, said: str) -> None:
    path.write_bytes(data)
    with at_most(1 << 20):
        refuse(ctranslate2.load, path, said)


@pytest.mark.parametrize("name", ["\x1b[2J\n", "x" * 60_000])
def test_a_name_from_outside_is_shown_in_one_line(path: Path, name: str) -> None:
    path.write_bytes(header(1, struct.pack("<H", len(name)) + name.encode() + struct.pack("<BIBI", 1, 4, 9, 16)))
    refuse(ctranslate2.load, path, "of shape [4] and type 9")
