"""Rooms and noise. Samples are mono float32 at 16 kHz; what is returned may pass -1 and 1."""

import numpy as np
from scipy import signal

from streamer.arrays import Float32Array as Samples
from streamer.constants import SAMPLE_RATE

FRAME = 320  # samples, 20 ms, over which active_level() measures
ACTIVE_RANGE = 1e-3  # a frame is active with more than this share of the loudest frame's power, -30 dB
SILENT_LEVEL = 0.03  # stands in for the active level of a silent x


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
