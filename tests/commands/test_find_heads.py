"""Alignment heads found on the shipped sample of speech."""

import dataclasses
import logging

import numpy as np
import pytest

from streamer.commands.find_heads import find_heads
from streamer.whisper.generation import default_generation
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.whisper.support import NANO


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(NANO, n_vocab=2022)


def test_nanos_own_heads_are_found(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    checkpoint = huggingface.load(NANO)
    found = find_heads(checkpoint, tokenizer, default_generation(tokenizer, checkpoint.dims))
    assert {(2, 0), (2, 1)} & set(found.alignment_heads)
    assert len(found.alignment_heads) < checkpoint.dims.n_text_layer * checkpoint.dims.n_text_head
    assert "alignment heads: 2." in caplog.text


def test_a_model_that_hears_nothing_keeps_its_heads(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = huggingface.load(NANO)
    deaf = {name: np.zeros_like(t) if "encoder_attn.q_proj" in name else t for name, t in checkpoint.tensors.items()}
    generation = dataclasses.replace(default_generation(tokenizer, checkpoint.dims), alignment_heads=((1, 1),))
    assert find_heads(Checkpoint(checkpoint.dims, deaf), tokenizer, generation) == generation
    assert "no head of this model follows" in caplog.text
