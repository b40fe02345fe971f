"""Log-mel spectrograms against transformers and openai-whisper."""

import errno
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers
import whisper.audio
from numpy.typing import NDArray

from streamer.audio.mel import LogMelRecording, LogMelStream, log_mel, mel_filters
from streamer.constants import HOP_LENGTH, N_FRAMES, N_SAMPLES, SAMPLE_RATE
from streamer.errors import StreamerError

SPEECH = Path(__file__).parents[1] / "data" / "speech.flac"

TOLERANCE = 1e-5

# The references' own rounding in float32, seen on speech so clean that bins lie eight decades below others in one
# frame: transformers' float32 result is as far from transformers' float64 result.
FLOAT32_TOLERANCE = 1e-4

Samples = NDArray[np.float32]


def speech() -> Samples:
    samples, sample_rate = soundfile.read(SPEECH, dtype="float32")
    assert sample_rate == SAMPLE_RATE
    return np.asarray(samples)


def white_noise(n_samples: int, seed: int = 0) -> Samples:
    return (0.1 * np.random.default_rng(seed).standard_normal(n_samples)).astype(np.float32)


INPUTS = {
    "speech": speech(),
    "speech_30_s": np.tile(speech(), 3)[:N_SAMPLES],
    "speech_in_noise": speech() + 0.05 * white_noise(len(speech())),
    "white_noise": white_noise(N_SAMPLES),
    "silence": np.zeros(N_SAMPLES, dtype=np.float32),
    "one_sample": np.array([0.5], dtype=np.float32),
    "no_sample": np.empty(0, dtype=np.float32),
    **{
        # Every way in which the audio's end can lie to frames, padding and the reflection at 30 s.
        f"noise_{n}": white_noise(n)
        for n in (2, 160, 199, 200, 201, 359, 360, 361, 520, 521, 479_640, 479_641, 479_799, 479_800, 479_999)
    },
}


# How the end of the audio lies has nothing to do with the number of bins.
every_input = pytest.mark.parametrize(
    ("name", "n_mels"), [*((name, 80) for name in INPUTS), ("speech", 128), ("white_noise", 128)]
)


