"""Whisper's log-mel spectrogram: whole, for windows that overlap, or of a recording of any length.

Source: Radford et al. (2022), section 2.2, and `whisper/audio.py` of openai/whisper for what the paper leaves open:
reflecting centre padding, a periodic Hann window, the power spectrum without its last frame, and the compression to
eight decades below the loudest bin. The filter bank is Slaney's (Auditory Toolbox, 1998): linear below 1 kHz,
logarithmic above, each triangle of unit area.
"""

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import Float32Array
from streamer.constants import HOP_LENGTH, N_FFT, N_FRAMES, N_SAMPLES, SAMPLE_RATE, exact_div
from streamer.errors import StreamerError

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


def mel_filters(n_mels: int) -> Float32Array:
    """Return Slaney's filter bank, from power spectrum to mel bins of unit area, shape (n_mels, 201)."""
    nyquist = SAMPLE_RATE / 2
    edges = _mel_to_hz(np.linspace(0.0, float(_hz_to_mel(nyquist)), n_mels + 2))
    frequencies = np.linspace(0.0, nyquist, N_FREQUENCIES)
    widths = np.diff(edges)
    rising = (frequencies - edges[:-2, None]) / widths[:-1, None]
    falling = (edges[2:, None] - frequencies) / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None], dtype=np.float32)


def log_mel(samples: Float32Array, n_mels: int) -> Float32Array:
    """Return the log-mel spectrogram, (n_mels, 3000), of the first 30 s of 16 kHz mono samples, padded with silence."""
    return LogMelStream(n_mels).window(samples[:N_SAMPLES], 0)


