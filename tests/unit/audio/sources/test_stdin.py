"""PCM from a pipe."""

import io
import itertools
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamer.audio.sources.stdin import StdinPcm
from streamer.constants import SAMPLE_RATE, PcmEncoding
from streamer.errors import AudioFileError
from tests.unit.audio.support import Recorder, pieces_of, played, written
from tests.waiting import WAIT_S

SAMPLES = np.random.default_rng(0).integers(-20_000, 20_000, 30_000).astype("<i2")
EXPECTED = SAMPLES.astype(np.float32) / 32768


def read_all(data: bytes, encoding: PcmEncoding = "s16le", rate: int = SAMPLE_RATE, channels: int = 1) -> Recorder:
    return played(StdinPcm(io.BytesIO(data), encoding, rate, channels))


@contextmanager
def piped(*, blocking: bool = True) -> Iterator[tuple[Recorder, int]]:
    """Read from a real pipe; give the end that is written to, which is closed in the block or behind it."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, blocking)
    recorder, source = Recorder(), StdinPcm(os.fdopen(read_end, "rb"), "s16le", SAMPLE_RATE, 1)
    source.start(recorder.callbacks)
    yield recorder, write_end
    source.stop()
    source.stop()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_real_pipe_cut_anywhere_loses_nothing(blocking: bool) -> None:
    with piped(blocking=blocking) as (recorder, write_end):
        for piece in pieces_of(SAMPLES.tobytes(), 777):
            os.write(write_end, piece)
        os.close(write_end)
        assert recorder.wait_for_end() is None
    np.testing.assert_array_equal(recorder.audio, EXPECTED)
    assert recorder.order == ["audio", "end"]


def test_audio_is_delivered_at_once_not_when_a_buffer_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StdinPcm, "stop_timeout_s", 0.0)
    with piped(blocking=False) as (recorder, write_end):
        assert not recorder.ended.wait(0.01)  # though the pipe is empty
        os.write(write_end, SAMPLES[:100].tobytes())
        assert recorder.heard.wait(WAIT_S)
    assert recorder.ends == []
    os.close(write_end)


def test_a_wav_header_wins_over_the_settings() -> None:
    recorder = read_all(written(EXPECTED, subtype="FLOAT"), "f32le", 48_000, 2)
    np.testing.assert_array_equal(recorder.audio, EXPECTED)
    assert (recorder.errors, recorder.ends) == ([], [None])


def test_raw_audio_that_begins_like_riff_is_raw_audio() -> None:
    np.testing.assert_array_equal(read_all(b"RIFF" + SAMPLES.tobytes()).audio[2:], EXPECTED)
    np.testing.assert_array_equal(read_all(b"RI").audio, [struct.unpack("<h", b"RI")[0] / 32768])


def test_a_pipe_that_cannot_be_decoded_ends_though_it_goes_on() -> None:
    header = written(EXPECTED, 2_000)
    pieces = itertools.chain([header[:12], header[12:]], itertools.repeat(bytes(1_000)))
    pipe: Any = SimpleNamespace(read=lambda n_bytes: next(pieces))
    [error] = played(StdinPcm(pipe, "s16le", SAMPLE_RATE, 1)).ends
    assert isinstance(error, AudioFileError)
