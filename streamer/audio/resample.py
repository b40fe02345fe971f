"""Any rate and channel count to 16 kHz mono, block by block."""

import numpy as np
import soxr

from streamer.arrays import Float32Array
from streamer.audio.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, SAMPLE_RATE


class Resampler:
    """Streaming conversion to 16 kHz mono with soxr; the result does not depend on how the audio is cut into blocks."""

    def __init__(self, sample_rate: int, channels: int) -> None:
        assert MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE, f"sample rate {sample_rate} was not validated"
        assert 1 <= channels <= MAX_CHANNELS, f"channel count {channels} was not validated"
        self.sample_rate = sample_rate
        self.channels = channels

        # The converter, made at the first block and forgotten by flush(); not used if the rate is already right.
        self._stream: soxr.ResampleStream | None = None

    def process(self, frames: Float32Array) -> Float32Array:
        """Return the 16 kHz mono samples, shape (m,), that further frames, shape (n, channels), complete.

        The channels are averaged. The converter holds back some milliseconds until more frames or flush() come.
        """
        assert frames.ndim == 2, f"expected shape (n, {self.channels}), found {frames.shape}"
        assert frames.shape[1] == self.channels, f"expected {self.channels} channels, found {frames.shape[1]}"
        mono = frames[:, 0] if self.channels == 1 else frames.mean(axis=1, dtype=np.float32)
        if self.sample_rate == SAMPLE_RATE:
            return mono.astype(np.float32, copy=True)
        if self._stream is None:
            self._stream = soxr.ResampleStream(self.sample_rate, SAMPLE_RATE, 1, dtype="float32")
        return self._resample(mono, last=False)

    def flush(self) -> Float32Array:
        """Return what the converter still holds, shape (m,), and start over."""
        if self._stream is None:
            return np.empty(0, dtype=np.float32)
        rest = self._resample(np.empty(0, dtype=np.float32), last=True)
        self._stream = None
        return rest

    def _resample(self, mono: Float32Array, *, last: bool) -> Float32Array:
        assert self._stream is not None
        return np.asarray(self._stream.resample_chunk(np.ascontiguousarray(mono), last=last), dtype=np.float32)