@pytest.fixture(params=[80, 128])
def n_mels(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def doubles() -> Iterator[None]:
    """Make torch compute in float64 where nothing else is asked for."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def feature_extractor(n_mels: int) -> Any:  # noqa: ANN401 - transformers is untyped
    return transformers.WhisperFeatureExtractor(feature_size=n_mels)  # type: ignore[no-untyped-call]


def padded(samples: Samples) -> Samples:
    return np.pad(samples, (0, N_SAMPLES - len(samples)))


def test_the_filter_bank_is_whispers(n_mels: int) -> None:
    filters = mel_filters(n_mels)
    assert filters.shape == (n_mels, 201)
    assert filters.dtype == np.float32
    np.testing.assert_allclose(filters, whisper.audio.mel_filters("cpu", n_mels).numpy(), atol=1e-8)
    extractor = feature_extractor(n_mels)
    np.testing.assert_allclose(filters, extractor.mel_filters.T, atol=1e-8)


@every_input
def test_equal_to_transformers_in_float64(name: str, n_mels: int) -> None:
    extractor = feature_extractor(n_mels)
    expected = extractor._np_extract_fbank_features(padded(INPUTS[name])[None], "cpu")[0]
    actual = log_mel(INPUTS[name], n_mels)
    assert actual.shape == (n_mels, N_FRAMES)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.usefixtures("doubles")
@every_input
def test_equal_to_openai_whisper_in_float64(name: str, n_mels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    filters = whisper.audio.mel_filters("cpu", n_mels).double()
    monkeypatch.setattr(whisper.audio, "mel_filters", lambda device, n_mels: filters)
    expected = whisper.audio.log_mel_spectrogram(torch.tensor(padded(INPUTS[name])).double(), n_mels).numpy()
    np.testing.assert_allclose(log_mel(INPUTS[name], n_mels), expected, rtol=0, atol=TOLERANCE)


@every_input
def test_as_near_to_both_in_float32_as_float32_allows(name: str, n_mels: int) -> None:
    actual = log_mel(INPUTS[name], n_mels)
    openai = whisper.audio.log_mel_spectrogram(torch.tensor(padded(INPUTS[name])), n_mels).numpy()
    extractor = feature_extractor(n_mels)
    features = extractor._torch_extract_fbank_features(padded(INPUTS[name])[None], "cpu")[0]
    for expected in (openai, features):
        difference = np.abs(actual - expected)
        assert difference.max() <= (FLOAT32_TOLERANCE if name.startswith("speech") else TOLERANCE)
        assert np.mean(difference <= TOLERANCE) > 0.995


def test_longer_audio_is_cut_at_30_s(n_mels: int) -> None:
    audio = white_noise(N_SAMPLES + 5000)
    np.testing.assert_array_equal(log_mel(audio, n_mels), log_mel(audio[:N_SAMPLES], n_mels))


def test_windows_equal_the_whole_computed_alone(n_mels: int) -> None:
    """Windows that grow, that move, that shrink, that jump ahead and back."""
    audio = white_noise(100 * SAMPLE_RATE, seed=3)
    audio[50 * SAMPLE_RATE :] *= 1e-3
    stream = LogMelStream(n_mels)
    random = np.random.default_rng(4)
    start, end = 0, 0
    for step in range(60):
        if step % 10 == 9:
            start = HOP_LENGTH * int(random.integers(0, len(audio) // HOP_LENGTH))
            end = start
        elif end - start > 20 * SAMPLE_RATE or step % 4 == 3:
            start += HOP_LENGTH * int(random.integers(0, (end - start) // HOP_LENGTH + 1))
        end = min(len(audio), start + N_SAMPLES, max(start, end + int(random.integers(-3000, 40_000))))
        np.testing.assert_allclose(
            stream.window(audio[start:end], start), log_mel(audio[start:end], n_mels), rtol=0, atol=1e-6
        )


def test_only_new_frames_are_computed() -> None:
    audio = white_noise(60 * SAMPLE_RATE)
    stream = LogMelStream(80)
    stream.window(audio[: 20 * SAMPLE_RATE], 0)
    for end_s in range(21, 31):
        before = stream.frames_computed
        stream.window(audio[: end_s * SAMPLE_RATE], 0)
        assert 100 <= stream.frames_computed - before <= 106
    before = stream.frames_computed
    stream.window(audio[25 * SAMPLE_RATE : 31 * SAMPLE_RATE], 25 * SAMPLE_RATE)
    assert stream.frames_computed - before <= 106


def test_a_start_between_frames_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="multiple of 160"):
        LogMelStream(80).window(white_noise(1000), 161)


def blocks_of(samples: Samples, block_samples: int) -> Iterator[Samples]:
    return (samples[first : first + block_samples] for first in range(0, len(samples), block_samples))


def whole_of(recording: LogMelRecording) -> Samples:
    """Return all frames of a recording, shape (n_mels, n_frames)."""
    return recording.frames(0, recording.n_frames)


# Every way in which the end of a recording can lie to the blocks of 3000 frames.
LENGTHS = (
    *(0, 1, 160, N_SAMPLES - 1, N_SAMPLES, N_SAMPLES + 1, N_SAMPLES + 159, N_SAMPLES + 160, N_SAMPLES + 200),
    *(2 * N_SAMPLES - 1, 2 * N_SAMPLES, 2 * N_SAMPLES + 199, 2 * N_SAMPLES + 200, 2 * N_SAMPLES + 201),
    2 * N_SAMPLES + 12_345,
)


@pytest.mark.parametrize("n_samples", LENGTHS)
def test_blocks_of_any_size_give_exactly_the_whole(n_samples: int) -> None:
    audio = white_noise(n_samples, seed=n_samples)
    audio[n_samples // 2 :] *= 1e-5
    whole = whole_of(LogMelRecording([audio], 80))
    for block_samples in (1600, 70_001, 1_000_000):
        recording = LogMelRecording(blocks_of(audio, block_samples), 80)
        assert (recording.n_samples, recording.n_frames) == (n_samples, whole.shape[1])
        # In any order.
        for start in (*range(0, recording.n_frames, 1700), 0):
            end = min(start + N_FRAMES, recording.n_frames)
            np.testing.assert_array_equal(recording.frames(start, end), whole[:, start:end])


@pytest.mark.parametrize("n_samples", [0, 1, 250, N_SAMPLES, N_SAMPLES + 321])
def test_a_padded_file_gives_what_openai_whisper_gives(n_samples: int) -> None:
    audio = np.tile(speech(), 4)[:n_samples]
    recording = LogMelRecording(blocks_of(audio, 1600), 80, padding_samples=N_SAMPLES)
    expected = whisper.audio.log_mel_spectrogram(torch.tensor(audio), padding=N_SAMPLES).numpy()
    assert recording.n_samples == n_samples
    assert recording.n_frames == expected.shape[1]
    np.testing.assert_allclose(whole_of(recording), expected, rtol=0, atol=FLOAT32_TOLERANCE)


def test_a_long_file_takes_no_more_memory_than_a_short_one() -> None:
    minute = white_noise(60 * SAMPLE_RATE)

    def peak_bytes(n_minutes: int) -> int:
        tracemalloc.start()
        try:
            recording = LogMelRecording((minute for _ in range(n_minutes)), 80)
            for start in range(0, recording.n_frames, recording.n_frames // 4):
                recording.frames(start, min(start + N_FRAMES, recording.n_frames))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(20) < 1.1 * peak_bytes(4)


def test_a_disk_that_is_full_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(StreamerError, match=r"\(No space left on device\): expected room for 3 MB a minute"):
        LogMelRecording(blocks_of(white_noise(3 * N_SAMPLES), 1600), 80)
