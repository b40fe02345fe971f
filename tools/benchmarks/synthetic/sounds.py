"""Sounds that are not speech, made from random numbers: noise, machines, keys, and simple music."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from streamer.audio.constants import SAMPLE_RATE

Samples = NDArray[np.float32]  # mono, 16 kHz, in [-1, 1]

RMS = 0.1  # what noise() aims at
TABLE_BITS = 12  # a wave table holds one period in 2**TABLE_BITS samples
MAJOR = (0, 2, 4, 5, 7, 9, 11)  # semitones above the tonic
MINOR = (0, 2, 3, 5, 7, 8, 10)
# Degrees of the scale, one a bar; 0 is the tonic.
PROGRESSIONS = ((0, 4, 5, 3), (0, 3, 4, 4), (0, 5, 3, 4), (1, 4, 0, 0), (0, 3), (0,))


def noise(kind: str, n: int, rng: np.random.Generator) -> Samples:
    """Return `n` samples of one of KINDS, in [-1, 1], its parameters drawn from `rng`.

    The rms is RMS; lower where the peaks would pass 1, which is usual for "keyboard", and that may be all zero in a
    short stretch. Raises ValueError for another kind.
    """
    if kind not in _MAKERS:
        raise ValueError(f"unknown kind of noise {kind!r}, expected one of {', '.join(KINDS)}")
    if n == 0:
        return np.zeros(0, np.float32)
    return _scaled(_MAKERS[kind](n, rng))


def _scaled(x: Samples) -> Samples:
    """`x` at an rms of RMS, or with its peak at 1 where that is quieter."""
    rms = float(np.sqrt(np.mean(np.square(x))))
    if rms == 0:
        return x
    peak = float(np.max(np.abs(x)))
    scaled: Samples = np.clip(x * np.float32(min(RMS / rms, 1 / peak)), -1, 1)
    return scaled


# Parts


def _normal(n: int, rng: np.random.Generator) -> Samples:
    return rng.standard_normal(n, dtype=np.float32)


def _coloured(n: int, gain: Callable[[Samples], Samples], rng: np.random.Generator) -> Samples:
    """Gaussian noise whose amplitude spectrum follows `gain`, a function of frequencies in Hz (none of them 0)."""
    size = fft.next_fast_len(n, real=True)
    bins = size // 2 + 1
    hz = np.arange(bins, dtype=np.float32) * np.float32(SAMPLE_RATE / size)
    hz[0] = SAMPLE_RATE / size
    spectrum = _normal(2 * bins, rng).view(np.complex64) * gain(hz)
    spectrum[0] = 0
    x: Samples = fft.irfft(spectrum, size)[:n].astype(np.float32)
    return x


def _band(low: float, high: float, slope: float) -> Callable[[Samples], Samples]:
    """A gain of 1 between `low` and `high` Hz that falls as the frequency's power `slope` outside."""

    def gain(hz: Samples) -> Samples:
        inside: Samples = np.minimum(1, np.minimum(hz / np.float32(low), np.float32(high) / hz))
        return inside ** np.float32(slope)

    return gain


def _decay(seconds: float, length: int) -> Samples:
    """exp(-t / `seconds`), `length` samples."""
    decay: Samples = np.exp(np.arange(length, dtype=np.float32) * np.float32(-1 / (seconds * SAMPLE_RATE)))
    return decay


