"""Audio of clients in other formats than ours, against libsndfile's reading of it."""

import io
import threading

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from streamer.audio.encodings import ALAW, MULAW, AudioFormat, AudioReader, Encoding
from tests.unit.audio.support import muxed, patched, pieces_of, written
from tests.waiting import WAIT_S

SAMPLES = np.random.default_rng(0).integers(-20_000, 20_000, (500, 2)).astype("<i2")
WAV = written(SAMPLES, 44_100, subtype="PCM_16")


def read_all(data: bytes, size: int = 10_000) -> tuple[AudioReader, bytes]:
    """Return a reader behind all of a stream, and what it made of pieces of some size."""
    reader = AudioReader(None)
    pieces = [reader.read(piece) for piece in pieces_of(data, size)]
    return reader, b"".join((*pieces, *iter(reader.finish, b"")))


@pytest.mark.parametrize(("encoding", "subtype"), [(MULAW, "ULAW"), (ALAW, "ALAW")])
def test_each_code_of_g711_is_what_libsndfile_reads(encoding: Encoding, subtype: str) -> None:
    codes = io.BytesIO(bytes(range(256)))  # libsndfile has the ITU's tables
    expected, _ = soundfile.read(codes, dtype="int16", format="RAW", subtype=subtype, samplerate=8000, channels=1)
    np.testing.assert_array_equal(np.frombuffer(encoding.decode(codes.getvalue()), "<i2"), expected)
    assert encoding.decode(b"") == b""


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "ULAW", "ALAW"])
def test_a_wav_reads_as_libsndfile_reads_it_wherever_it_is_cut(subtype: str, size: int) -> None:
    data = written(SAMPLES, 44_100, subtype=subtype)
    reader, decoded = read_all(data, size)
    assert reader.format is not None
    assert (reader.format.sample_rate, reader.format.channels) == (44_100, 2)
    floats = reader.format.encoding.format == "f32le"
    expected: NDArray[np.int16] = soundfile.read(io.BytesIO(data), dtype="float32" if floats else "int16")[0]
    np.testing.assert_array_equal(np.frombuffer(decoded, expected.dtype), expected.ravel())
    assert reader.read_s == reader.announced_s == 500 / 44_100


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("length", [None, 0, 0xFFFF_FFFF])
def test_a_wav_in_each_message_goes_on(size: int, length: int | None) -> None:
    first = WAV if length is None else patched(WAV, 40, length.to_bytes(4, "little"))
    reader, decoded = read_all(first + b"LIST\4\0\0\0INFO" * (length is None) + WAV + WAV, size)
    np.testing.assert_array_equal(np.frombuffer(decoded, "<i2"), np.tile(SAMPLES.ravel(), 3))
    assert reader.announced_s == pytest.approx(reader.read_s)
    assert reader.missing_s == pytest.approx(0.0, abs=1e-9)
    assert reader.take_problems() == []


@pytest.mark.parametrize("size", [7, 100_000])
def test_a_wav_of_another_format_is_made_the_same(size: int) -> None:
    tone = np.sin(np.arange(22_050) * 2 * np.pi * 440 / 22_050).astype(np.float32)
    _, decoded = read_all(WAV + written(0.5 * tone, 22_050, subtype="FLOAT"), size)
    frames = np.frombuffer(decoded, "<i2").reshape(-1, 2)
    np.testing.assert_array_equal(frames[:500], SAMPLES)
    assert len(frames) == pytest.approx(500 + 44_100, rel=0.01)
    expected = 16_384 * np.sin(np.arange(40_000) * 2 * np.pi * 440 / 44_100)
    np.testing.assert_allclose(frames[600:40_500], np.stack([expected[100:]] * 2, axis=1), atol=200)


def test_audio_behind_what_a_header_announces_is_reported_once() -> None:
    reader, decoded = read_all(WAV + SAMPLES.tobytes() * 100, 1_000)
    assert len(decoded) == SAMPLES.nbytes
    assert (len(reader.take_problems()), reader.take_problems()) == (1, [])


@pytest.mark.parametrize("size", [1_000, 100_000])
@pytest.mark.parametrize(("format", "subtype"), [("WAV", "DOUBLE"), ("FLAC", "PCM_16")])
def test_other_files_are_decoded_as_they_come(format: str, subtype: str, size: int) -> None:
    data = written(np.tile(SAMPLES, (120, 1)), 44_100, format=format, subtype=subtype)
    reader = AudioReader(None)
    pieces = [reader.read(piece) for piece in pieces_of(data, size)]
    assert any(pieces)  # and not only at the end
    decoded = np.frombuffer(b"".join((*pieces, reader.finish())), "<f4")
    np.testing.assert_array_equal(decoded, soundfile.read(io.BytesIO(data), dtype="float32")[0].ravel())
    assert reader.read_s == 60_000 / 44_100


def test_a_browsers_recording_is_decoded_as_it_is_spoken() -> None:
    spoken = np.tile(SAMPLES.reshape(-1), 192)
    data = muxed("webm", "libopus", spoken, sample_rate=48_000, options={"cluster_time_limit": "100"})
    reader = AudioReader(None)
    half = len(data) // 100 * 50
    for piece in pieces_of(data[:half], 50):
        reader.read(piece)
    assert reader.read_s == pytest.approx(2.0, abs=0.5)
    reader.read(data[half:])
    reader.finish()
    assert reader.read_s == pytest.approx(4.0, abs=0.05)


def test_raw_samples_are_joined_to_whole_frames() -> None:
    reader = AudioReader(AudioFormat(MULAW, 8000, 2))
    assert [reader.read(piece) for piece in (b"\xff", b"\xff\x80", b"")] == [b"", bytes(4), b""]
    assert (reader.read_s, reader.finish()) == (1 / 8000, b"")


def test_a_stream_that_is_dropped_ends_its_thread() -> None:
    reader = AudioReader(None)
    reader.read(b"fLaC")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "container"]
    del reader
    thread.join(WAIT_S)
    assert not thread.is_alive()
