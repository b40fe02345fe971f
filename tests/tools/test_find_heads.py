"""Alignment heads that are found by measurement."""

from itertools import pairwise

import numpy as np
import pytest

from streamer.constants import N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from streamer.whisper.source import read_model
from tests.unit.whisper.support import NANO
from tools.find_heads import choose_heads, find_heads


@pytest.mark.parametrize("seed", range(5))
def test_the_heads_that_look_where_each_token_is_said_are_chosen(seed: int) -> None:
    random = np.random.default_rng(seed)
    sentences, spans, position = [], [], 0
    for _ in range(4):  # with pauses between them, and tokens that are not equally long
        position += int(random.integers(SAMPLE_RATE // 4, SAMPLE_RATE))
        bounds = [int(bound) for bound in position + np.cumsum([0, *random.integers(1000, 8000, size=12)])]
        sentences.append((12, bounds[0], bounds[-1]))
        spans += list(pairwise(bounds))
        position = bounds[-1]
    middles = np.mean(spans, axis=1)
    x = (np.arange(1500) + 0.5) * N_SAMPLES_PER_TOKEN

    def head(looks_at: "np.ndarray[tuple[int], np.dtype[np.float64]]", width: float) -> list[object]:
        rows = np.exp(-0.5 * ((x - looks_at[:, np.newaxis]) / (width * N_SAMPLES_PER_TOKEN)) ** 2) + 1e-6
        return list(rows / rows.sum(axis=1, keepdims=True))

    others = [head(middles[::-1], 3), head(middles, 200), head(middles + SAMPLE_RATE, 3)]
    attention = np.array([*others, head(middles, 4), head(middles, 3)], dtype=np.float32)
    assert choose_heads(attention, 1, sentences, position + SAMPLE_RATE) == [4, 3]
    assert choose_heads(attention[:2], 1, sentences, position + SAMPLE_RATE) == []


@pytest.mark.slow
def test_nanos_own_heads_are_found() -> None:
    model = read_model(NANO, "nano.en")
    found = find_heads(model.checkpoint, model.tokenizer)
    assert {(2, 0), (2, 1)} & set(found)  # that its settings name
    assert len(found) < 9
