"""Any rate and channel count to 16 kHz mono, block by block."""

import numpy as np
import soxr
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE

# What we accept from a file, a pipe or a client. Below 4 kHz there is no speech; above 384 kHz there is no such device,
# and a wild rate from a hostile header would turn each frame into thousands of samples.
MIN_SAMPLE_RATE = 4_000
MAX_SAMPLE_RATE = 384_000
MAX_CHANNELS = 32


class Resampler:
    """Streaming conversion to 16 kHz mono with soxr; the result does not depend on how the audio is cut into blocks."""

    def __init__(self, sample_rate: int, channels: int) -> None:
        assert MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE, f"sample rate {sample_rate} was not validated"
        assert 1 <= channels <= MAX_CHANNELS, f"channel count {channels} was not validated"
        self.sample_rate = sample_rate
        self.channels = channels

        # The converter, made at the first block and forgotten by flush(); not used where the rate is already right.
        self._stream: soxr.ResampleStream | None = None

    def process(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
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

    def flush(self) -> NDArray[np.float32]:
        """Return what the converter still holds, shape (m,), and start over."""
        if self._stream is None:
            return np.empty(0, dtype=np.float32)
        rest = self._resample(np.empty(0, dtype=np.float32), last=True)
        self._stream = None
        return rest

    def _resample(self, mono: NDArray[np.float32], *, last: bool) -> NDArray[np.float32]:
        assert self._stream is not None
        return np.asarray(self._stream.resample_chunk(np.ascontiguousarray(mono), last=last), dtype=np.float32)
