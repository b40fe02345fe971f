"""The last hypothesis as the draft of the next, with the real model."""

import dataclasses

import numpy as np
import pytest

from streamer.audio.mel import log_mel
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.session.task import Request
from streamer.settings.table import DecodingSettings
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.model import WhisperModel
from tests.daemon import REPOSITORY, recording

SAMPLES = recording(REPOSITORY / "tests" / "data" / "speech.flac")
PLAIN = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=len(SAMPLES))


def test_a_draft_changes_no_word_and_tokens_are_told_by_where_they_come_from(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = WhisperEncoder(model).encode(log_mel(SAMPLES, 80).astype(np.float32), 0, len(SAMPLES))
    decoder = WhisperDecoder(model, DecodingSettings())
    plain = decoder.decode(encoded, PLAIN)
    tokens = tuple(token for word in plain.words for token in word.tokens)
    drafted = decoder.decode(encoded, dataclasses.replace(PLAIN, draft=tokens))
    assert [word.text for word in drafted.words] == [word.text for word in plain.words]
    assert drafted.n_calls == -(-(plain.n_given + len(tokens)) // model.runtime.decoder.block_tokens)
    behind = decoder.decode(encoded, dataclasses.replace(PLAIN, prefix=tokens[:3], prompt="It was a long day."))
    assert (plain.n_begins_with, behind.n_begins_with) == (0, 3)
    assert sum(len(word.tokens) for word in behind.words) == 3 + behind.n_sampled - 1  # the last is the end of the text
    assert behind.n_given > plain.n_given + 3  # the prompt
    # Where a draft had to be checked token by token it is left alone.
    monkeypatch.setattr(Decoder, "block_tokens", 1)
    assert decoder.decode(encoded, dataclasses.replace(PLAIN, draft=(300,) * 20)) == decoder.decode(encoded, PLAIN)
