"""What lies between a mouth and a sample: rooms, other sounds, microphones, telephone lines, wrong levels.

Every function but stretch_formants() keeps the length, and keeps the sound at its time to within 2 ms.
Samples are mono float32 at 16 kHz. Only degrade() promises to stay within [-1, 1].
"""

from typing import Literal

import numpy as np
import soxr
from scipy import signal

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano import sounds
from tools.train_nano.sounds import Samples

FRAME = 320  # samples, 20 ms, over which active_level() measures
ACTIVE_RANGE = 1e-3  # a frame is active with more than this share of the loudest frame's power, -30 dB
SILENT_LEVEL = 0.03  # stands in for the active level of a silent x
TAPS = 129  # of the equaliser: it can bend over about 125 Hz
MU = 255  # of the curve that G.711 follows in segments
Kind = Literal["lowpass", "highpass", "bandpass"]
NOISES = tuple(kind for kind in sounds.KINDS if kind != "silence")

# How likely each is at strength 1.
EQUALISE, REVERBERATE, NOISE, MICROPHONE, CLIP, TELEPHONE, SCALE = 0.5, 0.5, 0.85, 0.3, 0.1, 0.15, 0.7


def degrade(x: Samples, rng: np.random.Generator, *, strength: float) -> Samples:
    """A new array: `x` through a random choice of the functions below, in [-1, 1] and of the same length.

    `strength` in 0..1 scales how likely each is; 0 changes nothing. A silent `x` may get noise.
    """

    def chosen(likely: float) -> bool:
        return bool(rng.random() < likely * strength)

    y = x.astype(np.float32)
    if len(y) == 0:
        return y
    if chosen(EQUALISE):
        y = equalise(y, rng)
    if chosen(REVERBERATE):
        y = reverberate(y, rng.uniform(0.15, 0.8), rng)
    if chosen(NOISE):
        y = add_noise(y, sounds.noise(str(rng.choice(NOISES)), len(y), rng), rng.uniform(2, rng.choice((13, 13, 26))))
    if chosen(MICROPHONE):
        y = low_pass(y, rng.uniform(3000, 7000)) if rng.random() < 0.5 else high_pass(y, rng.uniform(80, 400))
    peak = float(np.max(np.abs(y)))
    if peak > 1:
        y = y / np.float32(peak)
    if chosen(CLIP):
        y = clip(y, rng.uniform(0.2, 0.8))
    if chosen(TELEPHONE):
        y = telephone(y, mu_law=bool(rng.random() < 0.5))
    if chosen(SCALE):
        y = scale(y, rng.uniform(-30, 6))
    return np.clip(y, -1, 1)


def reverberate(x: Samples, rt60: float, rng: np.random.Generator) -> Samples:
    """`x` in a made-up room whose sound decays by 60 dB in `rt60` seconds.

    The impulse response is the direct sound at 0, 4 to 11 early reflections within 50 ms, and noise that decays
    exponentially. The ratio of direct to reverberant energy is -3 to 15 dB. The whole response has an energy of 1.
    """
    return _filtered(x, _room(rt60, rng))


def _room(rt60: float, rng: np.random.Generator) -> Samples:
    """An impulse response as reverberate() describes it."""
    length = max(2, int(rt60 * SAMPLE_RATE))
    decay = np.exp(np.arange(length, dtype=np.float32) * np.float32(-np.log(1000) / length))
    tail = rng.standard_normal(length, dtype=np.float32)
    # Air and walls swallow high sounds: a first-order low-pass.
    pole = rng.uniform(0.0, 0.7)
    tail = signal.lfilter([1 - pole], [1, -pole], tail).astype(np.float32)
    start = min(int(rng.uniform(0.001, 0.01) * SAMPLE_RATE), length - 1)
    tail[:start] = 0
    count = int(rng.integers(4, 12))
    at = rng.integers(min(16, length - 1), min(length, int(0.05 * SAMPLE_RATE)), count)
    tail[at] += rng.choice([-1.0, 1.0], count) * rng.uniform(1, 8, count)
    tail *= decay
    tail[0] = 0
    reverberant = 10 ** (-rng.uniform(-3, 15) / 10)  # energy, that of the direct sound being 1
    tail *= np.float32(np.sqrt(reverberant / (float(np.dot(tail, tail)) + 1e-12)))
    tail[0] = 1
    return tail * np.float32(1 / np.sqrt(float(np.dot(tail, tail))))


def _filtered(x: Samples, response: Samples) -> Samples:
    """`x` convolved with `response` from its first sample on, cut to the length of `x`."""
    y: Samples = signal.oaconvolve(x, response)[: len(x)].astype(np.float32)
    return y


