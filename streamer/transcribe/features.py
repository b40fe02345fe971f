"""What the encoder is given of a recording: its log-mel spectrogram, window by window.

Source: openai-whisper's `transcribe.py`: behind the recording come 30 s of silence, which only the search for the
language hears; behind a window come zeros. Where a model asks for it, the silence follows the last window too.
"""

from collections.abc import Callable, Iterable

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.constants import HOP_LENGTH, N_FRAMES, N_SAMPLES
from streamer.audio.mel import LogMelFile, log_mel_recording

# Begins to read a recording: blocks of 16 kHz mono, shape (n,), the same each time.
Read = Callable[[], Iterable[Float32Array]]


class Features:
    """The log-mel spectrogram of a recording."""

    def __init__(self, audio: Float32Array | Read, n_mels: int, *, pad_with_silence: bool = False) -> None:
        """Take a recording, shape (n_samples,), or read it for the first of two times."""
        # Frames from one to before another, at most 3000, shape (n_mels, n).
        self._frames: Callable[[int, int], Float32Array]
        if isinstance(audio, np.ndarray):
            mel = log_mel_recording(np.pad(audio, (0, N_SAMPLES)), n_mels)
            self.n_samples = len(audio)
            self._frames = lambda start, end: mel[:, start:end]
        else:
            file = LogMelFile(audio, n_mels, padding_samples=N_SAMPLES)
            self.n_samples = file.n_samples
            self._frames = file.frames
        # Of the recording alone.
        self.n_frames = self.n_samples // HOP_LENGTH
        self._n_mels = n_mels
        self._pad_with_silence = pad_with_silence

    def first_window(self) -> Float32Array:
        """Return the first 30 s, shape (n_mels, 3000), with the silence behind a shorter recording."""
        return self._frames(0, N_FRAMES)

    def window(self, begin: int, length: int) -> Float32Array:
        """Return the `length` frames from `begin` on, shape (n_mels, 3000)."""
        if self._pad_with_silence and begin + length == self.n_frames:
            length = N_FRAMES
        mel = np.zeros((self._n_mels, N_FRAMES), dtype=np.float32)
        mel[:, :length] = self._frames(begin, begin + length)
        return mel
