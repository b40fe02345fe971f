"""Whisper's log-mel spectrogram, whole or for windows that overlap.

Source: Radford et al. (2022), section 2.2, and `whisper/audio.py` of openai/whisper for what the paper leaves open:
reflecting centre padding, a periodic Hann window, the power spectrum without its last frame, and the compression to
eight decades below the loudest bin. The filter bank is Slaney's (Auditory Toolbox, 1998): linear below 1 kHz,
logarithmic above, each triangle of unit area.
"""

from functools import cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from streamer.audio.constants import HOP_LENGTH, N_FFT, N_FRAMES, N_SAMPLES, SAMPLE_RATE, exact_div

N_FREQUENCIES = N_FFT // 2 + 1  # 201 bins from 0 Hz to 8 kHz
PADDING = exact_div(N_FFT, 2)  # 200 samples before the first frame's centre

POWER_FLOOR = 1e-10  # silence, before the logarithm
DYNAMIC_RANGE = 8.0  # decades below the loudest bin that are kept

# Slaney's scale: 200/3 Hz a mel up to 1 kHz, from there 27 steps for each factor of 6.4.
LINEAR_HZ_PER_MEL = 200.0 / 3.0
BREAK_HZ = 1000.0
BREAK_MEL = BREAK_HZ / LINEAR_HZ_PER_MEL
LOG_STEP = np.log(6.4) / 27.0

# The first frame whose samples all lie behind the window's first: frames 0 and 1 see the reflection.
FIRST_INTERIOR_FRAME = -(-PADDING // HOP_LENGTH)


def mel_filters(n_mels: int) -> NDArray[np.float32]:
    """Return the filter bank that maps a power spectrum to mel bins, shape (n_mels, 201).

    Slaney's scale from 0 Hz to 8 kHz, each triangle divided by half its width in Hz.
    """
    nyquist = SAMPLE_RATE / 2
    edges = _mel_to_hz(np.linspace(0.0, float(_hz_to_mel(nyquist)), n_mels + 2))
    frequencies = np.linspace(0.0, nyquist, N_FREQUENCIES)
    widths = np.diff(edges)
    rising = (frequencies - edges[:-2, None]) / widths[:-1, None]
    falling = (edges[2:, None] - frequencies) / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None], dtype=np.float32)


