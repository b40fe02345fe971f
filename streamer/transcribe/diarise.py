"""Which of two people speaks, where each has a channel of the recording: whose channel is louder.

Source: whisper.cpp's `--diarize`: mean magnitudes that differ by less than a tenth say nothing.
"""

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.constants import FRAMES_PER_SECOND
from streamer.errors import ConfigError

LOUDER = 1.1  # how much the one who speaks is
UNKNOWN_SPEAKER = "?"


class ChannelLoudness:
    """How loud both channels of a recording are, every 10 ms: 3 MB an hour."""

    def __init__(self) -> None:
        # Sum of the magnitudes in each 10 ms, shape (2, n); zeros behind what has been heard.
        self._sums = np.zeros((2, FRAMES_PER_SECOND), dtype=np.float32)
        # Samples of each channel so far.
        self._n_heard = 0

    def add(self, samples: Float32Array, sample_rate: int) -> None:
        """Hear samples, shape (n, 2), always at the same rate. Raises ConfigError where there are not two channels."""
        n_samples, n_channels = samples.shape
        if n_channels != 2:
            raise ConfigError(
                f"diarize tells two speakers by their channels, the recording has {n_channels}: expected a stereo"
                " recording with a speaker in each channel; leave diarize out"
            )
        if n_samples == 0:
            return
        frames = (self._n_heard + np.arange(n_samples)) * FRAMES_PER_SECOND // sample_rate
        first, last = int(frames[0]), int(frames[-1])
        while last >= self._sums.shape[1]:
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)], axis=1)
        for sums, channel in zip(self._sums, np.abs(samples).T, strict=True):
            sums[first : last + 1] += np.bincount(frames - first, channel)
        self._n_heard += n_samples

    def speaker(self, start_s: float, end_s: float) -> str:
        """Return the channel that is louder between two times, "0" or "1", or "?" where neither is."""
        first, last = (round(time * FRAMES_PER_SECOND) for time in (start_s, end_s))
        loudness = self._sums[:, first:last].sum(axis=1, dtype=np.float64)
        if loudness[0] > LOUDER * loudness[1]:
            return "0"
        return "1" if loudness[1] > LOUDER * loudness[0] else UNKNOWN_SPEAKER
