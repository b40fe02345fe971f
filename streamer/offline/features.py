"""What the encoder is given of a recording: its log-mel spectrogram, window by window.

Source: openai-whisper's `transcribe.py`: behind the recording come 30 s of silence, which only the detection of the
language sees; behind a window come zeros. If a model asks for it, the silence follows the last window too.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.mel import LogMelRecording
from streamer.constants import FRAMES_PER_SECOND, HOP_LENGTH, N_FRAMES, N_SAMPLES
from streamer.offline.speech import Span, SpeechFinder


class Features:
    """The log-mel spectrogram of a recording, or of the speech in it, joined."""

    def __init__(
        self,
        blocks: Iterable[Float32Array],
        n_mels: int,
        *,
        pad_with_silence: bool = False,
        clips: Sequence[float] = (),
        finder: SpeechFinder | None = None,
    ) -> None:
        """Read a recording to its end: blocks of 16 kHz mono, shape (n,).

        clips : start, end, start, end, ... of what is transcribed, in seconds; the last end may be missing
        finder : finds the speech in the clips; nothing else is transcribed
        """
        self._mel = LogMelRecording(finder.passing(blocks) if finder else blocks, n_mels, padding_samples=N_SAMPLES)
        self._pad_with_silence = pad_with_silence
        # Of the recording.
        self.n_samples = self._mel.n_samples
        # Frames of the recording, or of its joined speech, and those of each clip.
        self.n_frames = self.n_samples // HOP_LENGTH
        self.clips = list(clip_frames(clips, self.n_frames))
        self.speech = finder.finish(self.n_frames, self.clips) if finder else None
        if self.speech:
            self.n_frames, self.clips = self.speech.n_frames, self.speech.clips

    def first_window(self) -> Float32Array:
        """Return the first 30 s, shape (n_mels, 3000), with the silence behind a shorter recording."""
        if self.speech:
            return self.padded(0, min(N_FRAMES, self.n_frames))
        return self._mel.frames(0, N_FRAMES)

    def window(self, begin: int, length: int) -> Float32Array:
        """Return the `length` frames from `begin` on, shape (n_mels, 3000), with zeros behind them.

        Silence follows the last of a recording if the model asks for it.
        """
        end = begin + length
        ends = self._pad_with_silence and end == self.n_frames
        if ends and not self.speech:
            return self._mel.frames(begin, begin + N_FRAMES)
        return self._padded(begin, end, self._mel.silence if ends else 0.0)

    def padded(self, begin: int, end: int) -> Float32Array:
        """Return frames with silence behind them, shape (n_mels, 3000)."""
        return self._padded(begin, end, self._mel.silence)

    def close(self) -> None:
        """Delete the spectrogram."""
        self._mel.close()

    def _padded(self, begin: int, end: int, padding: float) -> Float32Array:
        mel = np.full((self._mel.n_mels, N_FRAMES), padding, dtype=np.float32)
        position = 0
        for first, behind in self.speech.pieces(begin, end) if self.speech else [(begin, end)]:
            mel[:, position : position + behind - first] = self._mel.frames(first, behind)
            position += behind - first
        return mel


def clip_frames(timestamps: Sequence[float], n_frames: int) -> Iterator[Span]:
    """Yield the first frame of each clip, and the one behind its last; times are in seconds."""
    points = [round(time * FRAMES_PER_SECOND) for time in timestamps] or [0]
    if len(points) % 2:
        points.append(n_frames)
    for start, end in zip(points[::2], points[1::2], strict=True):
        yield start, min(end, n_frames)
