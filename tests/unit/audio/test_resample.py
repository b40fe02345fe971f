"""Resampling to 16 kHz mono."""

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.resample import Resampler


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


def test_it_can_be_used_again_after_flush() -> None:
    resampler = Resampler(44_100, 1)
    frames = tone(44_100, 300.0, 0.5)[:, None]
    np.testing.assert_array_equal(convert(resampler, frames, 441), convert(resampler, frames, 441))
