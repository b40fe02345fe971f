"""Log-mel spectrograms against transformers and openai-whisper."""

import errno
import tempfile
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import transformers
import whisper.audio

from streamer.audio.mel import LogMelRecording, LogMelStream, log_mel
from streamer.constants import HOP_LENGTH, N_FRAMES, N_SAMPLES, SAMPLE_RATE
from streamer.errors import StreamerError
from tests.unit.whisper.support import SPEECH, Samples, Untyped, noise, read

TOLERANCE = 1e-5

# The references' own rounding in float32, seen on speech so clean that bins lie eight decades below others in one
# frame: transformers' float32 result is as far from transformers' float64 result.
FLOAT32_TOLERANCE = 1e-4

INPUTS = {
    "speech": read(SPEECH),
    "speech_30_s": np.tile(read(SPEECH), 3)[:N_SAMPLES],
    "silence": np.zeros(N_SAMPLES, dtype=np.float32),
    "one_sample": np.array([0.5], dtype=np.float32),
    # Ways in which the audio's end can lie to frames, padding and the reflection at 30 s.
    **{f"noise_{n}": noise(n) for n in (0, 2, 160, 200, 201, 360, 361, 479_640, 479_799, 479_800, 479_999, 480_000)},
}

# How the end of the audio lies has nothing to do with the number of bins.
every_input = pytest.mark.parametrize(("name", "n_mels"), [*((name, 80) for name in INPUTS), ("speech", 128)])


def feature_extractor(n_mels: int) -> Untyped:
    return transformers.WhisperFeatureExtractor(feature_size=n_mels)


def padded(samples: Samples) -> Samples:
    return np.pad(samples, (0, N_SAMPLES - len(samples)))


@every_input
def test_equal_to_both_in_float64(name: str, n_mels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = log_mel(INPUTS[name], n_mels)
    assert actual.shape == (n_mels, N_FRAMES)
    assert actual.dtype == np.float32
    expected = feature_extractor(n_mels)._np_extract_fbank_features(padded(INPUTS[name])[None], "cpu")[0]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)

    filters = whisper.audio.mel_filters("cpu", n_mels).double()
    window = torch.hann_window
    monkeypatch.setattr(torch, "hann_window", lambda length: window(length, dtype=torch.float64))
    monkeypatch.setattr(whisper.audio, "mel_filters", lambda device, n_mels: filters)
    expected = whisper.audio.log_mel_spectrogram(torch.tensor(padded(INPUTS[name])).double(), n_mels).numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("name", "n_mels"), [("speech", 80), ("speech", 128), ("silence", 80), ("noise_479799", 80)])
def test_as_near_to_both_in_float32_as_float32_allows(name: str, n_mels: int) -> None:
    samples = padded(INPUTS[name])
    openai = whisper.audio.log_mel_spectrogram(torch.tensor(samples), n_mels).numpy()
    features = feature_extractor(n_mels)._torch_extract_fbank_features(samples[None], "cpu")[0]
    for expected in (openai, features):
        difference = np.abs(log_mel(INPUTS[name], n_mels) - expected)
        assert difference.max() <= (FLOAT32_TOLERANCE if name == "speech" else TOLERANCE)
        assert np.mean(difference <= TOLERANCE) > 0.995


def test_longer_audio_is_cut_at_30_s() -> None:
    audio = noise(N_SAMPLES + 5000)
    np.testing.assert_array_equal(log_mel(audio, 80), log_mel(audio[:N_SAMPLES], 80))


