"""Raw PCM from a client or a pipe to 16 kHz mono samples, and samples to 16-bit integers."""

import numpy as np

from streamer.arrays import Float32Array, Int16Array
from streamer.audio.resample import Resampler
from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from streamer.errors import ProtocolError

BYTES_PER_SAMPLE: dict[str, int] = {"s16le": 2, "f32le": 4}

# Frames converted at a time, so that a huge chunk needs no huge intermediate arrays.
BLOCK_FRAMES = 65_536


def to_int16(samples: Float32Array) -> Int16Array:
    """Return samples of -1 to 1, shape (n,), as 16-bit integers; what is beyond is clipped."""
    packed: Int16Array = (np.clip(samples, -1.0, 1.0) * 32767).astype(np.int16)
    return packed


class PcmDecoder:
    """Bytes to samples, cut anywhere; what is wrong with them is collected in words, each kind once a stream.

    Codes of problems: `odd_bytes` (a chunk, or the stream, is not a whole number of frames), `bad_samples` (NaN or
    infinite, taken as silence), `out_of_range` (beyond -1 to 1, clipped).
    """

    def __init__(self, format: str, sample_rate: int, channels: int, *, whole_chunks: bool = True) -> None:
        """Decode `format` ("s16le" or "f32le"), `sample_rate` frames a second, `channels` interleaved.

        `whole_chunks` says whether each chunk should be a whole number of frames, as messages are, or may be cut
        anywhere, as reads from a pipe are.

        Raises ProtocolError for a number out of range.
        """
        if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
            expected = f"expected {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE}"
            raise ProtocolError(f"sample rate is {sample_rate!r:.40} Hz: {expected}")
        if not 1 <= channels <= MAX_CHANNELS:
            raise ProtocolError(f"channel count is {channels!r:.40}: expected 1 to {MAX_CHANNELS}")
        self.format = format
        self.sample_rate = sample_rate
        self.channels = channels

        # Bytes of one frame: a sample of each channel.
        self.frame_bytes = BYTES_PER_SAMPLE[format] * channels

        # Frames decoded so far, at the stream's own rate.
        self.frames_decoded = 0

        # NaN and infinite samples so far.
        self.bad_samples = 0

        self._dtype = np.dtype("<i2" if format == "s16le" else "<f4")
        self._resampler = Resampler(sample_rate, channels)
        self._whole_chunks = whole_chunks

        # The beginning of a frame whose rest is still to come, less than one frame.
        self._carried = b""

        # Problems not taken yet, and the kinds that were ever reported.
        self._problems: list[tuple[str, str]] = []
        self._reported: set[str] = set()

    def decode(self, data: bytes | memoryview) -> Float32Array:
        """Return the 16 kHz mono samples, shape (m,), that further bytes complete."""
        if self._carried:
            data = self._carried + data
        n_frames, n_rest = divmod(len(data), self.frame_bytes)
        self._carried = bytes(data[len(data) - n_rest :])
        if n_rest and self._whole_chunks:
            self._report(
                "odd_bytes",
                f"a chunk of {self.format} audio ends with {n_rest} byte(s) of an incomplete frame, which were joined"
                f" to the next chunk: expected a multiple of {self.frame_bytes} bytes; send whole frames",
            )
        blocks = [
            self._resampler.process(self._frames(data, first, min(BLOCK_FRAMES, n_frames - first)))
            for first in range(0, n_frames, BLOCK_FRAMES)
        ]
        self.frames_decoded += n_frames
        return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.float32)

    def finish(self) -> Float32Array:
        """Return the last samples, shape (m,): the stream is over."""
        if self._carried:
            self._report(
                "odd_bytes",
                f"the audio ends with {len(self._carried)} byte(s) of a frame of {self.frame_bytes}, which were"
                f" dropped: expected {self.format} with {self.channels} channel(s); check format and channel count",
            )
            self._carried = b""
        return self._resampler.flush()

    def drop_rest(self) -> None:
        """Forget the beginning of a frame whose rest does not come: the sender goes on with a whole frame."""
        self._carried = b""

    def take_problems(self) -> list[tuple[str, str]]:
        """Return the problems found since the last call as (code, message), oldest first."""
        problems, self._problems = self._problems, []
        return problems

    def _frames(self, data: bytes | memoryview, first: int, n_frames: int) -> Float32Array:
        raw = np.frombuffer(data, self._dtype, n_frames * self.channels, first * self.frame_bytes)
        if self.format == "s16le":
            samples = raw.astype(np.float32)
            samples /= 32768.0
        else:
            samples = self._checked(raw.astype(np.float32))
        return samples.reshape(n_frames, self.channels)

    def _checked(self, samples: Float32Array) -> Float32Array:
        n_bad = silence_bad_samples(samples)
        if n_bad:
            self.bad_samples += n_bad
            self._report(
                "bad_samples",
                f"{self.bad_samples} audio sample(s) are NaN or infinite and were replaced by silence: expected -1 to"
                " 1; check the sender's conversion to float",
            )
        peak = float(np.abs(samples).max(initial=0.0))
        if peak > 1.0:
            self._report(
                "out_of_range",
                f"audio samples reach {peak:.6g} and were clipped: expected -1 to 1; divide integer samples by their"
                " full scale before sending them as float",
            )
            np.clip(samples, -1.0, 1.0, out=samples)
        return samples

    def _report(self, code: str, message: str) -> None:
        if code not in self._reported:
            self._reported.add(code)
            self._problems.append((code, message))


def silence_bad_samples(samples: Float32Array) -> int:
    """Set NaN and infinite samples to 0, in place, and return how many there were."""
    good = np.isfinite(samples)
    n_bad = samples.size - int(np.count_nonzero(good))
    if n_bad:
        samples[~good] = 0.0
    return n_bad
