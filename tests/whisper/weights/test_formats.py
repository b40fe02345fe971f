"""Weights for other programs, and what is said of them."""

import json
import struct
from pathlib import Path

import pytest

from streamer.errors import ModelError
from streamer.whisper.weights import formats, huggingface

# How CTranslate2 begins a model: its version, then a string with its length.
CTRANSLATE2 = struct.pack("<IH", 6, 12) + b"WhisperSpec\0" + bytes(100)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        formats.find(path)
    return str(caught.value)


def test_a_model_of_faster_whisper_is_told_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(CTRANSLATE2)
    for _ in range(2):
        for path in (tmp_path, tmp_path / "model.bin"):
            assert "is a model for faster-whisper (CTranslate2), whose files are not read" in refusal(path)
        (tmp_path / "config.json").write_text(json.dumps({"alignment_heads": []}), encoding="utf-8")


@pytest.mark.parametrize("folder", ["", "onnx"])
def test_a_model_of_onnx_is_told_for_what_it_is(tmp_path: Path, folder: str) -> None:
    file = tmp_path / folder / "encoder_model.onnx"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes(100))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper"}), encoding="utf-8")
    for path in (tmp_path, file.parent, file):
        assert "is a model for ONNX Runtime" in refusal(path)
        assert "--model small.en" in refusal(path)


def test_beside_weights_that_are_read_it_does_not_matter(tmp_path: Path) -> None:
    for name, data in (("config.json", b"{}"), ("model.onnx", b""), ("model.bin", CTRANSLATE2)):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert formats.find(tmp_path) == (huggingface, tmp_path)
