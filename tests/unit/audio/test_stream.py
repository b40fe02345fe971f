"""Whole files as clients send them, cut anywhere, against libsndfile's reading of them."""

import io
import threading

import numpy as np
import pytest
import soundfile

from streamer.arrays import Float32Array
from streamer.audio.stream import StreamDecoder
from streamer.constants import SAMPLE_RATE
from tests.unit.audio.support import muxed, patched, pieces_of, written
from tests.waiting import WAIT_S

SAMPLES = np.random.default_rng(0).integers(-20_000, 20_000, 5_000).astype("<i2")
EXPECTED = SAMPLES.astype(np.float32) / 32_768
WAV = written(SAMPLES, subtype="PCM_16")


def decoded(data: bytes, size: int = 10_000) -> tuple[StreamDecoder, Float32Array]:
    """Return a decoder behind all of a stream, and what it made of pieces of some size."""
    decoder = StreamDecoder()
    blocks = [decoder.decode(piece) for piece in pieces_of(data, size)]
    return decoder, np.concatenate([*blocks, decoder.finish()])


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "ULAW", "ALAW"])
def test_a_wav_reads_as_libsndfile_reads_it_wherever_it_is_cut(subtype: str, size: int) -> None:
    data = written(EXPECTED, subtype=subtype)
    decoder, samples = decoded(data, size)
    np.testing.assert_array_equal(samples, soundfile.read(io.BytesIO(data), dtype="float32")[0])
    assert (decoder.decoded_s, decoder.missing_s, decoder.failure) == (5_000 / SAMPLE_RATE, 0.0, None)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("length", [None, 0, 0xFFFF_FFFF, 2_000_000_000])
def test_a_wav_in_each_message_goes_on(size: int, length: int | None) -> None:
    first = WAV if length is None else patched(WAV, 40, length.to_bytes(4, "little"))
    decoder, samples = decoded(first + b"LIST\4\0\0\0INFO" * (length is None) + WAV + first, size)
    np.testing.assert_array_equal(samples, np.tile(EXPECTED, 3))
    assert (decoder.missing_s, decoder.take_problems()) == (0.0, [])


@pytest.mark.parametrize(("size", "subtype"), [(77, "FLOAT"), (100_000, "DOUBLE")])
def test_a_wav_of_another_format_goes_on(size: int, subtype: str) -> None:
    tone = 0.5 * np.sin(np.arange(22_050) * 2 * np.pi * 440 / 22_050)
    decoder, samples = decoded(WAV + written(np.stack([tone, tone], axis=1), 22_050, subtype=subtype), size)
    np.testing.assert_array_equal(samples[:5_000], EXPECTED)
    expected = 0.5 * np.sin(np.arange(SAMPLE_RATE) * 2 * np.pi * 440 / SAMPLE_RATE)
    np.testing.assert_allclose(samples[5_100:20_900], expected[100:-100], rtol=0, atol=2e-3)
    assert decoder.decoded_s == pytest.approx(1.0 + 5_000 / SAMPLE_RATE)


def test_audio_behind_what_a_header_announces_is_reported_once() -> None:
    decoder, samples = decoded(WAV + SAMPLES.tobytes() * 100, 1_000)
    assert len(samples) == len(SAMPLES)
    assert [code for code, _ in decoder.take_problems()] == ["ignored"]
    assert decoder.take_problems() == []


@pytest.mark.parametrize("size", [1_000, 100_000])
@pytest.mark.parametrize(
    ("format", "subtype", "held_bytes"),
    [("WAVEX", "PCM_16", 0), ("WAV", "DOUBLE", 120_000), ("FLAC", "PCM_16", 100_000)],
)
def test_files_are_decoded_as_they_come(format: str, subtype: str, held_bytes: int, size: int) -> None:
    data = written(np.tile(EXPECTED, (2, 24)).T, format=format, subtype=subtype)
    decoder = StreamDecoder()
    blocks = [decoder.decode(piece) for piece in pieces_of(data, size)]
    assert next(i for i, block in enumerate(blocks) if len(block)) * size <= held_bytes
    expected = soundfile.read(io.BytesIO(data), dtype="float32")[0]
    np.testing.assert_array_equal(np.concatenate([*blocks, decoder.finish()]), expected[:, 0])
    assert decoder.decoded_s == pytest.approx(7.5)


def test_a_browsers_recording_is_decoded_as_it_is_spoken() -> None:
    spoken = np.tile(SAMPLES, 39)
    data = muxed("webm", "libopus", spoken, sample_rate=48_000, options={"cluster_time_limit": "100"})
    decoder = StreamDecoder()
    assert not decoder.begun
    half = len(data) // 100 * 50
    n_samples = sum(len(decoder.decode(piece)) for piece in pieces_of(data[:half], 50))
    assert decoder.begun
    assert decoder.decoded_s == pytest.approx(2.0, abs=0.5)
    assert n_samples == pytest.approx(decoder.decoded_s * SAMPLE_RATE, abs=500)
    decoder.decode(data[half:])
    decoder.finish()
    assert decoder.decoded_s == pytest.approx(4.0, abs=0.1)


def test_what_came_before_audio_that_cannot_be_decoded_is_decoded() -> None:
    flac = written(SAMPLES, format="FLAC")
    decoder, samples = decoded(flac + flac[:42] + bytes(3_000))
    np.testing.assert_array_equal(samples, EXPECTED)
    assert decoder.failure is not None
    assert len(decoder.decode(flac)) == len(decoder.finish()) == 0


def test_a_stream_that_is_dropped_ends_its_thread() -> None:
    decoder = StreamDecoder()
    decoder.decode(b"fLaC")
    assert (decoder.begun, decoder.decoded_s) == (False, 0.0)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "container"]
    del decoder
    thread.join(WAIT_S)
    assert not thread.is_alive()
