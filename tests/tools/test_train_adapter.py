"""Adapters for short windows: examples that are cut within words, and a few steps of training."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch

from streamer.constants import SAMPLE_RATE
from streamer.whisper import adapters
from streamer.whisper.source import load_checkpoint, read_model
from tests.unit.whisper.support import NANO, SAMPLE
from tools import adapter_examples, train_adapter
from tools.adapter_examples import Cutter, Piece, Teacher

# Words with the punctuation behind them, and when they are said.
WORDS = [(" one", ""), (" two", ","), (" three", ""), (" four", ".")]
TIMES = [(0.5, 1.0), (1.0, 1.5), (3.0, 3.5), (3.5, 4.0)]


def test_the_text_ends_with_the_last_word_that_was_complete_at_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_examples, "WRONG", 0.0)
    tokenizer = read_model(NANO, "nano.en").tokenizer
    tokens = [[tokenizer.encode(part) for part in word if part] for word in WORDS]
    empty = torch.zeros(0)
    piece = Piece(
        samples=torch.zeros(5 * SAMPLE_RATE),
        prompt=empty.long(),
        start=torch.tensor([tokenizer.special.start_of_transcript, tokenizer.special.no_timestamps]),
        tokens=torch.tensor([token for parts in tokens for part in parts for token in part]),
        n_tokens=torch.tensor([sum(map(len, parts)) for parts in tokens]),
        n_marks=torch.tensor([len(parts) - 1 for parts in tokens]),
        times=torch.tensor(TIMES),
        best=empty,
        log_probs=empty,
        states=empty,
    )
    cutter = Cutter(tokenizer, [tuple(tokenizer.encode(word)) for word in (" won", " too", " tree", " for")])
    for seed in range(200):
        example = cutter.draw(piece, random.Random(seed))
        cut_s = example.n_samples / SAMPLE_RATE
        complete = sum(end_s <= cut_s - adapter_examples.COMPLETE_S for _, end_s in TIMES)
        words = [*WORDS[: complete - 1], (WORDS[complete - 1][0], "")] if complete else []
        written = piece.tokens[example.first : example.end].tolist()
        assert tokenizer.decode([*example.given, *written]) == "".join(map("".join, words))
        assert tokenizer.decode([example.mark]) == ((WORDS[complete - 1][1] if complete else "") or ".")


@pytest.mark.slow
def test_the_states_of_short_windows_come_nearer_to_those_of_30_s_and_the_adapter_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns one piece of sound, of which other cuts are compared: what few steps learn of others is chance."""
    for name, value in {"BATCH": 2, "N_VALIDATION": 2, "WARM_UP_STEPS": 1, "LEARNING_RATE": 1e-3}.items():
        monkeypatch.setattr(train_adapter, name, value)
    monkeypatch.setattr(adapter_examples, "PIECE_S", (2.0, 3.0))
    monkeypatch.setattr(adapter_examples, "NO_SPEECH", 0.0)
    piece = Teacher.piece
    monkeypatch.setattr(Teacher, "piece", lambda teacher, number: piece(teacher, 0))
    arguments = [str(NANO), "--recordings", str(SAMPLE), "--out", str(tmp_path), "--pieces", "8", "--rank", "2"]
    monkeypatch.setattr(sys, "argv", ["train_adapter", *arguments, "--steps", "6"])
    assert train_adapter.main() == 0
    before, *_, after = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))["curve"]
    assert after["states"] < before["states"]
    found = adapters.find(load_checkpoint(NANO)[1], str(tmp_path))
    assert found is not None
    assert found.windows_s == train_adapter.WINDOWS_S
