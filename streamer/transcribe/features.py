"""What the encoder is given of a recording: its log-mel spectrogram, window by window.

Source: openai-whisper's `transcribe.py`: behind the recording come 30 s of silence, which only the search for the
language hears; behind a window come zeros. Where a model asks for it, the silence follows the last window too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.constants import FRAMES_PER_SECOND, HOP_LENGTH, N_FRAMES, N_SAMPLES
from streamer.audio.mel import LogMelFile
from streamer.transcribe.speech import Span, SpeechFinder

# Begins to read a recording: blocks of 16 kHz mono, shape (n,), the same each time.
Read = Callable[[], Iterable[Float32Array]]


class Features:
    """The log-mel spectrogram of a recording, or of the speech in it, put together."""

    def __init__(
        self,
        audio: Float32Array | Read,
        n_mels: int,
        *,
        pad_with_silence: bool = False,
        clips: Sequence[float] = (),
        finder: SpeechFinder | None = None,
    ) -> None:
        """Take a recording, shape (n_samples,), or read it for the first of two times.

        clips : start, end, start, end, ... of what is transcribed, in seconds; the last end may be missing
        finder : finds the speech in the clips; nothing else is transcribed
        """
        read = (lambda: [audio]) if isinstance(audio, np.ndarray) else audio
        on_block = finder.process if finder else lambda block: None
        self._mel = LogMelFile(read, n_mels, padding_samples=N_SAMPLES, on_block=on_block)
        # Of the recording.
        self.n_samples = self._mel.n_samples
        # Frames of the recording, or of its joined speech, and those of each clip.
        self.n_frames = self.n_samples // HOP_LENGTH
        self.clips = list(clip_frames(clips, self.n_frames))
        self.speech = finder.finish(self.n_frames, self.clips) if finder else None
        if self.speech:
            self.n_frames, self.clips = self.speech.n_frames, self.speech.clips
        self._pad_with_silence = pad_with_silence
        # Frames of speech that were joined last, and the number of the first.
        self._kept = np.empty((n_mels, 0), dtype=np.float32)
        self._kept_begin = 0

    def first_window(self) -> Float32Array:
        """Return the first 30 s, shape (n_mels, 3000), with the silence behind a shorter recording."""
        if self.speech:
            return self.padded(self.frames(0, min(N_FRAMES, self.n_frames)), silence=True)
        return self._mel.frames(0, N_FRAMES)

    def window(self, begin: int, length: int) -> Float32Array:
        """Return the `length` frames from `begin` on, shape (n_mels, 3000)."""
        ends = self._pad_with_silence and begin + length == self.n_frames
        if ends and not self.speech:
            length = N_FRAMES
        return self.padded(self.frames(begin, begin + length), silence=ends)

    def frames(self, begin: int, end: int) -> Float32Array:
        """Return frames, at most 3000, shape (n_mels, n); none before those that were asked for last."""
        if self.speech is None:
            return self._mel.frames(begin, end)
        self._kept = self._kept[:, begin - self._kept_begin :]
        self._kept_begin = begin
        missing = self.speech.pieces(begin + self._kept.shape[1], end)
        self._kept = np.concatenate([self._kept, *(self._mel.frames(*piece) for piece in missing)], axis=1)
        return self._kept[:, : end - begin]

    def padded(self, frames: Float32Array, *, silence: bool) -> Float32Array:
        """Return frames with zeros or silence behind them, shape (n_mels, 3000)."""
        mel = np.full((len(frames), N_FRAMES), self._mel.silence if silence else 0.0, dtype=np.float32)
        mel[:, : frames.shape[1]] = frames
        return mel


def clip_frames(timestamps: Sequence[float], n_frames: int) -> Iterator[Span]:
    """Yield the first frame of each clip, and the one behind its last; times are in seconds."""
    points = [round(time * FRAMES_PER_SECOND) for time in timestamps] or [0]
    if len(points) % 2:
        points.append(n_frames)
    for start, end in zip(points[::2], points[1::2], strict=True):
        yield start, min(end, n_frames)