def _table(amplitudes: NDArray[np.float64], rng: np.random.Generator) -> Samples:
    """One period with these amplitudes of the harmonics 1, 2, ... and random phases."""
    size = 1 << TABLE_BITS
    spectrum = np.zeros(size // 2 + 1, np.complex128)
    spectrum[1 : len(amplitudes) + 1] = amplitudes * np.exp(2j * np.pi * rng.random(len(amplitudes)))
    period: Samples = fft.irfft(spectrum, size).astype(np.float32) * np.float32(size / 2)
    return period


def _tone(table: Samples, hz: float, length: int) -> Samples:
    """`length` samples of the wave in `table` at `hz`. The phase is a whole number that wraps at 2**32."""
    step = np.uint32(round(hz / SAMPLE_RATE * 2**32))
    phase = np.arange(length, dtype=np.uint32) * step
    return table.take(phase >> np.uint32(32 - TABLE_BITS))


def _add(to: Samples, at: int, sound: Samples) -> None:
    """Adds `sound` to `to` from sample `at`; what would pass the end is left out."""
    part = to[at : at + len(sound)]
    part += sound[: len(part)]


def _burst(length: float, low: float, high: float, rng: np.random.Generator) -> Samples:
    """Noise between `low` and `high` Hz that starts at once and has decayed by 60 dB after `length` seconds."""
    count = max(1, int(length * SAMPLE_RATE))
    sound = _coloured(count, _band(low, high, 2.0), rng)
    sound *= np.float32(1 / (np.sqrt(np.mean(np.square(sound))) + 1e-9))
    return sound * _decay(length / 6.9, count)


def _thud(length: float, hz: float) -> Samples:
    """A struck body: a sine whose pitch falls by half from `hz` and that decays by 60 dB in `length` seconds."""
    count = max(1, int(length * SAMPLE_RATE))
    t = np.arange(count, dtype=np.float32) / np.float32(count)
    return np.sin(np.float32(2 * np.pi * hz * length) * (t - t * t / 4)) * _decay(length / 6.9, count)


# Kinds


def _white(n: int, rng: np.random.Generator) -> Samples:
    return _normal(n, rng)


def _pink(n: int, rng: np.random.Generator) -> Samples:
    """Power as 1 / frequency above 20 Hz."""
    return _coloured(n, lambda hz: np.maximum(hz, np.float32(20)) ** np.float32(-0.5), rng)


def _hum(n: int, rng: np.random.Generator) -> Samples:
    """Mains at 50 or 60 Hz with harmonics to about 2 kHz, over faint noise."""
    count = int(rng.integers(4, 36))
    amplitudes = rng.random(count) * np.arange(1, count + 1.0) ** -rng.uniform(0.3, 1.5)
    amplitudes[1::2] *= rng.uniform(0.2, 3.0)  # rectifiers hum at twice the mains
    table = _table(amplitudes, rng)
    mains = rng.choice([50.0, 60.0]) * rng.uniform(0.998, 1.002)
    table *= np.float32(1 / np.sqrt(np.mean(np.square(table))))
    return _tone(table, mains, n) + np.float32(rng.uniform(0.003, 0.1)) * _normal(n, rng)


def _keyboard(n: int, rng: np.random.Generator) -> Samples:
    """Typing: a click and a thud as each key goes down, a softer click as it comes up, pauses between words."""
    low = rng.uniform(800, 2500)
    keys = []
    for _ in range(6):
        key = np.zeros(int(0.15 * SAMPLE_RATE), np.float32)
        _add(key, 0, _burst(rng.uniform(0.008, 0.03), low * rng.uniform(0.8, 1.25), rng.uniform(4000, 7500), rng))
        thud = _thud(rng.uniform(0.02, 0.06), rng.uniform(120, 400)) * np.float32(rng.uniform(0.2, 1.5))
        _add(key, int(rng.integers(10, 100)), thud)
        up = _burst(rng.uniform(0.005, 0.02), low * 1.3, 7000, rng)
        _add(key, int(rng.uniform(0.06, 0.12) * SAMPLE_RATE), up * np.float32(rng.uniform(0.1, 0.5)))
        keys.append(key)
    pace = rng.uniform(0.08, 0.25)  # seconds a key, about 50 to 150 words a minute
    count = int(n / SAMPLE_RATE / pace * 2) + 2
    gaps = pace * np.exp(0.35 * rng.standard_normal(count))
    gaps += (rng.random(count) < 0.12) * rng.exponential(4 * pace, count)
    out = np.zeros(n, np.float32)
    which, level = rng.integers(0, len(keys), count), np.exp(0.3 * rng.standard_normal(count)).astype(np.float32)
    for at, key_number, loudness in zip(_within(gaps, n, rng), which, level, strict=False):
        _add(out, at, keys[key_number] * loudness)
    return out


def _music(n: int, rng: np.random.Generator) -> Samples:
    """Chords, a bass, a melody and sometimes drums in 4/4 at 60 to 180 beats a minute, entered anywhere in a bar."""
    beat = int(SAMPLE_RATE * 60 / rng.uniform(60, 180))
    bar = 4 * beat
    entry = int(rng.integers(0, bar))
    out = np.zeros(n + entry, np.float32)
    scale = MAJOR if rng.random() < 0.6 else MINOR
    tonic = float(rng.integers(45, 57))  # a MIDI note number, A2 to G#3
    progression = PROGRESSIONS[rng.integers(0, len(PROGRESSIONS))]
    chord_wave, melody_wave = _timbre(rng), _timbre(rng)
    chord_shape, bass_level = _note_shape(bar, rng), rng.uniform(0, 1.2)
    bars: dict[int, Samples] = {}
    for number, at in enumerate(range(0, len(out), bar)):
        degree = progression[number % len(progression)]
        if degree not in bars:
            sound = np.float32(bass_level) * _tone(chord_wave, _pitch(tonic - 12, scale, degree), bar)
            for third in (0, 2, 4):
                sound += _tone(chord_wave, _pitch(tonic, scale, degree + third), bar)
            bars[degree] = sound * chord_shape
        _add(out, at, bars[degree])
    if rng.random() < 0.8:
        _melody(out, beat, melody_wave, tonic + 12, scale, rng)
    if rng.random() < 0.5:
        _drums(out, beat, rng)
    return out[entry:]


def _timbre(rng: np.random.Generator) -> Samples:
    """A wave of up to 8 harmonics, from flute-like (few) to reed-like (odd) and string-like (all)."""
    amplitudes = np.arange(1.0, rng.integers(2, 9) + 1) ** -rng.uniform(0.6, 2.5)
    amplitudes *= rng.uniform(0.5, 1.0, len(amplitudes))
    if rng.random() < 0.3:
        amplitudes[1::2] *= 0.1
    table = _table(amplitudes, rng)
    return table * np.float32(1 / np.sqrt(np.mean(np.square(table))))


def _pitch(tonic: float, scale: tuple[int, ...], degree: int) -> float:
    """The frequency in Hz of a degree of the scale, 0 being the tonic; 440 Hz is MIDI note 69."""
    octave, step = divmod(degree, len(scale))
    return float(440 * 2 ** ((tonic + 12 * octave + scale[step] - 69) / 12))


def _note_shape(length: int, rng: np.random.Generator) -> Samples:
    """The loudness of a note, sounded at once and dying away, or held; silent at both ends."""
    attack = rng.uniform(0.003, 0.08) * SAMPLE_RATE
    t = np.arange(length, dtype=np.float32)
    shape: Samples = np.minimum(1, np.minimum(t / np.float32(attack), t[::-1] / np.float32(400)))
    if rng.random() < 0.6:
        shape *= _decay(rng.uniform(0.15, 1.5), length)
    return shape


def _melody(
    out: Samples, beat: int, wave: Samples, tonic: float, scale: tuple[int, ...], rng: np.random.Generator
) -> None:
    """A walk over the scale in notes of a half, one and two beats, with rests."""
    lengths = [beat // 2, beat, 2 * beat]
    longest, level = _note_shape(lengths[-1], rng), np.float32(rng.uniform(0.7, 2.5))
    fade = np.arange(400, dtype=np.float32)[::-1] / 400
    degree, at = int(rng.integers(0, 7)), 0
    while at < len(out):
        length = lengths[rng.integers(0, 3)]
        if rng.random() < 0.85:
            note = _tone(wave, _pitch(tonic, scale, degree), length) * (longest[:length] * level)
            note[-400:] *= fade
            _add(out, at, note)
        degree = int(np.clip(degree + rng.integers(-3, 4), -4, 9))
        at += length


def _drums(out: Samples, beat: int, rng: np.random.Generator) -> None:
    """A bass drum and a snare in turn, and a cymbal on every half beat."""
    level = np.float32(rng.uniform(1, 4))
    bass = _thud(rng.uniform(0.1, 0.3), rng.uniform(80, 160)) * level * 2
    snare = _burst(rng.uniform(0.1, 0.25), 300, 6000, rng) * level
    cymbal = _burst(rng.uniform(0.03, 0.1), 5000, 8000, rng) * (level * np.float32(rng.uniform(0, 0.7)))
    for number, at in enumerate(range(0, len(out), beat)):
        _add(out, at, snare if number % 2 else bass)
        _add(out, at, cymbal)
        _add(out, at + beat // 2, cymbal)


def _within(gaps: NDArray[np.float64], n: int, rng: np.random.Generator) -> list[int]:
    """Sample numbers below `n`, `gaps` seconds apart, the first one early."""
    at = ((np.cumsum(gaps) - gaps[0] * rng.random()) * SAMPLE_RATE).astype(np.int64)
    return [int(a) for a in at[at < n]]


_MAKERS: dict[str, Callable[[int, np.random.Generator], Samples]] = {
    "white": _white,
    "pink": _pink,
    "hum": _hum,
    "keyboard": _keyboard,
    "music": _music,
}

KINDS = tuple(_MAKERS)
