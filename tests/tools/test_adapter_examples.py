"""Examples for adapters: what is to be written at a cut, and words that are given wrong."""

import random
from collections.abc import Sequence

import pytest
import torch

from streamer.constants import SAMPLE_RATE
from streamer.whisper.source import read_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO
from tools import adapter_examples
from tools.adapter_examples import Cutter, Example, Piece

# Words with the punctuation behind them, and when they are said.
WORDS = [(" one", ""), (" two", ","), (" three", ""), (" four", ".")]
TIMES = [(0.5, 1.0), (1.0, 1.5), (3.0, 3.5), (3.5, 4.0)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return read_model(NANO, "nano.en").tokenizer


@pytest.fixture(scope="module")
def piece(tokenizer: Tokenizer) -> Piece:
    """Return five seconds in which the words are said."""
    tokens = [[tokenizer.encode(part) for part in word if part] for word in WORDS]
    n = [sum(map(len, parts)) for parts in tokens]
    text = [token for parts in tokens for part in parts for token in part]
    empty = torch.zeros(0)
    return Piece(
        samples=torch.zeros(5 * SAMPLE_RATE),
        prompt=empty.long(),
        start=torch.tensor([tokenizer.special.start_of_transcript, tokenizer.special.no_timestamps]),
        tokens=torch.tensor(text),
        n_tokens=torch.tensor(n),
        n_marks=torch.tensor([len(parts[1]) if len(parts) > 1 else 0 for parts in tokens]),
        times=torch.tensor(TIMES),
        best=empty,
        log_probs=empty,
        states=empty,
    )


def cutter(tokenizer: Tokenizer) -> Cutter:
    return Cutter(tokenizer, [tuple(tokenizer.encode(word)) for word in (" won", " too", " tree", " for", " nine")])


def draw(tokenizer: Tokenizer, piece: Piece, n: int) -> Sequence[Example]:
    return [cutter(tokenizer).draw(piece, random.Random(seed)) for seed in range(n)]


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no given word spoilt."""
    monkeypatch.setattr(adapter_examples, "WRONG", 0.0)


@pytest.mark.usefixtures("right")
def test_the_text_ends_with_the_last_word_that_was_complete_at_the_cut(tokenizer: Tokenizer, piece: Piece) -> None:
    for example in draw(tokenizer, piece, 200):
        cut_s = example.n_samples / SAMPLE_RATE
        complete = sum(end_s <= cut_s - adapter_examples.COMPLETE_S for _, end_s in TIMES)
        words = [*WORDS[: complete - 1], (WORDS[complete - 1][0], "")] if complete else []
        written = piece.tokens[example.first : example.end].tolist()
        assert tokenizer.decode([*example.given, *written]) == "".join(map("".join, words))
        if complete and WORDS[complete - 1][1]:
            assert tokenizer.decode([example.mark]) == WORDS[complete - 1][1]
        else:
            assert tokenizer.decode([example.mark]) == "."


@pytest.mark.usefixtures("right")
def test_the_text_need_not_end_before_a_word_that_was_nearly_said(tokenizer: Tokenizer, piece: Piece) -> None:
    for example in draw(tokenizer, piece, 200):
        cut_s = example.n_samples / SAMPLE_RATE
        said = [min(1, (cut_s - start_s) / (end_s - start_s)) for start_s, end_s in TIMES]
        nearly = [
            share >= adapter_examples.LITTLE and end_s > cut_s - adapter_examples.COMPLETE_S
            for share, (_, end_s) in zip(said, TIMES, strict=True)
        ]
        assert example.stops == (not any(nearly))


def test_some_given_words_are_wrong_missing_or_doubled_and_what_follows_is_right(
    tokenizer: Tokenizer, piece: Piece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_examples, "WRONG", 0.5)
    given = {tokenizer.decode(example.given) for example in draw(tokenizer, piece, 400)}
    assert {" one two, three", " too", " one one", " two", " one for, three"} & given >= {" one two, three", " one one"}
    assert any(text.startswith((" won", " tree", " nine", " for", " too")) for text in given)
    for example in draw(tokenizer, piece, 100):
        first = tokenizer.decode(piece.tokens[example.first :].tolist())
        assert first in {"".join(map("".join, WORDS))[i:] for i in (0, 4, 8, 15, 20)} | {", three four.", ".", ""}
