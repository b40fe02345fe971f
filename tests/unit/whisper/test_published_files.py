"""Files of published models as their publishers wrote them, which are not in the repository."""

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.source import read_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import ROOT, damage, random_checkpoint
from tests.unit.whisper.tokens.published import ENGLISH, MULTILINGUAL, Case, check, old_table
from tests.unit.whisper.weights.ggml_writer import write_ggml

HUB = ROOT.parent / "shared" / "hub"
TOKENIZERS = sorted(path.name for path in HUB.glob("*") if any(path.glob("*vocab*")) or any(path.glob("tokenizer*")))
CONFIGS = sorted(path.parent.name for path in HUB.glob("*/config.json") if "d_model" in path.read_text("utf-8"))

# As small as a Whisper of the published vocabulary can be.
TINY = ModelDimensions(80, 1500, 32, 2, 1, MULTILINGUAL.n_vocab, 448, 32, 2, 1)
SIZES = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}

absent = pytest.mark.skipif(not HUB.exists(), reason="no files of published models beside the checkout")
old_tables = pytest.mark.parametrize(("name", "case"), [("tiny.en", ENGLISH), ("base", MULTILINGUAL)])


@pytest.mark.parametrize("folder", TOKENIZERS)
def test_a_tokenizer_equals_openai_whispers(folder: str) -> None:
    case = ENGLISH if folder.endswith(".en") else MULTILINGUAL
    check(Tokenizer.load(HUB / folder, n_vocab=case.n_vocab), case)


@pytest.mark.parametrize("folder", CONFIGS)
def test_settings_go_with_the_model(tmp_path: Path, folder: str) -> None:
    """All files of a model but its weights, which here are small ones."""
    for path in (HUB / folder).iterdir():
        shutil.copyfile(path, tmp_path / path.name)
    damage(tmp_path / "config.json", {**SIZES, **HEADS})
    tensors = random_checkpoint(TINY).tensors
    save_file({f"model.{name}": values for name, values in tensors.items()}, tmp_path / "model.safetensors")
    found = read_model(tmp_path, folder, None if folder in TOKENIZERS else MULTILINGUAL.path)
    assert found.format == "Hugging Face"
    assert [check for check in found.checks if not check.passed] == []
    assert found.generation.multilingual
    assert found.generation.begin_suppress_tokens == (220, 50257)
    assert len(found.generation.suppress_tokens) > 80


@absent
@old_tables
def test_old_tables_of_whisper_cpp_are_as_we_know_them(name: str, case: Case) -> None:
    data = (HUB / "whisper.cpp" / f"for-tests-ggml-{name}.bin").read_bytes()
    position = 4 * 14 + 4 * 80 * 201
    (n_words,) = struct.unpack_from("<i", data, position)
    position += 4
    words = []
    for _ in range(n_words):
        (n_bytes,) = struct.unpack_from("<i", data, position)
        words.append(data[position + 4 : position + 4 + n_bytes])
        position += 4 + n_bytes
    assert words == old_table(case)


@old_tables
def test_an_old_table_of_whisper_cpp_gives_way_to_the_published_tokenizer(
    tmp_path: Path, name: str, case: Case
) -> None:
    model = random_checkpoint(replace(TINY, n_vocab=case.n_vocab))
    path = write_ggml(tmp_path / f"ggml-{name}.bin", model, old_table(case), np.zeros((80, 201), np.float32), "f16")
    check(read_model(path, "old").tokenizer, case)  # which the installed openai-whisper has
