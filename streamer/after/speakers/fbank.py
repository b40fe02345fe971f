"""Log-mel filter banks as Kaldi computes them, which speaker encoders are trained on.

Source: Kaldi's `feature-fbank`, `feature-window` and `mel-computations`, their defaults but 80 bands and no dither.
"""

from functools import cache

import numpy as np

from streamer.arrays import Float32Array, FloatArray
from streamer.constants import SAMPLE_RATE

N_BANDS = 80
N_FRAMES = 150

FRAME_SAMPLES = SAMPLE_RATE * 25 // 1000  # 400
HOP_SAMPLES = SAMPLE_RATE // 100  # 160

# What N_FRAMES frames are made of: 24240 samples, 1.515 s.
WINDOW_SAMPLES = FRAME_SAMPLES + (N_FRAMES - 1) * HOP_SAMPLES

_N_FFT = 512
_PREEMPHASIS = 0.97
_LOWEST_HZ = 20.0
# Samples are counted in steps of 16 bits there, and no band's energy is below float32's epsilon.
_FULL_SCALE = 32768.0
_FLOOR = float(np.finfo(np.float32).eps)


def log_mel(samples: Float32Array) -> Float32Array:
    """Return the log energy of each band in each frame that `samples`, shape (n,), hold whole: (n_frames, N_BANDS)."""
    n_frames = max(0, 1 + (len(samples) - FRAME_SAMPLES) // HOP_SAMPLES)
    first = np.arange(n_frames)[:, np.newaxis] * HOP_SAMPLES
    frames = samples.astype(np.float64)[first + np.arange(FRAME_SAMPLES)] * _FULL_SCALE
    frames -= frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    spectrum = np.fft.rfft((frames - _PREEMPHASIS * before) * _povey_window(), _N_FFT)
    energies = np.square(np.abs(spectrum)) @ _filters()
    return np.log(np.maximum(energies, _FLOOR)).astype(np.float32)


@cache
def _povey_window() -> FloatArray:
    """Return Daniel Povey's window: Hann's to the power of 0.85, shape (FRAME_SAMPLES,)."""
    window: FloatArray = np.hanning(FRAME_SAMPLES) ** 0.85
    return window


@cache
def _filters() -> FloatArray:
    """Return triangles on the mel scale, from `_LOWEST_HZ` to half the rate, shape (_N_FFT // 2 + 1, N_BANDS)."""
    edges = np.linspace(_mel(np.array(_LOWEST_HZ)), _mel(np.array(SAMPLE_RATE / 2)), N_BANDS + 2)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    bins = _mel(np.arange(_N_FFT // 2 + 1) * SAMPLE_RATE / _N_FFT)[:, np.newaxis]
    triangles = np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre))
    filters: FloatArray = np.maximum(triangles, 0.0)
    return filters


def _mel(hz: FloatArray) -> FloatArray:
    mel: FloatArray = 1127.0 * np.log1p(hz / 700.0)
    return mel
