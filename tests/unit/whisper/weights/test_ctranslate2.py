"""CTranslate2's files: those of its own converter, and what a variable may be."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import ctranslate2
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import ROOT, random_checkpoint
from tests.unit.whisper.weights.checks import assert_tensors_equal
from tests.unit.whisper.weights.ctranslate2_writer import packed, quantize, variables_of, write_ctranslate2
from tests.unit.whisper.weights.models import TINY

DIMS = ModelDimensions(2, 1500, 4, 2, 1, 8, 32, 4, 2, 2)

# `model.bin` of `small_checkpoint` in each precision, written by CTranslate2 4.8: the weights were loaded into
# transformers' model, and of this came `spec = WhisperLoader().get_model_spec(model)`, with the eight tokens as
# vocabulary; then `spec.optimize(quantization=kind)` and `spec.save(directory)`.
WRITTEN = ROOT / "tests" / "data" / "ctranslate2.zip"

MATRIX = "decoder/layer_0/self_attention/linear_0/weight"


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


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16"])
def test_what_its_own_converter_writes_is_read(tmp_path: Path, kind: str) -> None:
    checkpoint = small_checkpoint()
    expected = {name: rounded(values, kind, name) for name, values in checkpoint.tensors.items()}
    found = ctranslate2.load(extracted(tmp_path, kind))
    assert_tensors_equal(found, replace(checkpoint, tensors=expected))
    assert found.config == {"suppress_ids": [1]}


def test_sixteen_bits_have_a_scale_for_a_whole_matrix(tmp_path: Path) -> None:
    found, expected = ctranslate2.load(extracted(tmp_path, "int16")).tensors, small_checkpoint().tensors
    for name, values in expected.items():
        # The scale is that of all projections of one input, so that up to half a step of the largest is lost.
        np.testing.assert_allclose(found[name], values, rtol=0, atol=np.abs(values).max() / 500, err_msg=name)
        assert found[name].dtype == np.float32


def written(directory: Path, changes: Mapping[str, Any], checkpoint: Checkpoint = TINY) -> Path:
    """Write a model with some of its variables replaced, or left out."""
    variables = {name: value for name, value in {**variables_of(checkpoint), **changes}.items() if value is not None}
    (write_ctranslate2(directory, checkpoint) / "model.bin").write_bytes(packed(variables))
    return directory


def test_an_output_projection_of_its_own_is_read(tmp_path: Path) -> None:
    own = TINY.tensors["decoder.embed_tokens.weight"] + 1
    found = ctranslate2.load(written(tmp_path, {"decoder/projection/weight": own}))
    np.testing.assert_array_equal(found.tensors["proj_out.weight"], own)


def test_numbers_without_a_scale_for_each_row_are_refused(tmp_path: Path) -> None:
    numbers, scales = quantize(variables_of(TINY)[MATRIX])
    for scale in (None, scales[:-1], scales.astype(np.int8)):
        with pytest.raises(ModelError):
            ctranslate2.load(written(tmp_path, {MATRIX: numbers, f"{MATRIX}_scale": scale}))


@pytest.mark.filterwarnings("error")
def test_a_scale_of_zero_is_found_when_it_is_read(tmp_path: Path) -> None:
    numbers, scales = quantize(variables_of(TINY)["encoder/conv1/weight"])
    path = written(tmp_path, {"encoder/conv1/weight": numbers, "encoder/conv1/weight_scale": 0 * scales})
    with pytest.raises(ModelError):
        _ = ctranslate2.load(path).tensors["encoder.conv1.weight"]
