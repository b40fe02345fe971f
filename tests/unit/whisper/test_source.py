"""One model in every format: whatever it comes in, it computes the same."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streamer.errors import ModelError
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.loading import LoadOptions, verify_model
from streamer.whisper.model import WhisperModel
from streamer.whisper.source import read_model
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import NANO, shallow, write_huggingface, write_openai
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tests.unit.whisper.weights.models import write_words
from tests.unit.whisper.weights.openvino_writer import write_optimum, write_triple

pytestmark = pytest.mark.slow

TEXT = " The Commission regards such impromptu stops, 1964."


# Ways to write a model that lose nothing; before a comma stands the format's name.
WRITERS: dict[str, Callable[[Path, Checkpoint], object]] = {
    "Hugging Face": write_huggingface,
    "openai-whisper, f16": lambda folder, checkpoint: write_openai(folder / "any name.pt", checkpoint, "float16"),
    "openai-whisper, f32": lambda folder, checkpoint: write_openai(folder / "any name.pt", checkpoint, "float32"),
    "ggml, f16": partial(write_words, kind="f16"),
    "ggml, f32": partial(write_words, kind="f32"),
    "CTranslate2": write_ctranslate2,
    "MLX, npz": write_mlx,
    "MLX, deflated": partial(write_mlx, save=np.savez_compressed),
    "MLX, safetensors": partial(write_mlx, file="weights.safetensors"),
    "OpenVINO, optimum": write_optimum,
    "OpenVINO, triple": write_triple,
}


def add_companions(directory: Path) -> Path:
    """Put the settings and the tokenizer beside a checkpoint; ggml brings its own tokenizer."""
    shutil.copy(NANO / "generation_config.json", directory)
    if not (directory / "x.bin").exists():
        shutil.copy(NANO / "tokenizer.json", directory)
    return directory


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_holds_the_same_weights_tokens_and_settings(
    tmp_path: Path, name: str, checkpoint: Checkpoint, model: WhisperModel
) -> None:
    WRITERS[name](tmp_path, checkpoint)
    source = read_model(add_companions(tmp_path), "nano")
    assert source.format == name.partition(",")[0]
    assert source.checkpoint.dims == checkpoint.dims
    assert set(source.checkpoint.tensors) == set(checkpoint.tensors)
    for tensor, values in checkpoint.tensors.items():
        # A writer that leaves the encoder's sines out has them computed, and rounded to float16 once more; where
        # queries were multiplied by a scale, so are small weights.
        atol = 2**-11 if tensor == "encoder.embed_positions.weight" else 2**-20
        np.testing.assert_allclose(source.checkpoint.tensors[tensor], values, rtol=0, atol=atol, err_msg=tensor)
    assert source.generation == model.generation
    assert source.tokenizer.special == model.tokenizer.special
    assert source.tokenizer.languages == model.tokenizer.languages
    assert source.tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)


def test_the_tokenizer_of_one_file_is_its_neighbour_or_named(tmp_path: Path, checkpoint: Checkpoint) -> None:
    path = write_openai(tmp_path / "mine.pt", checkpoint)
    with pytest.raises(ModelError):
        read_model(path, "mine")
    named = read_model(path, "mine", NANO / "vocab.json").tokenizer
    assert named.decode(named.encode(TEXT)) == TEXT
    shutil.copy(NANO / "tokenizer.json", tmp_path)
    source = read_model(path, "mine")
    assert (source.format, source.tokenizer.n_vocab) == ("openai-whisper", 2022)
    # Settings beside a file may be another file's.
    shutil.copy(NANO / "generation_config.json", tmp_path)
    assert read_model(path, "mine").generation == source.generation
    # Of two files one has to be named.
    write_openai(tmp_path / "other.pt", checkpoint)
    with pytest.raises(ModelError):
        read_model(tmp_path, "two")


@pytest.mark.usefixtures("npu_plugin")
def test_through_the_npu_plugin_every_check_passes(tmp_path: Path) -> None:
    devices = DeviceSettings(npu_through_cpu=True)
    for _ in range(2):  # read back from the cache, the graphs would compute in another precision
        checks = list(verify_model(str(shallow()), LoadOptions(devices, cache_dir=str(tmp_path))))
        assert [check for check in checks if not check.passed] == []
        assert {check.found for check in checks if check.name.endswith(": device")} == {"NPU"}
    assert list(tmp_path.glob("NPU*")) == []
