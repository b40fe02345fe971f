"""Rooms decay as told, noise lies as far below the speech as told, and a stretch moves frequencies."""

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.synthetic import acoustics as d
from tools.benchmarks.synthetic.sounds import Samples, noise

N = 3 * SAMPLE_RATE


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def syllables(n: int = N) -> Samples:
    """Pink noise that is on for a quarter of a second, then off for as long; rms while on: 0.1."""
    on = np.arange(n) // (SAMPLE_RATE // 4) % 2 == 0
    x: Samples = noise("pink", n, rng(99)) * on.astype(np.float32)
    return x


def sine(hz: float, n: int = N) -> Samples:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(n) / SAMPLE_RATE)).astype(np.float32)


def rms(x: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def gain_db(before: Samples, after: Samples) -> float:
    return float(20 * np.log10(rms(after[SAMPLE_RATE:]) / rms(before[SAMPLE_RATE:])))


@pytest.mark.parametrize("rt60", [0.15, 0.4, 0.8])
def test_a_room_starts_with_the_direct_sound_and_decays(rt60: float) -> None:
    click = np.zeros(2 * SAMPLE_RATE, np.float32)
    click[1000] = 0.9
    for seed in range(10):
        y = d.reverberate(click, rt60, rng(seed))
        assert np.max(np.abs(y[:1000])) < 1e-6
        assert y[1000] == pytest.approx(0.9 * np.sqrt(1 / (1 + np.sum((y[1001:] / y[1000]) ** 2))), rel=1e-3)
        energy = np.cumsum(y[1000:][::-1].astype(np.float64) ** 2)[::-1]  # Schroeder's backward integral
        decay_db = 10 * np.log10(energy / energy[0] + 1e-12)
        late = decay_db[int(0.3 * rt60 * SAMPLE_RATE)] - decay_db[int(0.8 * rt60 * SAMPLE_RATE)]
        assert late == pytest.approx(30, abs=5)


def test_a_room_keeps_the_level() -> None:
    x = noise("white", N, rng())
    for seed in range(10):
        assert gain_db(x, d.reverberate(x, 0.5, rng(seed))) == pytest.approx(0, abs=1.0)


@pytest.mark.parametrize("kind", ["white", "music", "keyboard"])
@pytest.mark.parametrize("snr_db", [5.0, 20.0, 40.0])
def test_noise_lies_below_the_speech_not_below_its_pauses(kind: str, snr_db: float) -> None:
    x = syllables()
    added = d.add_noise(x, noise(kind, N, rng()), snr_db) - x
    assert 20 * np.log10(d.active_level(x) / d.active_level(added)) == pytest.approx(snr_db, abs=0.2)


def test_the_active_level_leaves_pauses_out() -> None:
    x = np.concatenate([sine(400), np.zeros(5 * N, np.float32)])
    assert d.active_level(x) == pytest.approx(0.5 / np.sqrt(2), rel=0.01)
    assert d.active_level(np.zeros(100, np.float32)) == 0
    assert d.active_level(np.zeros(0, np.float32)) == 0


def test_noise_without_speech_has_a_level_of_its_own() -> None:
    y = d.add_noise(np.zeros(N, np.float32), noise("white", N, rng()), 20)
    assert rms(y) == pytest.approx(d.SILENT_LEVEL / 10, rel=0.05)


def test_silent_noise_adds_nothing() -> None:
    assert np.array_equal(d.add_noise(syllables(), np.zeros(N, np.float32), 5), syllables())


def test_noise_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the noise has 10 samples, expected 48000; make it as long as x"):
        d.add_noise(syllables(), np.zeros(10, np.float32), 5)