def log_mel(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return the log-mel spectrogram of the first 30 s of audio, padded with silence: shape (n_mels, 3000).

    `samples` is 16 kHz mono, shape (n,), of any length.
    """
    return LogMelStream(n_mels).window(samples[:N_SAMPLES], 0)


def log_mel_recording(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return the log-mel spectrogram of a whole recording, shape (n_mels, n_frames), compressed below its loudest bin.

    `samples` is 16 kHz mono, shape (n,). Up to 30 s are padded with silence to 3000 frames; more have n // 160 frames,
    as in the long-form path of `transformers`.
    """
    if len(samples) <= N_SAMPLES:
        return log_mel(samples, n_mels)
    n_frames = len(samples) // HOP_LENGTH
    padded = np.pad(samples, PADDING, mode="reflect")
    stream = LogMelStream(n_mels)
    log_power = np.empty((n_frames, n_mels), dtype=np.float32)
    for first in range(0, n_frames, N_FRAMES):  # in blocks: the spectra of an hour at once would be gigabytes
        end = min(first + N_FRAMES, n_frames)
        log_power[first:end] = stream._compute(padded[first * HOP_LENGTH : (end - 1) * HOP_LENGTH + N_FFT])
    return _compress(log_power)


class LogMelStream:
    """Log-mel spectrograms of windows into one stream of audio; a frame is computed once however many windows show it.

    Only frames that see nothing but audio are kept. Those at the edges (the reflection at the window's start, the last
    ones before the padding) differ from window to window and are computed each time: six at most.
    """

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels

        # Frames that went through the Fourier transform since the start, those at the edges included.
        self.frames_computed = 0

        # log10 of the mel power of the kept frames, one a row, before the compression (which depends on the window).
        self._kept = np.empty((N_FRAMES, n_mels), dtype=np.float32)

        # Absolute numbers of the first kept frame and of the one after the last.
        self._kept_start = 0
        self._kept_end = 0

    def window(self, samples: NDArray[np.float32], start_samples: int) -> NDArray[np.float32]:
        """Return the log-mel spectrogram of one window, shape (n_mels, 3000); equal to `log_mel(samples, n_mels)`.

        `samples` is all of the window's audio, 16 kHz mono, shape (n,) with n <= 480000; it may share its beginning
        with earlier windows, at the same absolute positions. `start_samples` is the position of its first sample in
        the stream, a multiple of 160. Frames before it are forgotten.
        """
        n_samples = len(samples)
        assert samples.ndim == 1, f"expected mono samples, found shape {samples.shape}"
        assert n_samples <= N_SAMPLES, f"{n_samples} samples are more than a window of {N_SAMPLES}"
        first_frame = exact_div(start_samples, HOP_LENGTH)

        # Frame i sees the samples from i * HOP_LENGTH - PADDING to i * HOP_LENGTH + PADDING.
        n_heard = min(N_FRAMES, -(-(n_samples + PADDING) // HOP_LENGTH)) if n_samples else 0
        interior_end = max(FIRST_INTERIOR_FRAME, min(N_FRAMES, (n_samples - PADDING) // HOP_LENGTH + 1))

        log_power = np.full((N_FRAMES, self.n_mels), np.log10(POWER_FLOOR), dtype=np.float32)
        if n_heard:
            log_power[:FIRST_INTERIOR_FRAME] = self._compute(_head(samples))
            log_power[FIRST_INTERIOR_FRAME:interior_end] = self._interior(samples, first_frame, interior_end)
            if interior_end < n_heard:
                log_power[interior_end:n_heard] = self._compute(_tail(samples, interior_end, n_heard))

        return _compress(log_power)

    def _interior(self, samples: NDArray[np.float32], first_frame: int, end: int) -> NDArray[np.float32]:
        """Return the frames from FIRST_INTERIOR_FRAME to `end` of the window, computing those that are new."""
        absolute_start = first_frame + FIRST_INTERIOR_FRAME
        absolute_end = first_frame + end
        if not self._kept_start <= absolute_start <= self._kept_end:
            self._kept_start = self._kept_end = absolute_start
        elif absolute_start > self._kept_start:
            n_kept = self._kept_end - absolute_start
            offset = absolute_start - self._kept_start
            self._kept[:n_kept] = self._kept[offset : offset + n_kept].copy()
            self._kept_start = absolute_start
        if absolute_end > self._kept_end:
            first = (self._kept_end - first_frame) * HOP_LENGTH - PADDING
            last = (end - 1) * HOP_LENGTH + PADDING
            rows = slice(self._kept_end - absolute_start, absolute_end - absolute_start)
            self._kept[rows] = self._compute(samples[first:last])
            self._kept_end = absolute_end
        return self._kept[: end - FIRST_INTERIOR_FRAME]

    def _compute(self, stretch: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return log10 of the mel power of each frame that lies in a stretch of samples, shape (n_frames, n_mels)."""
        frames = np.lib.stride_tricks.sliding_window_view(stretch, N_FFT)[::HOP_LENGTH]
        self.frames_computed += len(frames)
        # In float64: quiet bins beside loud ones lose up to 7e-5 of the result in float32 (the references' own error).
        spectrum = scipy.fft.rfft(frames * _hann_window(), axis=1, overwrite_x=True, workers=1)
        power = spectrum.real**2 + spectrum.imag**2
        mel = power @ _filters_transposed(self.n_mels)
        result: NDArray[np.float64] = np.log10(np.maximum(mel, POWER_FLOOR))
        return result


def _compress(log_power: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log-powers (n_frames, n_mels) as Whisper wants them: (n_mels, n_frames), eight decades around 0."""
    compressed: NDArray[np.float32] = np.maximum(log_power.T, log_power.max() - DYNAMIC_RANGE, order="C")
    compressed += 4.0
    compressed /= 4.0
    return compressed


def _head(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the frames before FIRST_INTERIOR_FRAME see: the start of the window and its reflection."""
    n_seen = (FIRST_INTERIOR_FRAME - 1) * HOP_LENGTH + PADDING
    seen = np.zeros(n_seen, dtype=np.float32)
    seen[: len(samples)] = samples[:n_seen]
    return np.concatenate([seen[PADDING:0:-1], seen])


def _tail(samples: NDArray[np.float32], start: int, end: int) -> NDArray[np.float32]:
    """Return what the frames from `start` to `end` see: the end of the audio, silence, and its reflection at 30 s."""
    first = start * HOP_LENGTH - PADDING
    seen = np.zeros((end - 1) * HOP_LENGTH + PADDING - first, dtype=np.float32)
    audio = samples[first:]
    seen[: len(audio)] = audio
    n_beyond = first + len(seen) - N_SAMPLES
    if n_beyond > 0:
        seen[-n_beyond:] = seen[-n_beyond - 2 : -2 * n_beyond - 2 : -1]
    return seen


@cache
def _hann_window() -> NDArray[np.float64]:
    # Periodic: its 401st value would be the first of the next period.
    window: NDArray[np.float64] = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(N_FFT) / N_FFT)
    return window


@cache
def _filters_transposed(n_mels: int) -> NDArray[np.float64]:
    return np.ascontiguousarray(mel_filters(n_mels).T, dtype=np.float64)


def _hz_to_mel(hz: float) -> float:
    if hz < BREAK_HZ:
        return hz / LINEAR_HZ_PER_MEL
    return float(BREAK_MEL + np.log(hz / BREAK_HZ) / LOG_STEP)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < BREAK_MEL, mel * LINEAR_HZ_PER_MEL, BREAK_HZ * np.exp(LOG_STEP * (mel - BREAK_MEL)))
