"""Sounds that are not speech: every kind is usable, and is what its name says."""

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.synthetic.sounds import KINDS, Samples, noise

SECONDS = 10
N = SECONDS * SAMPLE_RATE


def make(kind: str, seed: int = 0, n: int = N) -> Samples:
    return noise(kind, n, np.random.default_rng(seed))


def rms(x: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def power(x: Samples, low: float, high: float) -> float:
    """The power of `x` between two frequencies in Hz."""
    spectrum: NDArray[np.float64] = np.abs(np.fft.rfft(x * np.hanning(len(x)))) ** 2
    hz = np.fft.rfftfreq(len(x), 1 / SAMPLE_RATE)
    return float(spectrum[(hz >= low) & (hz < high)].sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_is_float32_of_the_length_asked_for_and_within_range(kind: str, seed: int) -> None:
    x = make(kind, seed)
    assert x.dtype == np.float32
    assert x.shape == (N,)
    assert np.all(np.isfinite(x))
    assert np.max(np.abs(x)) <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_level_is_a_tenth_or_the_peak_is_one(kind: str, seed: int) -> None:
    x = make(kind, seed)
    if kind == "keyboard" and rms(x) < 0.099:
        assert np.max(np.abs(x)) == pytest.approx(1, abs=1e-5)
    else:
        assert rms(x) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 2, 17, 400, 16_001])
def test_any_length_can_be_made(kind: str, n: int) -> None:
    x = make(kind, n=n)
    assert x.dtype == np.float32
    assert x.shape == (n,)
    assert np.all(np.isfinite(x))


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_alone_decides(kind: str) -> None:
    assert np.array_equal(make(kind, 3), make(kind, 3))
    assert not np.array_equal(make(kind, 3), make(kind, 4))


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kind of noise 'purple', expected one of white, pink"):
        make("purple")


@pytest.mark.parametrize(("kind", "db_per_octave"), [("white", 3.0), ("pink", 0.0)])
def test_coloured_noise_has_its_slope(kind: str, db_per_octave: float) -> None:
    """The power in an octave band: the band of white noise doubles with frequency."""
    x = make(kind)
    octaves = [10 * np.log10(power(x, low, 2 * low)) for low in (125, 250, 500, 1000, 2000)]
    assert np.polyfit(range(len(octaves)), octaves, 1)[0] == pytest.approx(db_per_octave, abs=0.3)


@pytest.mark.parametrize("seed", range(3))
def test_hum_lies_on_the_harmonics_of_the_mains(seed: int) -> None:
    x = make("hum", seed)
    total = power(x, 0, 8000)
    at = [sum(power(x, (mains - 0.13) * h - 0.3, (mains + 0.13) * h + 0.3) for h in range(1, 37)) for mains in (50, 60)]
    assert max(at) > 0.95 * total


def test_keys_have_quiet_between_them() -> None:
    x = make("keyboard", 1)
    frames = np.sort(np.abs(x).reshape(-1, 160).max(axis=1))
    assert frames[len(frames) // 5] < 0.05 * frames[-1]


def test_music_has_pitches_not_noise() -> None:
    """Most of the power lies in few of the spectrum's bins, where white noise spreads it over all."""

    def share_of_strongest(x: Samples) -> float:
        spectrum = np.sort(np.abs(np.fft.rfft(x)) ** 2)
        return float(spectrum[-len(spectrum) // 50 :].sum() / spectrum.sum())

    assert share_of_strongest(make("white")) < 0.15
    assert np.median([share_of_strongest(make("music", seed)) for seed in range(10)]) > 0.7
