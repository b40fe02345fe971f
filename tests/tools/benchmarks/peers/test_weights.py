"""nano.en in the standard vocabulary: the same model, in every format."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import whisper
import whisper.tokenizer

from streamer.whisper.tokens import vocabulary
from streamer.whisper.weights import ggml as our_ggml
from streamer.whisper.weights import huggingface
from streamer.whisper.weights import openai as our_openai
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.whisper.standard import openai_whisper
from tools.benchmarks.peers import ggml, weights
from tools.benchmarks.peers.weights import EMBEDDING, N_STANDARD, NANO, UNUSED_LOGIT


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return weights.standard_nano()


def test_each_token_has_a_place_of_its_own_where_the_same_is_spelled() -> None:
    numbers = weights.standard_numbers()
    assert sorted(numbers) == list(range(2022))
    assert len(set(numbers.values())) == 2022
    ours = vocabulary.load(NANO / "tokenizer.json", 2022)
    standard = whisper.tokenizer.get_tokenizer(True)
    text = " Right, the light was as bright as Oswald thought: Oswald's osprey, at eight."
    theirs = standard.decode([numbers[number] for number in ours.encode(text).ids])
    assert theirs != text
    assert weights.restore(theirs) == text


def test_the_logits_are_nano_ens_and_far_below_elsewhere(checkpoint: Checkpoint) -> None:
    small = openai_whisper(huggingface.load(NANO))
    large = openai_whisper(checkpoint)
    numbers = weights.standard_numbers()
    audio = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 2022, (1, 12), generator=torch.Generator().manual_seed(1))
    moved = torch.tensor([[numbers[int(token)] for token in tokens[0]]])
    with torch.no_grad():
        expected = small.float()(audio, tokens)[0].numpy()
        logits = large(audio, moved)[0].numpy()
    places = [numbers[number] for number in range(2022)]
    np.testing.assert_allclose(logits[:, places], expected, atol=2e-3)
    np.testing.assert_allclose(np.delete(logits, places, axis=1), UNUSED_LOGIT, atol=5e-3)
    assert expected.max(axis=1).min() > 0


def test_our_readers_find_the_same_weights_in_every_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    weights.write_huggingface(tmp_path / "huggingface", checkpoint)
    weights.write_openai(tmp_path / "openai", checkpoint)
    ggml.write(tmp_path / "ggml.bin", checkpoint, weights.ranks())
    files = (
        (huggingface.load(tmp_path / "huggingface"), 0.0),
        (our_openai.load(tmp_path / "openai" / "nano.pt"), 0.0),
        (our_ggml.load(tmp_path / "ggml.bin"), 2e-3),  # float16
    )
    for found, tolerance in files:
        assert found.dims == checkpoint.dims
        assert set(found.tensors) == set(checkpoint.tensors)
        for name in (EMBEDDING, "encoder.conv1.bias", "encoder.conv1.weight", "decoder.layers.1.fc2.weight"):
            np.testing.assert_allclose(found.tensors[name], checkpoint.tensors[name], rtol=tolerance, atol=tolerance)
    assert list(our_ggml.load(tmp_path / "ggml.bin").vocabulary) == weights.ranks()

    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "huggingface" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == N_STANDARD
    # What the model says is spelled as its own tokenizer spells it.
    ours = vocabulary.load(NANO / "tokenizer.json", 2022)
    text = " Right, the light was as bright as Oswald thought: Oswald's osprey, at eight."
    assert tokenizer.decode([weights.standard_numbers()[number] for number in ours.encode(text).ids]) == text
    assert tokenizer.token_to_id("<|notimestamps|>") == 50363
    generation = json.loads((tmp_path / "openai" / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["no_timestamps_token_id"] == 50363
    assert generation["lang_to_id"] == {"<|en|>": 50259}
    assert generation["alignment_heads"] == [list(head) for head in weights.alignment_heads()]