def log_mel_alone(samples: Float32Array, n_mels: int) -> Float32Array:
    """Return the log-mel spectrogram of samples without silence behind them, shape (n_mels, n_samples // 160)."""
    padded = np.pad(samples, PADDING, mode="reflect")
    log_power = LogMelStream(n_mels)._compute(padded, 0, len(samples) // HOP_LENGTH).astype(np.float32)
    return _compress(log_power, log_power.max())


class LogMelRecording:
    """The log-mel spectrogram of a recording of any length, whose audio is read once and not kept.

    The spectrogram is compressed below its loudest bin, which is known only at the end. Until then it is kept as it is:
    a minute of it in memory, a longer one in a temporary file. Up to 30 s of audio are padded with silence to 3000
    frames; more samples have one for each 160, as in the long-form path of `transformers`.
    """

    def __init__(self, blocks: Iterable[Float32Array], n_mels: int, *, padding_samples: int = 0) -> None:
        """Read a recording to its end.

        blocks : its audio, 16 kHz mono, shape (n,)
        padding_samples : silence that is put behind it; openai-whisper puts 480000 samples, 30 s

        Raises StreamerError if the temporary file cannot be written.
        """
        self.n_mels = n_mels

        # Samples of the recording, without the padding, and frames with it.
        self.n_samples = 0
        self.n_frames = 0

        # log10 of the power of the loudest bin, and of all bins, one frame a row.
        self._loudest = np.float32(-np.inf)
        self._log_powers = tempfile.SpooledTemporaryFile(max_size=2 * N_FRAMES * self._frame_bytes)  # noqa: SIM115

        padding = np.zeros(padding_samples, dtype=np.float32)
        for log_power in _log_powers(itertools.chain(self._counted(blocks), [padding]), n_mels):
            self.n_frames += len(log_power)
            self._loudest = max(self._loudest, log_power.max())
            self._write(log_power)

    def frames(self, start: int, end: int) -> Float32Array:
        """Return frames, shape (n_mels, end - start)."""
        assert 0 <= start <= end <= self.n_frames, f"frames {start} to {end} of {self.n_frames}"
        self._log_powers.seek(start * self._frame_bytes)
        data = self._log_powers.read((end - start) * self._frame_bytes)
        return _compress(np.frombuffer(data, dtype=np.float32).reshape(-1, self.n_mels), self._loudest)

    @property
    def silence(self) -> float:
        """What a frame of silence holds in each bin."""
        return float(_compress(np.log10([[POWER_FLOOR]]).astype(np.float32), self._loudest).item())

    def close(self) -> None:
        """Delete the spectrogram."""
        self._log_powers.close()

    @property
    def _frame_bytes(self) -> int:
        return 4 * self.n_mels

    def _counted(self, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        for block in blocks:
            self.n_samples += len(block)
            yield block

    def _write(self, log_power: Float32Array) -> None:
        try:
            self._log_powers.write(log_power.tobytes())
        except OSError as error:
            raise StreamerError(
                f"a temporary file cannot be written ({error.strerror or error}): expected room for 3 MB a minute of"
                " the recording; make room, or name another folder in TMPDIR"
            ) from None


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

    def window(self, samples: Float32Array, start_samples: int) -> Float32Array:
        """Return the log-mel spectrogram of one window, shape (n_mels, 3000); equal to `log_mel(samples, n_mels)`.

        `samples` is all of the window's audio, 16 kHz mono, shape (n,) with n <= 480000; it may share its beginning
        with earlier windows, at the same absolute positions. `start_samples` is the position of its first sample in
        the stream, a multiple of 160. Frames before it are forgotten.
        """
        log_power = self._log_power(samples, start_samples)
        return _compress(log_power, log_power.max())

    def _log_power(self, samples: Float32Array, start_samples: int) -> Float32Array:
        """Return log10 of the mel power of a window, shape (3000, n_mels)."""
        n_samples = len(samples)
        assert samples.ndim == 1, f"expected mono samples, found shape {samples.shape}"
        assert n_samples <= N_SAMPLES, f"{n_samples} samples are more than a window of {N_SAMPLES}"
        first_frame = exact_div(start_samples, HOP_LENGTH)
        log_power = np.full((N_FRAMES, self.n_mels), np.log10(POWER_FLOOR), dtype=np.float32)
        if n_samples:
            padded = np.pad(np.pad(samples, (0, N_SAMPLES - n_samples)), PADDING, mode="reflect")
            # Ends of the frames that see any audio, and of those that see audio alone.
            n_frames = min(N_FRAMES, -(-(n_samples + PADDING) // HOP_LENGTH))
            interior_end = max(FIRST_INTERIOR_FRAME, min(N_FRAMES, (n_samples - PADDING) // HOP_LENGTH + 1))
            log_power[:FIRST_INTERIOR_FRAME] = self._compute(padded, 0, FIRST_INTERIOR_FRAME)
            log_power[FIRST_INTERIOR_FRAME:interior_end] = self._interior(padded, first_frame, interior_end)
            if interior_end < n_frames:
                log_power[interior_end:n_frames] = self._compute(padded, interior_end, n_frames)
        return log_power

    def _interior(self, padded: Float32Array, first_frame: int, end: int) -> Float32Array:
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
            rows = slice(self._kept_end - absolute_start, absolute_end - absolute_start)
            self._kept[rows] = self._compute(padded, self._kept_end - first_frame, end)
            self._kept_end = absolute_end
        return self._kept[: end - FIRST_INTERIOR_FRAME]

    def _compute(self, padded: Float32Array, start: int, end: int) -> NDArray[np.float64]:
        """Return log10 of the mel power of frames, shape (end - start, n_mels).

        padded : audio with the padding before it: frame i is `padded[160 * i : 160 * i + 400]`
        """
        seen = padded[start * HOP_LENGTH : (end - 1) * HOP_LENGTH + N_FFT]
        frames = np.lib.stride_tricks.sliding_window_view(seen, N_FFT)[::HOP_LENGTH]
        self.frames_computed += len(frames)
        # In float64: quiet bins beside loud ones lose up to 7e-5 of the result in float32 (the references' own error).
        spectrum = np.fft.rfft(frames * _hann_window(), axis=1)
        power = spectrum.real**2 + spectrum.imag**2
        mel = power @ _filters_transposed(self.n_mels)
        result: NDArray[np.float64] = np.log10(np.maximum(mel, POWER_FLOOR))
        return result


def _log_powers(blocks: Iterable[Float32Array], n_mels: int) -> Iterator[Float32Array]:
    """Yield log10 of the mel power of a recording, 3000 frames at a time, the last time fewer: shape (n, n_mels)."""
    stream = LogMelStream(n_mels)
    # Samples that frames to come will see; those of the first are reflected at the beginning.
    seen = np.empty(0, dtype=np.float32)
    waiting: list[Float32Array] = []
    n_waiting = 0
    begun = False
    for block in blocks:
        waiting.append(block)
        n_waiting += len(block)
        while len(seen) + n_waiting > N_SAMPLES + 2 * PADDING:
            seen = np.concatenate([seen, *waiting]) if waiting else seen
            waiting, n_waiting = [], 0
            if not begun:
                seen = np.pad(seen, (PADDING, 0), mode="reflect")
                begun = True
            yield stream._compute(seen, 0, N_FRAMES).astype(np.float32)
            seen = seen[N_SAMPLES:]
    seen = np.concatenate([seen, *waiting])
    if not begun and len(seen) <= N_SAMPLES:
        yield stream._log_power(seen, 0)
        return
    n_frames = (len(seen) - (PADDING if begun else 0)) // HOP_LENGTH
    seen = np.pad(seen, (0 if begun else PADDING, PADDING), mode="reflect")
    for first in range(0, n_frames, N_FRAMES):  # the rest may be a frame more than a block
        yield stream._compute(seen, first, min(first + N_FRAMES, n_frames)).astype(np.float32)


def _compress(log_power: Float32Array, loudest: np.floating) -> Float32Array:
    """Return log-powers (n_frames, n_mels) as Whisper wants them: (n_mels, n_frames), eight decades around 0."""
    compressed: Float32Array = np.maximum(log_power.T, loudest - DYNAMIC_RANGE, order="C")
    compressed += 4.0
    compressed /= 4.0
    return compressed


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
