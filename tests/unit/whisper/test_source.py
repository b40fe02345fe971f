"""One model in every format: whatever it comes in, it says the same."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
import transformers
from numpy.typing import NDArray

from streamer.audio.mel import log_mel
from streamer.constants import N_SAMPLES
from streamer.errors import ModelError
from streamer.whisper.decode.window import WindowOptions, decode_window
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.masks import CONVENTIONS, MaskConvention
from streamer.whisper.model import LoadOptions, WhisperModel, verify_model
from streamer.whisper.source import read_model
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import NANO, SAMPLE, SPEECH, Untyped, load_on_cpu, read, write_openai
from tests.unit.whisper.triple import BROKEN, write_triple
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.ggml_writer import write_ggml
from tests.unit.whisper.weights.mlx_writer import write_mlx
from tests.unit.whisper.weights.optimum_writer import write_optimum

pytestmark = pytest.mark.slow

RECORDINGS = [SAMPLE, SPEECH]

N_WORDS = 512  # of nano.en's vocabulary, before its special tokens

Write = Callable[[Path, Checkpoint], Path]


def transformers_model(dtype: torch.dtype) -> Untyped:
    model: Untyped = transformers.WhisperForConditionalGeneration
    return model.from_pretrained(NANO, dtype=dtype)


def write_transformers(directory: Path, dtype: torch.dtype, shard: str = "1GB") -> Path:
    transformers_model(dtype).save_pretrained(directory, max_shard_size=shard)
    return directory


def write_pytorch_bin(directory: Path) -> Path:
    """Write what `transformers` wrote before safetensors."""
    directory.mkdir()
    torch.save(transformers_model(torch.float16).state_dict(), directory / "pytorch_model.bin")
    shutil.copy(NANO / "config.json", directory)
    return directory


def write_one_file(directory: Path, name: str, write: Callable[[Path], object]) -> Path:
    directory.mkdir()
    write(directory / name)
    return directory


def vocabulary() -> list[bytes]:
    """Return what each ordinary token of nano.en spells."""
    tokenizer: Untyped = transformers.AutoTokenizer.from_pretrained(NANO)
    # Byte-level BPE writes a byte as a printable character: itself, or the next that is free from U+0100 on.
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    byte_of = {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
    return [bytes(byte_of[c] for c in tokenizer.convert_ids_to_tokens(i)) for i in range(N_WORDS)]


def write_ggml_file(directory: Path, checkpoint: Checkpoint, type_name: str) -> Path:
    filters = np.zeros((80, 201), np.float32)
    return write_one_file(
        directory, "ggml-nano.bin", lambda path: write_ggml(path, checkpoint, vocabulary(), filters, type_name)
    )


# What each reference tool makes of nano.en, without loss.
FORMATS: dict[str, Write] = {
    "Hugging Face, f32": lambda directory, _: write_transformers(directory, torch.float32),
    "Hugging Face, shards": lambda directory, _: write_transformers(directory, torch.float16, "2MB"),
    "Hugging Face, pytorch_model.bin": lambda directory, _: write_pytorch_bin(directory),
    "openai-whisper, f16": lambda d, c: write_one_file(d, "nano.pt", lambda path: write_openai(path, c)),
    "openai-whisper, f32": lambda d, c: write_one_file(d, "nano.pt", lambda path: write_openai(path, c, "float32")),
    "ggml, f16": lambda directory, checkpoint: write_ggml_file(directory, checkpoint, "f16"),
    "ggml, f32": lambda directory, checkpoint: write_ggml_file(directory, checkpoint, "f32"),
    "optimum-intel": lambda directory, checkpoint: write_optimum(directory, checkpoint),
    "CTranslate2": lambda directory, checkpoint: write_ctranslate2(directory, checkpoint),
    "MLX, npz": lambda directory, checkpoint: write_mlx(directory, checkpoint),
    "MLX, safetensors": lambda directory, checkpoint: write_mlx(directory, checkpoint, file="weights.safetensors"),
}


def add_companions(directory: Path) -> Path:
    """Put the settings and the tokenizer beside a checkpoint; ggml brings its own tokenizer."""
    shutil.copy(NANO / "generation_config.json", directory)
    if not list(directory.glob("ggml*")):
        shutil.copy(NANO / "tokenizer.json", directory)
    return directory


@pytest.fixture(scope="module")
def mels() -> list[NDArray[np.float32]]:
    return [log_mel(read(path)[:N_SAMPLES], 80) for path in RECORDINGS]


def greedy_tokens(model: WhisperModel, mels: Sequence[NDArray[np.float32]]) -> list[list[int]]:
    """Return the tokens of the first window of each recording."""
    options = WindowOptions(language="en", timestamps=True)
    found = []
    for mel in mels:
        model.runtime.decoder.use(model.runtime.encode(mel, 0))
        found.append(decode_window(model.runtime.decoder, model.tokenizer, model.generation, options).tokens)
    return found


@pytest.fixture(scope="module")
def expected(model: WhisperModel, mels: list[NDArray[np.float32]]) -> list[list[int]]:
    tokens = greedy_tokens(model, mels)
    assert sum(map(len, tokens)) > 100
    return tokens


def load(path: Path, cache_dir: Path) -> WhisperModel:
    return load_on_cpu(path, cache_dir)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_same_weights_tokens_and_settings(
    tmp_path: Path, name: str, checkpoint: Checkpoint, model: WhisperModel
) -> None:
    directory = add_companions(FORMATS[name](tmp_path / "model", checkpoint))
    source = read_model(directory, "nano")
    assert source.format == name.partition(",")[0]
    assert source.checkpoint is not None
    assert source.checkpoint.dims == checkpoint.dims
    assert set(source.checkpoint.tensors) == set(checkpoint.tensors)
    for tensor, values in checkpoint.tensors.items():
        # Who leaves the encoder's sines out has them computed, and rounded to float16 once more; where queries were
        # multiplied by a scale, so are small weights.
        atol = 2**-11 if tensor == "encoder.embed_positions.weight" else 2**-20
        np.testing.assert_allclose(source.checkpoint.tensors[tensor], values, rtol=0, atol=atol, err_msg=tensor)
    assert source.generation == model.generation
    text = " The Commission regards such impromptu stops, 1964."
    assert source.tokenizer.special == model.tokenizer.special
    assert source.tokenizer.encode(text) == model.tokenizer.encode(text)


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)
def test_an_exported_triple_is_recognised_and_says_the_same(
    tmp_path: Path,
    convention: MaskConvention,
    checkpoint: Checkpoint,
    mels: list[NDArray[np.float32]],
    expected: list[list[int]],
    cache_dir: Path,
) -> None:
    directory = add_companions(write_triple(tmp_path, checkpoint, convention))
    model = load(directory, cache_dir)
    assert model.runtime.decoder.mask == convention
    assert model.runtime.decoder.capacity == 224
    found = greedy_tokens(model, mels)
    # Windows of 224 tokens and more end there, and are loops of the model's: their keys, in float16, may break a tie.
    whole = [i for i, tokens in enumerate(expected) if len(tokens) < 220]
    assert len(whole) >= len(expected) / 2
    assert [found[i] for i in whole] == [expected[i] for i in whole]
    assert [tokens[:100] for tokens in found] == [tokens[:100] for tokens in expected]


def test_a_triple_that_obeys_no_mask_is_refused_by_name(
    tmp_path: Path, checkpoint: Checkpoint, cache_dir: Path
) -> None:
    directory = add_companions(write_triple(tmp_path, checkpoint, CONVENTIONS[0], broken=BROKEN[0]))
    with pytest.raises(ModelError, match=r"_decoder_static_kvcache_224_lm_QKs\.xml follows no known "):
        load(directory, cache_dir)


def test_a_triple_passes_every_check(tmp_path: Path, checkpoint: Checkpoint, cache_dir: Path) -> None:
    directory = add_companions(write_triple(tmp_path, checkpoint, CONVENTIONS[1]))
    checks = list(verify_model(str(directory), LoadOptions(DeviceSettings("CPU"), cache_dir=str(cache_dir))))
    assert [check for check in checks if not check.passed] == []
    assert "0 = attend, -65500 = hide" in [check.found for check in checks]


class TestOneFile:
    def test_its_neighbour_is_its_tokenizer(self, tmp_path: Path, checkpoint: Checkpoint) -> None:
        path = write_openai(tmp_path / "mine.pt", checkpoint)
        shutil.copy(NANO / "tokenizer.json", tmp_path)
        source = read_model(path, "mine")
        assert source.format == "openai-whisper"
        assert source.tokenizer.n_vocab == 2022
        # Settings beside a file may be another file's.
        shutil.copy(NANO / "generation_config.json", tmp_path)
        assert read_model(path, "mine").generation == source.generation
        assert source.generation.max_initial_timestamp_index == 50

    def test_its_tokenizer_can_be_named(self, tmp_path: Path, checkpoint: Checkpoint) -> None:
        path = write_openai(tmp_path / "mine.pt", checkpoint)
        with pytest.raises(ModelError, match=r"mine\.pt has no tokenizer beside it, .* --tokenizer FILE"):
            read_model(path, "mine")
        source = read_model(path, "mine", NANO / "vocab.json")
        assert source.tokenizer.decode(source.tokenizer.encode(" The Commission")) == " The Commission"

    def test_ggml_needs_nothing_else(self, tmp_path: Path, checkpoint: Checkpoint, model: WhisperModel) -> None:
        directory = write_ggml_file(tmp_path / "alone", checkpoint, "q8_0")
        source = read_model(directory / "ggml-nano.bin", "nano")
        assert source.tokenizer.special == model.tokenizer.special
        assert source.tokenizer.languages == {"en": 514}
        text = " The Commission regards such impromptu stops, 1964."
        assert source.tokenizer.encode(text) == model.tokenizer.encode(text)

    def test_its_name_does_not_matter(self, tmp_path: Path, checkpoint: Checkpoint) -> None:
        directory = write_ggml_file(tmp_path / "renamed", checkpoint, "f16")
        (directory / "ggml-nano.bin").rename(directory / "whisper.bin")
        assert read_model(directory, "nano").format == "ggml"


class TestStrangers:
    def test_a_file_that_is_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "song.pt").write_bytes(b"ID3 and so on" * 100)
        with pytest.raises(ModelError, match=r"song\.pt is no Whisper checkpoint: expected openai-whisper's \.pt"):
            read_model(tmp_path / "song.pt", "song")

    def test_several_checkpoints_in_one_directory(self, tmp_path: Path, checkpoint: Checkpoint) -> None:
        for name in ("a.pt", "b.pt"):
            write_openai(tmp_path / name, checkpoint)
        with pytest.raises(ModelError, match=r"holds 2 checkpoints \(a\.pt, b\.pt, \.\.\.\): name the one"):
            read_model(tmp_path, "two")

    def test_graphs_of_another_model(self, tmp_path: Path, checkpoint: Checkpoint) -> None:
        directory = add_companions(write_triple(tmp_path, checkpoint, CONVENTIONS[0]))
        other = dict(checkpoint.tensors)
        other["decoder.embed_tokens.weight"] = other["decoder.embed_tokens.weight"][:2000]
        small = Checkpoint(dataclasses.replace(checkpoint.dims, n_vocab=2000), other)
        write_triple(directory, small, CONVENTIONS[0])
        with pytest.raises(ModelError, match=r"different models|another model"):
            read_model(directory, "mixed")


def test_through_the_npu_plugin_every_check_passes(tmp_path: Path) -> None:
    try:
        ov.Core().get_property("NPU", "SUPPORTED_PROPERTIES")
    except RuntimeError as error:
        pytest.skip(f"this openvino lacks the NPU plugin: {error}")
    devices = DeviceSettings(npu_through_cpu=True)
    for _ in range(2):  # read back from the cache, the graphs would compute in another precision
        checks = list(verify_model(str(NANO), LoadOptions(devices, cache_dir=str(tmp_path))))
        assert [check for check in checks if not check.passed] == []
        assert {check.found for check in checks if check.name.endswith(": device")} == {"NPU"}
    assert list(tmp_path.glob("NPU*")) == []
