"""Searches over a decoder whose every answer is known, against searches written out; and how likely a known text is."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.errors import InferenceError
from streamer.whisper.decode.likelihood import log_likelihood
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.search import Search, drawer, follow_beams, sampler
from streamer.whisper.decode.window import decode_window
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, pause_after, recording
from tests.unit.whisper.support import SPEECH, read

EOT = 4
N_VOCAB = 5


def logits_after(tokens: Sequence[int]) -> FloatArray:
    """Return the logits behind a sequence: always the same for the same one."""
    random = np.random.default_rng([len(tokens), *tokens])
    return random.normal(0, 1.5, N_VOCAB).astype(np.float32)


class KnownDecoder:
    """Gives `logits_after` what it was fed."""

    capacity = 40
    n_windows = 1

    def __init__(self) -> None:
        self.sequences: list[list[int]] = [[]]

    @property
    def n_fed(self) -> int:
        return len(self.sequences[0])

    def room(self, n_beams: int) -> int:
        return 1000

    def begin(self) -> None:
        self.sequences = [[]]

    def rewind(self, n_fed: int) -> None:
        self.sequences = [self.sequences[0][:n_fed]]

    def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
        (fed,) = self.sequences
        fed += tokens
        return logits_after(fed)[np.newaxis, np.newaxis], np.ones((1, 1, 1, 1500), np.float32)

    def extend(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> FloatArray:
        pairs = zip(parents[0].tolist(), tokens[0].tolist(), strict=True)
        self.sequences = [[*self.sequences[parent], token] for parent, token in pairs]
        return np.stack([logits_after(sequence) for sequence in self.sequences])[np.newaxis]

    def drop(self, number: int) -> None:
        raise AssertionError("there is one window")


def search(limit: int = 12) -> Search:
    return Search(rules=(), end_of_text=EOT, limit=limit)


def score(tokens: Sequence[int], *, ended: bool) -> float:
    total = 0.0
    for i, token in enumerate([*tokens, EOT] if ended else tokens):
        logits = logits_after([0, *tokens[:i]]).astype(float)
        total += logits[token] - np.log(np.exp(logits).sum())
    return total


def start() -> tuple[KnownDecoder, FloatArray]:
    decoder = KnownDecoder()
    (logits,), _ = decoder.feed([0])
    return decoder, logits[-1]


def test_a_wide_beam_finds_the_likeliest_text_of_all() -> None:
    decoder, logits = start()
    (found,) = follow_beams(decoder, logits[np.newaxis], search(4), n_beams=64, patience=100.0)
    texts = [list(t) for n in range(4) for t in itertools.product(range(EOT), repeat=n)]
    likeliest = max(texts, key=lambda tokens: score(tokens, ended=True))
    ended = [f for f in found if len(f.tokens) < 4]
    best = max(ended, key=lambda f: f.sum_logprob)
    assert best.tokens == likeliest
    assert best.sum_logprob == pytest.approx(score(likeliest, ended=True), abs=1e-5)


def test_a_beam_whose_logits_are_no_numbers_is_an_error_of_the_device() -> None:
    class Broken(KnownDecoder):
        def extend(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> FloatArray:
            rows = super().extend(parents, tokens)
            rows[0, -1, 2] = np.nan
            return rows

    decoder = Broken()
    (logits,), _ = decoder.feed([0])
    with pytest.raises(InferenceError):
        follow_beams(decoder, logits, search(), n_beams=3)


def test_sampling_follows_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2, 1e-9, 1e-9], dtype=np.float32))
    choose = sampler(1.0, drawer(7))
    counts = np.bincount([choose(logits) for _ in range(4000)], minlength=N_VOCAB)
    np.testing.assert_allclose(counts / 4000, [0.5, 0.3, 0.2, 0, 0], atol=0.03)
    cold = sampler(0.05, drawer(7))
    assert {cold(logits) for _ in range(100)} == {0}


def test_beams_compute_what_single_sequences_do(model: WhisperModel) -> None:
    """Whatever slots sequences share, get, and free."""
    decoder = model.runtime.decoder
    decoder.use(model.runtime.encode(log_mel(read(SPEECH), 80), 0))
    prompt = [513, 514, 516, 520]
    random = np.random.default_rng(3)
    sequences = [prompt]
    found = []
    decoder.begin()
    decoder.feed(prompt)
    for _ in range(12):
        n = int(random.integers(1, 5))
        parents = random.integers(0, len(sequences), n).tolist()
        tokens = random.integers(0, 500, n).tolist()
        sequences = [[*sequences[p], t] for p, t in zip(parents, tokens, strict=True)]
        found.append((decoder.extend(np.array([parents]), np.array([tokens]))[0], sequences))
    for rows, sequences in found:
        for row, sequence in zip(rows, sequences, strict=True):
            decoder.begin()
            np.testing.assert_allclose(row, decoder.feed(sequence)[0][0][-1], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_text_found_along_beams_has_its_attention(model: WhisperModel) -> None:
    decoder = model.runtime.decoder
    decoder.use(model.runtime.encode(log_mel(read(SPEECH), 80), 0))
    options = DecodeOptions(generation=model.generation, live=True, n_beams=4)
    window = decode_window(decoder, model.tokenizer, options, WindowTask(language="en"))
    assert window.attention.shape[1] >= 4 + len(window.tokens) - 1
    alone = WindowTask(language="en", begins_with=tuple(window.tokens), max_tokens=0)
    again = decode_window(decoder, model.tokenizer, options, alone)
    n_rows = min(again.attention.shape[1], window.attention.shape[1])
    np.testing.assert_allclose(window.attention[:, :n_rows], again.attention[:, :n_rows], atol=1e-4)


@pytest.mark.parametrize("n_prefix", [443, 444, 445])
def test_beams_begin_with_as_much_text_as_there_is_room_for(model: WhisperModel, n_prefix: int) -> None:
    decoder = model.runtime.decoder
    decoder.use(model.runtime.encode(log_mel(read(SPEECH), 80), 0))
    prefix = tuple(100 + i % 300 for i in range(n_prefix))
    options = DecodeOptions(generation=model.generation, live=True, n_beams=4)
    window = decode_window(decoder, model.tokenizer, options, WindowTask(language="en", begins_with=prefix))
    assert tuple(window.tokens[:n_prefix]) == prefix
    assert len(window.tokens) <= max(n_prefix, 445)


@pytest.mark.slow
def test_what_is_said_is_likelier_than_half_of_it_or_more_than_it(model: WhisperModel) -> None:
    samples = recording(SAMPLE, 0.0, pause_after(2))
    decoder = model.runtime.decoder_of(model.runtime.encode(log_mel(samples, model.dims.n_mels), 0))
    options = DecodeOptions(generation=model.generation, live=True)
    window = decode_window(decoder, model.tokenizer, options, WindowTask(language="en"))
    said = model.tokenizer.decode(window.tokens)

    def likelihood(text: str) -> float:
        return log_likelihood(decoder, model.tokenizer, text, language="en", task="transcribe")

    words = said.split(" ")
    others = " ".join(words[: len(words) // 2]), f"{said} And so it was.", " ".join(words[::-1]), ""
    assert all(likelihood(said) > likelihood(other) for other in others)
    assert likelihood(said * 200) == -math.inf
