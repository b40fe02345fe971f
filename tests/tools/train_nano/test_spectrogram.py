"""The spectrogram that the model is trained on is the one that it will be given."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray

from streamer.audio.mel import log_mel
from tools.train_nano.spectrogram import UNWARPED, WARPS, LogMel, blot_out

SPEECH = Path(__file__).parents[2] / "data" / "speech.flac"
RATE = 16_000
TOLERANCE = 1e-4  # of 32 bits, where quiet bins lie beside loud ones

Samples = NDArray[np.float32]


def speech(seconds: float, start: float = 0.0) -> Samples:
    samples, rate = soundfile.read(SPEECH, dtype="float32")
    assert rate == RATE
    first = round(start * RATE)
    return np.asarray(np.tile(samples, 3)[first : first + round(seconds * RATE)], dtype=np.float32)


def noise(seconds: float, seed: int = 0) -> Samples:
    return (0.1 * np.random.default_rng(seed).standard_normal(round(seconds * RATE))).astype(np.float32)


def click(seconds: float, at: int) -> Samples:
    samples = 1e-3 * noise(seconds)
    samples[at] = 0.9
    return samples


def equal(windows: list[Samples], bins: int = 80) -> None:
    mels = LogMel(bins)(torch.from_numpy(np.stack(windows))).numpy()
    frames = len(windows[0]) // 160
    assert mels.shape == (len(windows), bins, frames)
    for mel, window in zip(mels, windows, strict=True):
        np.testing.assert_allclose(mel, log_mel(window, bins)[:, :frames], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seconds", [5.0, 6.0, 8.0, 15.0])
def test_a_short_window_is_the_beginning_of_thirty_seconds(seconds: float) -> None:
    equal([speech(seconds), speech(seconds, 2.3), noise(seconds), 1e-3 * noise(seconds, 1)])


def test_thirty_seconds_are_equal_to_the_last_frame() -> None:
    equal([speech(30.0), noise(30.0)])


@pytest.mark.parametrize("warp", [0, 2, 10, 12])
def test_a_warped_spectrogram_is_that_of_a_sound_whose_frequencies_are_stretched(warp: int) -> None:
    times = np.arange(5 * RATE, dtype=np.float32) / RATE
    tones = [np.sin(2 * np.pi * hz * times).astype(np.float32) for hz in (1500.0, 1500.0 * WARPS[warp])]
    numbers = torch.tensor([warp, UNWARPED])
    warped, stretched = LogMel()(torch.from_numpy(np.stack(tones)), numbers).numpy()[:, :, 100]
    assert abs(int(warped.argmax()) - int(stretched.argmax())) <= 1
    plain = LogMel()(torch.from_numpy(np.stack(tones)))[0, :, 100].numpy()
    assert int(plain.argmax()) != int(warped.argmax())


def test_any_number_of_bins() -> None:
    equal([speech(5.0)], bins=128)


def test_silence() -> None:
    equal([np.zeros(5 * RATE, np.float32)])


def test_each_window_has_its_own_loudest_bin() -> None:
    equal([speech(5.0), 1e-4 * speech(5.0), np.zeros(5 * RATE, np.float32)])


def test_the_beginning_is_mirrored() -> None:
    equal([click(5.0, at) for at in (0, 1, 100, 199)])


@pytest.mark.parametrize("before", [1, 40, 100, 159])
def test_the_loudest_moment_may_be_the_end(before: int) -> None:
    """The frame after the window's last hears it best, and says how loud the loudest is."""
    equal([click(5.0, 5 * RATE - before)])


def test_what_is_blotted_out_are_two_bands_and_a_moment_in_five_seconds() -> None:
    for seed in range(50):
        torch.manual_seed(seed)
        frames = (500, 800, 3000)[seed % 3]
        before = torch.randn(80, frames)
        mel = before.clone()
        blot_out(mel)
        changed = mel != before
        assert torch.equal(mel[changed], before.mean().expand(int(changed.sum())))
        bands, moments = changed.all(1), changed.all(0)
        assert torch.equal(changed, bands[:, None] | moments[None, :])
        assert 1 <= int(bands.sum()) <= 2 * 12
        assert 1 <= int(moments.sum()) <= frames // 500 * 12
        assert 1 <= runs(bands) <= 2
        assert 1 <= runs(moments) <= frames // 500


def runs(marks: torch.Tensor) -> int:
    return int((marks[1:] & ~marks[:-1]).sum()) + int(marks[0])
