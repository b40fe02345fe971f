"""The last hypothesis as the draft of the next, with the real model."""

import dataclasses

import numpy as np
import pytest

from streamer.audio.mel import log_mel
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.session.task import Request
from streamer.settings.table import DecodingSettings
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from tests.daemon import REPOSITORY, recording

SAMPLES = recording(REPOSITORY / "tests" / "data" / "speech.flac")
PLAIN = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=len(SAMPLES))
N_START = 4


@pytest.fixture(scope="module")
def encoded(model: WhisperModel) -> EncodedWindow:
    return WhisperEncoder(model).encode(log_mel(SAMPLES, 80).astype(np.float32), 0, len(SAMPLES))


def test_a_draft_saves_calls_and_changes_no_word(
    model: WhisperModel, encoded: EncodedWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = WhisperDecoder(model, DecodingSettings())
    plain = decoder.decode(encoded, PLAIN)
    tokens = tuple(token for word in plain.words for token in word.tokens)
    # All but the first go through one by one; the last is the end of the text.
    assert (plain.n_given, plain.n_sampled, plain.n_calls) == (N_START, len(tokens) + 1, len(tokens) + 1)
    drafted = decoder.decode(encoded, dataclasses.replace(PLAIN, draft=tokens))
    assert [word.text for word in drafted.words] == [word.text for word in plain.words]
    assert (drafted.n_given, drafted.n_sampled) == (plain.n_given, plain.n_sampled)
    assert drafted.n_calls == -(-(N_START + len(tokens)) // model.runtime.decoder.block_tokens)
    # Where it had to be checked token by token it is left alone.
    monkeypatch.setattr(Decoder, "block_tokens", 1)
    assert decoder.decode(encoded, dataclasses.replace(PLAIN, draft=(300,) * 20)) == decoder.decode(encoded, PLAIN)


def test_tokens_of_stable_words_are_told_from_those_that_were_found(
    model: WhisperModel, encoded: EncodedWindow
) -> None:
    decoder = WhisperDecoder(model, DecodingSettings())
    plain = decoder.decode(encoded, PLAIN)
    stable = tuple(token for word in plain.words[:3] for token in word.tokens)
    behind = decoder.decode(encoded, dataclasses.replace(PLAIN, prefix=stable, prompt="It was a long day."))
    assert (plain.n_begins_with, behind.n_begins_with) == (0, len(stable))
    tokens = [token for word in behind.words for token in word.tokens]
    assert len(tokens) == behind.n_begins_with + behind.n_sampled - 1  # the last is the end of the text
    assert behind.n_given > plain.n_given + behind.n_begins_with  # the prompt
