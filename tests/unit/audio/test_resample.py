"""Resampling to 16 kHz mono."""

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.resample import Mixer, Resampler
from streamer.constants import SAMPLE_RATE


def tone(sample_rate: int, frequency: float, duration_s: float) -> Float32Array:
    return np.sin(2 * np.pi * frequency * np.arange(int(sample_rate * duration_s)) / sample_rate).astype(np.float32)


def convert(resampler: Resampler, frames: Float32Array, block_frames: int = 1_000) -> Float32Array:
    blocks = [resampler.process(frames[i : i + block_frames]) for i in range(0, len(frames), block_frames)]
    return np.concatenate([*blocks, resampler.flush()])


def speech_like(duration_s: float = 2.0) -> Float32Array:
    """Noise that comes and goes, as speech does, shape (n,)."""
    n = round(duration_s * SAMPLE_RATE)
    noise = np.random.default_rng(0).standard_normal(n)
    return (0.2 * noise * (np.sin(np.arange(n) / SAMPLE_RATE * 20) > -0.5)).astype(np.float32)


@pytest.mark.parametrize("sample_rate", [4_000, 8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 384_000])
def test_a_tone_stays_the_same_tone(sample_rate: int) -> None:
    result = convert(Resampler(sample_rate, 1), tone(sample_rate, 440.0, 1.0)[:, None])
    assert abs(len(result) - SAMPLE_RATE) <= 1
    np.testing.assert_allclose(result[2000:14_000], tone(SAMPLE_RATE, 440.0, 1.0)[2000:14_000], atol=2e-3)


def test_16_khz_mono_passes_unchanged_and_channels_are_averaged() -> None:
    frames = np.random.default_rng(0).uniform(-1, 1, (5_000, 3)).astype(np.float32)
    np.testing.assert_array_equal(convert(Resampler(SAMPLE_RATE, 1), frames[:, :1], 333), frames[:, 0])
    np.testing.assert_allclose(Resampler(SAMPLE_RATE, 3).process(frames), frames.mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize(
    ("gains", "cancel"),
    [
        *((gains, True) for gains in ((1.0, -1.0), (-0.5, 0.5), (1.0, -0.95), (0.4, 1.0, -1.0, -0.4))),
        *((gains, False) for gains in ((1.0, 0.0), (1.0, -0.7), (1.0, 1.0), (0.0, 0.0), (1.0, 0.5, -0.5))),
    ],
)
def test_channels_are_averaged_unless_they_cancel_each_other(gains: tuple[float, ...], cancel: bool) -> None:
    frames = speech_like()[:, None] * np.array(gains, np.float32)
    result = convert(Resampler(SAMPLE_RATE, len(gains)), frames)
    expected = frames[:, np.abs(gains).argmax()] if cancel else frames.mean(axis=1, dtype=np.float32)
    begun = round(0.05 * SAMPLE_RATE) if cancel else 0  # it is known after a hop
    np.testing.assert_array_equal(result[begun:], expected[begun:])


@pytest.mark.parametrize("block_frames", [7, 480, 32_000])
def test_an_inversion_that_begins_later_changes_over_without_a_click(block_frames: int) -> None:
    said = tone(SAMPLE_RATE, 210.0, 4.0)
    sign = np.where(np.arange(len(said)) // SAMPLE_RATE % 2, -1.0, 1.0)  # both ways, once a second
    frames = np.stack([said, said * sign], axis=1).astype(np.float32)
    result = convert(Resampler(SAMPLE_RATE, 2), frames, block_frames)
    np.testing.assert_allclose(result, convert(Resampler(SAMPLE_RATE, 2), frames), rtol=0, atol=1e-6)
    # Only the 20 ms in which that is found out are missing, and steps are those of the tone.
    assert np.count_nonzero(np.abs(result - said) > 0.01) <= 3 * round(0.04 * SAMPLE_RATE)
    steps = np.flatnonzero(np.abs(np.diff(result)) > 2 * np.abs(np.diff(said)).max())
    assert set(steps // 10) <= {(n * SAMPLE_RATE - 1) // 10 for n in (1, 2, 3)}


def test_of_channels_that_cancel_another_is_taken_only_if_it_is_much_louder() -> None:
    said = speech_like(3.0)
    gains = np.repeat([[1.0, -1.0, 0.0], [0.9, -1.5, 0.6], [0.5, -1.5, 1.0]], SAMPLE_RATE, axis=0).astype(np.float32)
    frames = said[:, None] * gains
    result = convert(Resampler(SAMPLE_RATE, 3), frames)
    settled = round(0.1 * SAMPLE_RATE)
    for second, channel in enumerate((0, 0, 1)):
        part = slice(second * SAMPLE_RATE + settled, (second + 1) * SAMPLE_RATE)
        np.testing.assert_array_equal(result[part], frames[part, channel])


def test_noise_in_a_pause_does_not_undo_what_is_known_of_the_speech() -> None:
    said = speech_like(1.0)
    noise = np.random.default_rng(1).standard_normal((SAMPLE_RATE, 2)).astype(np.float32) * 1e-3
    inverted = np.stack([said, -said], 1)
    result = convert(Resampler(SAMPLE_RATE, 2), np.concatenate([inverted, noise, inverted]))
    np.testing.assert_array_equal(result[2 * SAMPLE_RATE :], said)


def test_the_centre_is_taken_unless_it_is_silent() -> None:
    said, music = speech_like(), tone(SAMPLE_RATE, 300.0, 2.0)
    weights = np.array([0.3, 0.3, 0.4], np.float32)
    frames = np.stack([music, music, said], axis=1)
    result = Mixer(SAMPLE_RATE, 3, weights, 2).process(frames)
    np.testing.assert_array_equal(result[1_000:], said[1_000:])
    frames = np.stack([said, said, 1e-3 * music], axis=1)
    np.testing.assert_array_equal(Mixer(SAMPLE_RATE, 3, weights, 2).process(frames), frames @ weights)