def telephone(x: Samples, *, mu_law: bool = False) -> Samples:
    """`x` in the band of a telephone, 300 to 3400 Hz; with `mu_law` also as 8-bit samples at 8 kHz."""
    y = _butterworth(x, 3, [300, 3400], "bandpass")
    if not mu_law:
        return y
    narrow = np.clip(signal.resample_poly(y, 1, 2), -1, 1)
    code = np.round(np.log1p(MU * np.abs(narrow)) * np.float32(127 / np.log1p(MU)))
    coded = np.copysign(np.expm1(code * np.float32(np.log1p(MU) / 127)) / MU, narrow)
    wide: Samples = signal.resample_poly(coded, 2, 1)[: len(x)].astype(np.float32)
    return wide


def _butterworth(x: Samples, order: int, hz: float | list[float], kind: Kind) -> Samples:
    sections = signal.butter(order, hz, kind, fs=SAMPLE_RATE, output="sos")
    y: Samples = signal.sosfilt(sections, x).astype(np.float32)
    return y


def equalise(x: Samples, rng: np.random.Generator) -> Samples:
    """`x` with a random smooth gain between -10 and 10 dB over frequency, by a linear-phase filter without delay."""
    points = np.geomspace(60, SAMPLE_RATE / 2, 8)
    gain_db = np.interp(np.linspace(0, SAMPLE_RATE / 2, TAPS // 2 + 1), points, rng.uniform(-10, 10, len(points)))
    taps = np.fft.fftshift(np.fft.irfft(10 ** (gain_db / 20), TAPS)) * np.hanning(TAPS)
    y: Samples = signal.oaconvolve(x, taps.astype(np.float32))[TAPS // 2 :][: len(x)].astype(np.float32)
    return y


def low_pass(x: Samples, hz: float) -> Samples:
    """`x` below `hz`: a second-order Butterworth filter."""
    return _butterworth(x, 2, hz, "lowpass")


def high_pass(x: Samples, hz: float) -> Samples:
    """`x` above `hz`: a second-order Butterworth filter."""
    return _butterworth(x, 2, hz, "highpass")


def clip(x: Samples, share: float) -> Samples:
    """`x` cut off at `share` of its peak, 0..1."""
    limit = np.float32(share) * np.max(np.abs(x), initial=0)
    return np.clip(x, -limit, limit)


def scale(x: Samples, gain_db: float) -> Samples:
    """`x` louder by `gain_db`, cut off at -1 and 1."""
    scaled: Samples = np.clip(x * np.float32(10 ** (gain_db / 20)), -1, 1)
    return scaled


def active_level(x: Samples) -> float:
    """The rms of those frames of `x` that are not silent beside its loudest frame; 0 for a silent `x`."""
    padded = np.pad(x, (0, -len(x) % FRAME)).reshape(-1, FRAME)
    power = np.einsum("ij,ij->i", padded, padded) / FRAME
    loudest = float(np.max(power, initial=0))
    return float(np.sqrt(np.mean(power[power > ACTIVE_RANGE * loudest]))) if loudest > 0 else 0.0


def add_noise(x: Samples, noise: Samples, snr_db: float) -> Samples:
    """`x` plus `noise`, whose active level comes to lie `snr_db` below that of `x`.

    A silent `x` counts as if its active level were SILENT_LEVEL. Silent noise adds nothing.
    Raises ValueError where the lengths differ.
    """
    if len(noise) != len(x):
        raise ValueError(f"the noise has {len(noise)} samples, expected {len(x)}; make it as long as x")
    level = active_level(noise)
    if level == 0:
        return x.copy()
    target = (active_level(x) or SILENT_LEVEL) * 10 ** (-snr_db / 20)
    return x + noise * np.float32(target / level)


def stretch_formants(x: Samples, factor: float) -> Samples:
    """Another speaker: every frequency of `x` times `factor`, as a shorter (above 1) or longer vocal tract has it.

    This is resampling: formants and pitch move together, the length becomes len(x) / factor to within a sample, and
    a word at t seconds comes to lie at t / factor. Useful from 0.88 to 1.12. Raises ValueError outside 0.5..2.
    """
    if not 0.5 <= factor <= 2:
        raise ValueError(f"factor is {factor}, expected 0.5 to 2; speakers differ by 0.88 to 1.12")
    if len(x) == 0 or factor == 1:
        return x.copy()
    y: Samples = soxr.resample(x, SAMPLE_RATE * factor, SAMPLE_RATE, quality="MQ")
    return y
