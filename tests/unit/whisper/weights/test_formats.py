"""Which format a path is of."""

import json
from pathlib import Path

import pytest

from streamer.errors import ModelError
from streamer.whisper.weights import ctranslate2, formats, huggingface, mlx
from tests.unit.whisper.support import NANO, write_tiny
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tests.unit.whisper.weights.models import TINY, add_files

PARTS = [
    *("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "weights.npz", "openvino_decoder_model.xml"),
]


@pytest.mark.parametrize("name", [*PARTS, "encoder_model.onnx", "onnx/encoder_model.onnx", "base.pt", "ggml-base.bin"])
@pytest.mark.parametrize("n_bytes", [0, 999, 1000])
def test_a_file_that_is_no_whole_checkpoint_is_refused(tmp_path: Path, name: str, n_bytes: int) -> None:
    add_files(tmp_path / "x", {name: "x" * n_bytes, "config.json": json.dumps({"model_type": "whisper"})})
    with pytest.raises(ModelError):
        formats.find(tmp_path / name)


@pytest.mark.parametrize("folder", ["", "onnx/"])
def test_a_directory_of_onnx_alone_is_refused_and_beside_weights_it_does_not_matter(
    tmp_path: Path, folder: str
) -> None:
    add_files(tmp_path / "x", {f"{folder}encoder_model.onnx": "x", "config.json": "{}"})
    with pytest.raises(ModelError):
        formats.find(tmp_path)
    add_files(tmp_path / "x", {"model.safetensors": "x"})
    assert formats.find(tmp_path) == (huggingface, tmp_path)


def test_a_file_of_ctranslate2_is_known_by_its_header(tmp_path: Path) -> None:
    path = write_ctranslate2(tmp_path, TINY) / "model.bin"
    assert formats.find(path) == (ctranslate2, path)
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    assert not ctranslate2.matches(tmp_path)
    for data in (b"", b"lmgg" + bytes(100), b"PK\3\4" + bytes(100), bytes(100), b"\6\0\0\0\x0c\0Whisper"):
        path.write_bytes(data)
        assert not ctranslate2.matches(path)


@pytest.mark.parametrize("file", ["weights.npz", "weights.safetensors", "model.safetensors"])
def test_a_directory_of_mlx_is_known_by_its_config_or_its_names(tmp_path: Path, file: str) -> None:
    assert formats.find(write_mlx(tmp_path, TINY, 4, file=file)) == (mlx, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    assert formats.find(tmp_path) == (mlx, tmp_path)


def test_what_is_not_mlx_or_broken_is_left_to_others(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "hf")
    assert not any(mlx.matches(path) for path in (tiny, NANO, tmp_path, tmp_path / "none", tiny / "config.json"))
    (tiny / "model.safetensors").write_bytes(b"garbage")
    assert not mlx.matches(tiny)
    (tiny / "config.json").write_bytes(b"\xff{")
    assert not mlx.matches(tiny)
