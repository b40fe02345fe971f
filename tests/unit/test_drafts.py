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
from tests.unit.whisper.support import SPEECH, read

SAMPLES = read(SPEECH)
PLAIN = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=len(SAMPLES))


@pytest.fixture(scope="module")
def encoded(model: WhisperModel) -> EncodedWindow:
    return WhisperEncoder(model).encode(log_mel(SAMPLES, 80).astype(np.float32), 0, len(SAMPLES))


def test_a_draft_saves_calls_and_changes_no_word(model: WhisperModel, encoded: EncodedWindow) -> None:
    decoder = WhisperDecoder(model, DecodingSettings())
    plain = decoder.decode(encoded, PLAIN)
    tokens = tuple(token for word in plain.words for token in word.tokens)
    n_start = 4
    # All but the first go through one by one; the last is the end of the text.
    assert (plain.n_given, plain.n_sampled, plain.n_calls) == (n_start, len(tokens) + 1, len(tokens) + 1)
    drafted = decoder.decode(encoded, dataclasses.replace(PLAIN, draft=tokens))
    assert [word.text for word in drafted.words] == [word.text for word in plain.words]
    assert (drafted.n_given, drafted.n_sampled) == (plain.n_given, plain.n_sampled)
    assert drafted.n_calls == -(-(n_start + len(tokens)) // model.runtime.decoder.block_tokens)


def test_tokens_of_settled_words_are_told_from_those_that_were_found(
    model: WhisperModel, encoded: EncodedWindow
) -> None:
    decoder = WhisperDecoder(model, DecodingSettings())
    plain = decoder.decode(encoded, PLAIN)
    settled = tuple(token for word in plain.words[:3] for token in word.tokens)
    request = dataclasses.replace(PLAIN, prefix=settled, prompt="It was a long day.")
    behind = decoder.decode(encoded, request)
    assert (plain.n_begins_with, behind.n_begins_with) == (0, len(settled))
    tokens = [token for word in behind.words for token in word.tokens]
    assert len(tokens) == behind.n_begins_with + behind.n_sampled - 1  # the last is the end of the text
    assert behind.n_given > plain.n_given + behind.n_begins_with  # the prompt


def test_a_draft_is_left_alone_where_it_had_to_be_checked_token_by_token(
    model: WhisperModel, encoded: EncodedWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = WhisperDecoder(model, DecodingSettings())
    monkeypatch.setattr(Decoder, "block_tokens", 1)
    plain = decoder.decode(encoded, PLAIN)
    assert decoder.decode(encoded, dataclasses.replace(PLAIN, draft=(300,) * 20)) == plain