@pytest.mark.parametrize("n_mels", [80, 128])
def test_windows_equal_the_whole_computed_alone(n_mels: int) -> None:
    """Windows that grow, that move, that shrink, that jump ahead and back."""
    audio = noise(100 * SAMPLE_RATE, seed=3)
    audio[50 * SAMPLE_RATE :] *= 1e-3
    stream = LogMelStream(n_mels)
    random = np.random.default_rng(4)
    start, end = 0, 0
    for step in range(40):
        if step % 10 == 9:
            start = HOP_LENGTH * int(random.integers(0, len(audio) // HOP_LENGTH))
            end = start
        elif end - start > 20 * SAMPLE_RATE or step % 4 == 3:
            start += HOP_LENGTH * int(random.integers(0, (end - start) // HOP_LENGTH + 1))
        end = min(len(audio), start + N_SAMPLES, max(start, end + int(random.integers(-3000, 40_000))))
        found = stream.window(audio[start:end], start)
        np.testing.assert_allclose(found, log_mel(audio[start:end], n_mels), rtol=0, atol=1e-6)


def test_only_new_frames_are_computed() -> None:
    audio = noise(31 * SAMPLE_RATE)
    stream = LogMelStream(80)
    stream.window(audio[: 20 * SAMPLE_RATE], 0)
    for start_s, end_s in ((0, 21), (0, 22), (0, 30), (25, 31)):
        before, n_new_s = stream.frames_computed, 8 if end_s == 30 else 1
        stream.window(audio[start_s * SAMPLE_RATE : end_s * SAMPLE_RATE], start_s * SAMPLE_RATE)
        assert 100 * n_new_s <= stream.frames_computed - before <= 100 * n_new_s + 6


def test_a_start_between_frames_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        LogMelStream(80).window(noise(1000), 161)


def blocks_of(samples: Samples, block_samples: int) -> Iterator[Samples]:
    return (samples[first : first + block_samples] for first in range(0, len(samples), block_samples))


# Every way in which the end of a recording can lie to the blocks of 3000 frames.
LENGTHS = (
    *(0, 1, 160, N_SAMPLES - 1, N_SAMPLES, N_SAMPLES + 1, N_SAMPLES + 160, N_SAMPLES + 200),
    *(2 * N_SAMPLES - 1, 2 * N_SAMPLES, 2 * N_SAMPLES + 200, 2 * N_SAMPLES + 201),
)


@pytest.mark.parametrize("n_samples", LENGTHS)
def test_blocks_of_any_size_give_exactly_the_whole(n_samples: int) -> None:
    audio = noise(n_samples, seed=n_samples)
    audio[n_samples // 2 :] *= 1e-5
    recording = LogMelRecording([audio], 80)
    whole = recording.frames(0, recording.n_frames)
    for block_samples in (1600, 70_001):
        recording = LogMelRecording(blocks_of(audio, block_samples), 80)
        assert (recording.n_samples, recording.n_frames) == (n_samples, whole.shape[1])
        # In any order.
        for start in (*range(0, recording.n_frames, 1700), 0):
            end = min(start + N_FRAMES, recording.n_frames)
            np.testing.assert_array_equal(recording.frames(start, end), whole[:, start:end])


@pytest.mark.parametrize("n_samples", [0, 1, 250, N_SAMPLES, N_SAMPLES + 321])
def test_a_padded_file_gives_what_openai_whisper_gives(n_samples: int) -> None:
    audio = np.tile(read(SPEECH), 4)[:n_samples]
    recording = LogMelRecording(blocks_of(audio, 1600), 80, padding_samples=N_SAMPLES)
    expected = whisper.audio.log_mel_spectrogram(torch.tensor(audio), padding=N_SAMPLES).numpy()
    assert (recording.n_samples, recording.n_frames) == (n_samples, expected.shape[1])
    np.testing.assert_allclose(recording.frames(0, recording.n_frames), expected, rtol=0, atol=FLOAT32_TOLERANCE)


def test_a_long_file_takes_no_more_memory_than_a_short_one() -> None:
    minute = noise(60 * SAMPLE_RATE)

    def peak_bytes(n_minutes: int) -> int:
        tracemalloc.start()
        try:
            recording = LogMelRecording((minute for _ in range(n_minutes)), 80)
            for start in range(0, recording.n_frames, recording.n_frames // 4):
                recording.frames(start, min(start + N_FRAMES, recording.n_frames))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(8) < 1.1 * peak_bytes(3)


def test_a_disk_that_is_full_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(StreamerError):
        LogMelRecording(blocks_of(noise(3 * N_SAMPLES), 1600), 80)
