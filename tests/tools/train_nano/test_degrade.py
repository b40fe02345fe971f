"""Rooms, lines and microphones: the length and the time of the sound stay, and each does what it says."""

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano import degrade as d
from tools.train_nano.sounds import Samples, noise

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


def lag(x: Samples, y: Samples) -> float:
    """By how many seconds `y` comes after `x`."""
    size = 2 * len(x)
    correlation = np.fft.irfft(np.fft.rfft(y, size) * np.conj(np.fft.rfft(x, size)))
    at = int(np.argmax(np.abs(correlation)))
    return (at if at < len(x) else at - size) / SAMPLE_RATE


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_degraded_speech_stays_valid(seed: int, strength: float) -> None:
    x = syllables()
    kept = x.copy()
    y = d.degrade(x, rng(seed), strength=strength)
    assert y.dtype == np.float32
    assert y.shape == x.shape
    assert np.all(np.isfinite(y))
    assert np.max(np.abs(y)) <= 1
    assert rms(y) > 0
    assert np.array_equal(x, kept)


@pytest.mark.parametrize("seed", range(10))
def test_silence_stays_valid_and_quiet(seed: int) -> None:
    y = d.degrade(np.zeros(N, np.float32), rng(seed), strength=1.0)
    assert np.all(np.isfinite(y))
    assert d.active_level(y) < d.SILENT_LEVEL * 2


@pytest.mark.parametrize("n", [0, 1, 2, 161, 16_001])
def test_any_length_can_be_degraded(n: int) -> None:
    for seed in range(20):
        y = d.degrade(syllables(n), rng(seed), strength=1.0)
        assert y.shape == (n,)
        assert np.all(np.isfinite(y))


def test_strength_zero_changes_nothing() -> None:
    x = syllables()
    for seed in range(10):
        y = d.degrade(x, rng(seed), strength=0.0)
        assert np.array_equal(x, y)
        assert not np.shares_memory(x, y)


def test_more_strength_changes_more_often() -> None:
    x = syllables(4000)
    changed = [
        sum(not np.array_equal(x, d.degrade(x, rng(seed), strength=strength)) for seed in range(60))
        for strength in (0.1, 0.4, 1.0)
    ]
    assert changed == sorted(changed)
    assert changed[0] < 30
    assert changed[-1] > 55


def test_the_generator_alone_decides() -> None:
    x = syllables()
    assert np.array_equal(d.degrade(x, rng(5), strength=1.0), d.degrade(x, rng(5), strength=1.0))


@pytest.mark.parametrize("seed", range(5))
def test_words_keep_their_time(seed: int) -> None:
    x = syllables()
    assert abs(lag(x, d.equalise(x, rng(seed)))) < 0.002
    assert abs(lag(x, d.telephone(x))) < 0.002
    assert abs(lag(x, d.telephone(x, mu_law=True))) < 0.002
    assert abs(lag(x, d.low_pass(x, 3000))) < 0.002
    assert abs(lag(x, d.high_pass(x, 400))) < 0.002


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


@pytest.mark.parametrize("mu_law", [False, True])
def test_a_telephone_passes_its_band_only(mu_law: bool) -> None:
    for hz in (500, 1000, 2500):
        assert gain_db(sine(hz), d.telephone(sine(hz), mu_law=mu_law)) == pytest.approx(0, abs=0.5)
    for hz in (80, 6500):
        assert gain_db(sine(hz), d.telephone(sine(hz), mu_law=mu_law)) < -20


def test_mu_law_adds_its_noise_and_no_more() -> None:
    """8 bits of mu-law have a signal-to-noise ratio of about 38 dB over a wide range of levels."""
    for gain in (0, -20, -30):
        x = d.scale(sine(1017), gain)
        clean = d.telephone(x)
        error = d.telephone(x, mu_law=True) - clean
        assert 33 < 20 * np.log10(rms(clean) / rms(error)) < 43


def test_filters_cut_at_their_frequency() -> None:
    assert gain_db(sine(4000), d.low_pass(sine(4000), 4000)) == pytest.approx(-3, abs=0.1)
    assert gain_db(sine(200), d.high_pass(sine(200), 200)) == pytest.approx(-3, abs=0.1)
    assert gain_db(sine(500), d.low_pass(sine(500), 4000)) == pytest.approx(0, abs=0.1)
    assert gain_db(sine(2000), d.high_pass(sine(2000), 200)) == pytest.approx(0, abs=0.1)


def test_the_equaliser_stays_within_10_db() -> None:
    for seed in range(10):
        gains = [gain_db(sine(hz), d.equalise(sine(hz), rng(seed))) for hz in (100, 300, 1000, 3000, 7000)]
        assert max(np.abs(gains)) < 10.5
        assert max(gains) - min(gains) > 1


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


def test_scaling_and_clipping() -> None:
    x = sine(300)
    assert gain_db(x, d.scale(x, -20)) == pytest.approx(-20, abs=0.01)
    assert np.max(np.abs(d.scale(x, 20))) == 1
    assert np.max(np.abs(d.clip(x, 0.4))) == pytest.approx(0.2, rel=1e-3)
    assert np.array_equal(d.clip(np.zeros(4, np.float32), 0.4), np.zeros(4, np.float32))


@pytest.mark.parametrize("factor", [0.88, 0.95, 1.0, 1.03, 1.12])
def test_stretching_moves_frequencies_and_times(factor: float) -> None:
    x = sine(1000)
    x[SAMPLE_RATE:] *= np.float32(0.1)
    y = d.stretch_formants(x, factor)
    assert y.dtype == np.float32
    assert abs(len(y) - len(x) / factor) <= 1
    tone = y[: SAMPLE_RATE // 2]
    peak = np.argmax(np.abs(np.fft.rfft(tone * np.hanning(len(tone)), 8 * SAMPLE_RATE))) / 8
    assert peak == pytest.approx(1000 * factor, abs=1)
    step = np.flatnonzero(np.abs(y) > 0.2)[-1]
    assert step / SAMPLE_RATE == pytest.approx(1 / factor, abs=0.002)


def test_stretching_out_of_reach_is_refused() -> None:
    with pytest.raises(ValueError, match=r"factor is 3, expected 0.5 to 2"):
        d.stretch_formants(syllables(), 3)
