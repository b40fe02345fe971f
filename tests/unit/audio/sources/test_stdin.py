"""PCM from a pipe."""

import io
import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import soundfile

from streamer.audio.sources.stdin import StdinPcm
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, TruncatedAudioError
from tests.unit.audio.sources.recorder import Recorder
from tests.waiting import WAIT_S

SAMPLES = np.random.default_rng(0).integers(-20_000, 20_000, 30_000).astype("<i2")
EXPECTED = SAMPLES.astype(np.float32) / 32768


def read_all(stream: BinaryIO, format: str = "s16le", sample_rate: int = SAMPLE_RATE, channels: int = 1) -> Recorder:
    recorder = Recorder()
    source = StdinPcm(stream, format, sample_rate, channels)
    source.start(recorder.callbacks)
    recorder.wait_for_end()
    source.stop()
    assert len(recorder.ends) == 1
    return recorder


def wav(tmp_path: Path, subtype: str, sample_rate: int = SAMPLE_RATE) -> bytes:
    soundfile.write(tmp_path / "a.wav", EXPECTED, sample_rate, subtype=subtype)
    return (tmp_path / "a.wav").read_bytes()


def test_a_real_pipe_cut_anywhere_loses_nothing() -> None:
    read_end, write_end = os.pipe()
    recorder = Recorder()
    source = StdinPcm(os.fdopen(read_end, "rb"), "s16le", SAMPLE_RATE, 1)
    source.start(recorder.callbacks)
    data = SAMPLES.tobytes()
    for start in range(0, len(data), 777):
        os.write(write_end, data[start : start + 777])
    os.close(write_end)
    assert recorder.wait_for_end() is None
    np.testing.assert_array_equal(recorder.audio, EXPECTED)
    assert recorder.order == ["audio", "end"]


def test_audio_is_heard_at_once_not_when_a_buffer_is_full() -> None:
    read_end, write_end = os.pipe()
    recorder = Recorder()
    source = StdinPcm(os.fdopen(read_end, "rb"), "s16le", SAMPLE_RATE, 1)
    source.start(recorder.callbacks)
    os.write(write_end, SAMPLES[:100].tobytes())
    assert recorder.heard.wait(WAIT_S)
    source.stop()
    source.stop()
    assert recorder.ends == []
    os.close(write_end)


@pytest.mark.skipif(not hasattr(os, "set_blocking"), reason="the system cannot change how a pipe reads")
def test_a_pipe_that_does_not_block_has_not_ended_when_it_is_empty() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    recorder = Recorder()
    source = StdinPcm(os.fdopen(read_end, "rb"), "s16le", SAMPLE_RATE, 1)
    source.start(recorder.callbacks)
    assert not recorder.ended.wait(0.1)
    os.write(write_end, SAMPLES[:20_000].tobytes())
    os.close(write_end)
    assert recorder.wait_for_end() is None
    np.testing.assert_array_equal(recorder.audio, EXPECTED[:20_000])


def test_a_float_stream_of_another_rate() -> None:
    tone = np.sin(np.arange(44_100) * 0.05).astype("<f4")
    recorder = read_all(io.BytesIO(np.stack([tone, tone], 1).tobytes()), "f32le", 44_100, 2)
    assert len(recorder.audio) == SAMPLE_RATE


@pytest.mark.parametrize(
    ("subtype", "tolerance"), [("PCM_16", 0.0), ("FLOAT", 0.0), ("PCM_24", 1e-4), ("DOUBLE", 1e-6)]
)
def test_a_wav_header_wins_over_the_settings(tmp_path: Path, subtype: str, tolerance: float) -> None:
    recorder = read_all(io.BytesIO(wav(tmp_path, subtype)), "f32le", 48_000, 2)
    np.testing.assert_allclose(recorder.audio, EXPECTED, rtol=0, atol=tolerance)
    assert recorder.ends == [None]


@pytest.mark.parametrize("length", [0, 0xFFFF_FFFF, 0x7FFF_FFFF, 2_000_000_000, 0x7F00_0000 - 36])
def test_a_wav_that_does_not_know_its_length_goes_on_to_the_end(tmp_path: Path, length: int) -> None:
    data = bytearray(wav(tmp_path, "PCM_16"))
    data[40:44] = struct.pack("<I", length)
    recorder = read_all(io.BytesIO(data))
    np.testing.assert_array_equal(recorder.audio, EXPECTED)
    assert recorder.ends == [None]


def test_a_truncated_wav_is_told_at_the_end(tmp_path: Path) -> None:
    recorder = read_all(io.BytesIO(wav(tmp_path, "PCM_16")[: 44 + 20_000]))
    np.testing.assert_array_equal(recorder.audio, EXPECTED[:10_000])
    [error] = recorder.ends
    assert isinstance(error, TruncatedAudioError)
    assert error.found_s == pytest.approx(10_000 / SAMPLE_RATE)
    assert error.expected_s == pytest.approx(30_000 / SAMPLE_RATE)


def test_wavs_one_behind_another_and_audio_that_a_header_leaves_out(tmp_path: Path) -> None:
    data = wav(tmp_path, "PCM_16")
    recorder = read_all(io.BytesIO(data + wav(tmp_path, "FLOAT", 48_000) + data))
    assert len(recorder.audio) == pytest.approx(len(SAMPLES) * 7 / 3, rel=0.01)
    assert (recorder.errors, recorder.ends) == ([], [None])
    recorder = read_all(io.BytesIO(data + SAMPLES.tobytes()))
    np.testing.assert_array_equal(recorder.audio, EXPECTED)
    (error,) = recorder.errors
    assert "standard input: the audio goes on behind the 1.88 s" in str(error)


def test_a_wav_without_audio_that_can_be_read_is_refused(tmp_path: Path) -> None:
    for data, fact in (
        (wav(tmp_path, "PCM_16", 2_000), "2000 samples a second"),
        (b"RIFF" + bytes(4) + b"WAVE", "ends within its header"),
        (b"RIFF" + bytes(4) + b"WAVE" + b"junk\xff\xff\xff\xff" + bytes(100), "ends within its header"),
        (b"RIFF" + bytes(4) + b"WAVE" + bytes(100_000), "cannot be decoded"),
        (wav(tmp_path, "PCM_16")[:40] + bytes(4), "is empty"),
        (b"", "is empty"),
    ):
        recorder = read_all(io.BytesIO(data))
        [error] = recorder.ends
        assert isinstance(error, AudioFileError)
        assert fact in str(error)
        assert "\n" not in str(error)
        assert recorder.blocks == []


def test_raw_audio_that_begins_like_riff_is_raw_audio() -> None:
    data = b"RIFF" + SAMPLES.tobytes()
    np.testing.assert_array_equal(read_all(io.BytesIO(data)).audio[2:], EXPECTED)
    np.testing.assert_array_equal(read_all(io.BytesIO(b"RI")).audio, [struct.unpack("<h", b"RI")[0] / 32768])


def test_problems_of_the_samples_are_told_with_their_code() -> None:
    samples = np.array([0.5, np.nan, 2.0], dtype="<f4")
    recorder = read_all(io.BytesIO(samples.tobytes() + b"\x00"), "f32le")
    assert recorder.audio.tolist() == [0.5, 0.0, 1.0]
    assert [error.code for error in recorder.errors] == ["bad_samples", "out_of_range", "odd_bytes"]
