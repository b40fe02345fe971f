"""Sounds without speech have the length and the level that is asked for, and are the same each time."""

import math

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.benchmarks.voices import ToneVoice
from tools.benchmarks.sounds_of_rooms import ROOM_TONE_DBFS, SOUNDS, crowd
from tools.benchmarks.synthetic.acoustics import active_level
from tools.benchmarks.synthetic.sounds import Samples

N = 25 * SAMPLE_RATE


def dbfs(samples: Samples) -> float:
    return 20 * math.log10(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


@pytest.fixture(scope="module", params=SOUNDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_seed_gives_one_sound(kind: str) -> None:
    sound, again, other = (SOUNDS[kind](N, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert sound.dtype == np.float32
    assert len(sound) == N
    assert np.abs(sound).max() <= 1
    assert np.array_equal(sound, again)
    assert not np.array_equal(sound, other)


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_a_short_sound_has_its_length(kind: str, n: int) -> None:
    assert len(SOUNDS[kind](n, np.random.default_rng(1))) == n


@pytest.mark.parametrize(("kind", "low", "high"), [("noise", -51, -19), ("music", -45, -19), ("keyboard", -60, -20)])
def test_a_sound_is_as_loud_as_told(kind: str, low: float, high: float) -> None:
    for seed in range(3):
        assert low < dbfs(SOUNDS[kind](N, np.random.default_rng(seed))) < high


def test_silence_is_nothing_and_then_a_quiet_room() -> None:
    sound = SOUNDS["silence"](N, np.random.default_rng(1))
    assert not sound[: N // 2].any()
    assert dbfs(sound[N // 2 :]) == pytest.approx(ROOM_TONE_DBFS, abs=1)


def test_noise_is_white() -> None:
    spectrum = np.abs(np.fft.rfft(SOUNDS["noise"](N, np.random.default_rng(1)))) ** 2
    bands = [band.mean() for band in np.array_split(spectrum, 8)]
    assert max(bands) < 1.2 * min(bands)


def test_a_crowd_is_as_much_babble_as_noise() -> None:
    voices = (ToneVoice(), ToneVoice())
    samples = crowd(N, voices, np.random.default_rng(1))
    assert len(samples) == N
    assert all(voice.said for voice in voices)
    assert active_level(samples) > 0
    # Tones fill a few lines of the spectrum; the noise has the rest.
    power = np.sort(np.abs(np.fft.rfft(samples)) ** 2)
    assert 0.05 < power[: int(0.9 * len(power))].sum() / power.sum() < 0.7
