"""Weights for other programs, and what is said of them."""

import json
from pathlib import Path

import pytest

from streamer.errors import ModelError
from streamer.whisper.weights import formats, huggingface


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        formats.find(path)
    return str(caught.value)


@pytest.mark.parametrize("folder", ["", "onnx"])
def test_a_model_of_onnx_is_told_for_what_it_is(tmp_path: Path, folder: str) -> None:
    file = tmp_path / folder / "encoder_model.onnx"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes(100))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper"}), encoding="utf-8")
    for path in (tmp_path, file.parent, file):
        assert "is a model for ONNX Runtime" in refusal(path)
        assert "--model small.en" in refusal(path)


@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("pytorch_model.bin", "weights.npz", "openvino_decoder_model.xml"),
    ],
)
def test_one_file_of_several_names_their_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(2000))
    message = refusal(tmp_path / name)
    assert message.endswith(f"{name} is one file of a model: expected all of them; name their directory, {tmp_path}")


@pytest.mark.parametrize("data", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64])
@pytest.mark.parametrize("name", ["base.pt", "ggml-base.bin"])
def test_a_download_that_did_not_come(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert refusal(tmp_path / name).startswith(f"{tmp_path / name} has {len(data)} bytes: expected a checkpoint, and")
    (tmp_path / name).write_bytes(data + b" " * 1000)
    assert refusal(tmp_path / name).startswith(f"{tmp_path / name} is no Whisper checkpoint: expected")


def test_beside_weights_that_are_read_it_does_not_matter(tmp_path: Path) -> None:
    for name, data in (("config.json", b"{}"), ("model.onnx", b"")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert formats.find(tmp_path) == (huggingface, tmp_path)
