"""Resampling to 16 kHz mono."""

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.audio.resample import Mixer, Resampler
from streamer.constants import SAMPLE_RATE


def tone(sample_rate: int, frequency: float, duration_s: float) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * frequency * np.arange(int(sample_rate * duration_s)) / sample_rate).astype(np.float32)


def convert(resampler: Resampler, frames: NDArray[np.float32], block_frames: int) -> NDArray[np.float32]:
    blocks = [resampler.process(frames[i : i + block_frames]) for i in range(0, len(frames), block_frames)]
    return np.concatenate([*blocks, resampler.flush()])


@pytest.mark.parametrize("sample_rate", [4_000, 8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 384_000])
def test_a_tone_stays_the_same_tone(sample_rate: int) -> None:
    result = convert(Resampler(sample_rate, 1), tone(sample_rate, 440.0, 1.0)[:, None], 1000)
    assert abs(len(result) - SAMPLE_RATE) <= 1
    expected = tone(SAMPLE_RATE, 440.0, 1.0)
    np.testing.assert_allclose(result[2000:14_000], expected[2000:14_000], atol=2e-3)


@pytest.mark.parametrize("sample_rate", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("block_frames", [1, 7, 480, 4_096])
def test_cutting_into_blocks_does_not_change_the_result(sample_rate: int, block_frames: int) -> None:
    frames = np.random.default_rng(0).uniform(-1, 1, (5_000, 2)).astype(np.float32)
    whole = convert(Resampler(sample_rate, 2), frames, len(frames))
    np.testing.assert_allclose(convert(Resampler(sample_rate, 2), frames, block_frames), whole, rtol=0, atol=1e-6)


def test_16_khz_mono_passes_through_unchanged() -> None:
    frames = np.random.default_rng(0).uniform(-1, 1, (5_000, 1)).astype(np.float32)
    np.testing.assert_array_equal(convert(Resampler(SAMPLE_RATE, 1), frames, 333), frames[:, 0])


def test_channels_are_averaged() -> None:
    frames = np.stack([np.full(100, 0.5), np.full(100, -0.25), np.zeros(100)], axis=1).astype(np.float32)
    np.testing.assert_allclose(Resampler(SAMPLE_RATE, 3).process(frames), np.full(100, 0.25 / 3), rtol=1e-6)


def speech_like(duration_s: float = 2.0, sample_rate: int = SAMPLE_RATE) -> NDArray[np.float32]:
    """Noise that comes and goes, as speech does, shape (n,)."""
    n = round(duration_s * sample_rate)
    rng = np.random.default_rng(0)
    return (0.2 * rng.standard_normal(n) * (np.sin(np.arange(n) / sample_rate * 20) > -0.5)).astype(np.float32)


@pytest.mark.parametrize("gains", [(1.0, -1.0), (-0.5, 0.5), (1.0, -0.95), (0.4, 1.0, -1.0, -0.4)])
def test_channels_that_cancel_each_other_give_the_louder_one(gains: tuple[float, ...]) -> None:
    said = speech_like()
    frames = said[:, None] * np.array(gains, np.float32)
    result = convert(Resampler(SAMPLE_RATE, len(gains)), frames, 1_000)
    loudest = frames[:, np.abs(gains).argmax()]
    begun = round(0.05 * SAMPLE_RATE)  # it is known after a hop
    np.testing.assert_array_equal(result[begun:], loudest[begun:])


@pytest.mark.parametrize(
    "gains", [(1.0, 0.0), (1.0, -0.7), (1.0, 1.0), (0.0, 0.0), (1.0, 0.5, -0.5), (1.0, *[0.0] * 31)]
)
def test_channels_that_do_not_cancel_each_other_are_averaged(gains: tuple[float, ...]) -> None:
    frames = speech_like()[:, None] * np.array(gains, np.float32)
    result = convert(Resampler(SAMPLE_RATE, len(gains)), frames, 1_000)
    np.testing.assert_array_equal(result, frames.mean(axis=1, dtype=np.float32))


@pytest.mark.parametrize("block_frames", [7, 480, 32_000])
def test_an_inversion_that_begins_later_changes_over_without_a_click(block_frames: int) -> None:
    said = tone(SAMPLE_RATE, 200.0, 4.0)
    sign = np.where(np.arange(len(said)) // SAMPLE_RATE % 2, -1.0, 1.0)  # both ways, once a second
    frames = np.stack([said, said * sign], axis=1).astype(np.float32)
    result = convert(Resampler(SAMPLE_RATE, 2), frames, block_frames)
    np.testing.assert_allclose(result, convert(Resampler(SAMPLE_RATE, 2), frames, 1_000), rtol=0, atol=1e-6)
    # Only the 20 ms in which that is found out are missing, and steps are those of the tone, but where it is inverted.
    assert np.count_nonzero(np.abs(result - said) > 0.01) <= 3 * round(0.04 * SAMPLE_RATE)
    steps = np.flatnonzero(np.abs(np.diff(result)) > 2 * np.abs(np.diff(said)).max())
    assert set(steps // 10) <= {(n * SAMPLE_RATE - 1) // 10 for n in (1, 2, 3)}


def test_noise_in_a_pause_does_not_undo_what_is_known_of_the_speech() -> None:
    said = speech_like(1.0)
    noise = np.random.default_rng(1).standard_normal((SAMPLE_RATE, 2)).astype(np.float32) * 1e-3
    frames = np.concatenate([np.stack([said, -said], 1), noise, np.stack([said, -said], 1)])
    result = convert(Resampler(SAMPLE_RATE, 2), frames, 1_000)
    np.testing.assert_array_equal(result[2 * SAMPLE_RATE :], said)


def test_the_centre_is_taken_unless_it_is_silent() -> None:
    said, music = speech_like(), tone(SAMPLE_RATE, 300.0, 2.0)
    weights = np.array([0.3, 0.3, 0.4], np.float32)
    frames = np.stack([music, music, said], axis=1)
    result = Mixer(SAMPLE_RATE, 3, weights, 2).process(frames)
    np.testing.assert_array_equal(result[1_000:], said[1_000:])
    frames = np.stack([said, said, 1e-3 * music], axis=1)
    np.testing.assert_array_equal(Mixer(SAMPLE_RATE, 3, weights, 2).process(frames), frames @ weights)


def test_it_can_be_used_again_after_flush() -> None:
    resampler = Resampler(44_100, 1)
    frames = tone(44_100, 300.0, 0.5)[:, None]
    np.testing.assert_array_equal(convert(resampler, frames, 441), convert(resampler, frames, 441))
