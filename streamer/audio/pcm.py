"""Raw PCM, from a client or a pipe, to 16 kHz mono samples, and samples to 16-bit integers."""

import functools
from typing import Any

import numpy as np

from streamer.arrays import Float32Array, Int16Array
from streamer.audio.resample import Resampler
from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, PcmEncoding
from streamer.errors import ProtocolError

BYTES_PER_SAMPLE: dict[PcmEncoding, int] = {"u8": 1, "s16le": 2, "s24le": 3, "s32le": 4}
BYTES_PER_SAMPLE |= {"f32le": 4, "mulaw": 1, "alaw": 1}

# Frames converted at a time, so that a huge chunk needs no huge intermediate arrays.
BLOCK_FRAMES = 65_536


def to_int16(samples: Float32Array) -> Int16Array:
    """Return samples of -1 to 1, shape (n,), as 16-bit integers; what is beyond is clipped."""
    packed: Int16Array = (np.clip(samples, -1.0, 1.0) * 32767).astype(np.int16)
    return packed


def to_float(data: bytes | memoryview, encoding: PcmEncoding) -> Float32Array:
    """Return whole samples, shape (n,): integers as -1 to 1, floats as they are."""
    match encoding:
        case "f32le":
            return np.frombuffer(data, "<f4").astype(np.float32)
        case "mulaw" | "alaw":
            return _g711_table(encoding)[np.frombuffer(data, np.uint8)]
        case "u8":
            samples = np.frombuffer(data, np.uint8).astype(np.float32)
            samples -= 128.0
        case "s24le":
            wide = np.zeros((len(data) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            samples = wide.view("<i4").ravel().astype(np.float32)
            samples /= 2.0**8
        case "s16le" | "s32le":
            samples = np.frombuffer(data, f"<i{BYTES_PER_SAMPLE[encoding]}").astype(np.float32)
    samples /= 2.0 ** (8 * BYTES_PER_SAMPLE[encoding] - 1)
    return samples


@functools.cache
def _g711_table(encoding: str) -> Float32Array:
    """Return the sample of each code of G.711, from FFmpeg's decoder, shape (256,)."""
    import av  # late: it takes 20 MB and a tenth of a second

    decoder: Any = av.CodecContext.create(f"pcm_{encoding}", "r")
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    [frame] = decoder.decode(av.Packet(bytes(range(256))))
    return to_float(frame.to_ndarray().astype("<i2").tobytes(), "s16le")


class PcmDecoder:
    """Bytes to samples, cut anywhere; what is wrong with them is collected in words, each kind once a stream.

    Codes of problems: `odd_bytes` (a chunk, or the stream, is not a whole number of frames), `bad_samples` (NaN or
    infinite, taken as silence), `out_of_range` (beyond -1 to 1, clipped).
    """

    def __init__(self, encoding: PcmEncoding, sample_rate: int, channels: int, *, whole_chunks: bool = True) -> None:
        """Decode `sample_rate` frames a second, of `channels` interleaved samples.

        `whole_chunks` says whether each chunk should be a whole number of frames, as messages are, or may be cut
        anywhere, as reads from a pipe are.

        Raises ProtocolError for a number out of range.
        """
        if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
            expected = f"expected {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE}"
            raise ProtocolError(f"sample rate is {sample_rate!r:.40} Hz: {expected}")
        if not 1 <= channels <= MAX_CHANNELS:
            raise ProtocolError(f"channel count is {channels!r:.40}: expected 1 to {MAX_CHANNELS}")
        self.encoding = encoding
        self.sample_rate = sample_rate
        self.channels = channels

        # Bytes of one frame: a sample of each channel.
        self.frame_bytes = BYTES_PER_SAMPLE[encoding] * channels

        # Frames decoded so far, at the stream's own rate.
        self.frames_decoded = 0

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
        end = len(data) - n_rest
        self._carried = bytes(data[end:])
        if n_rest and self._whole_chunks:
            self._report(
                "odd_bytes",
                f"a chunk of {self.encoding} audio ends with {n_rest} byte(s) of an incomplete frame, which were joined"
                f" to the next chunk: expected a multiple of {self.frame_bytes} bytes; send whole frames",
            )
        block_bytes = BLOCK_FRAMES * self.frame_bytes
        blocks = [
            self._resampler.process(self._frames(data[first : min(first + block_bytes, end)]))
            for first in range(0, end, block_bytes)
        ]
        self.frames_decoded += n_frames
        return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.float32)

    def finish(self) -> Float32Array:
        """Return the last samples, shape (m,): the stream is over."""
        if self._carried:
            self._report(
                "odd_bytes",
                f"the audio ends with {len(self._carried)} byte(s) of a frame of {self.frame_bytes}, which were"
                f" dropped: expected {self.encoding} with {self.channels} channel(s); check format and channel count",
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

    def _frames(self, data: bytes | memoryview) -> Float32Array:
        samples = to_float(data, self.encoding)
        if self.encoding == "f32le":
            self._check(samples)
        return samples.reshape(-1, self.channels)

    def _check(self, samples: Float32Array) -> None:
        """Mend floats in place, and report what was wrong with them."""
        if n_bad := silence_bad_samples(samples):
            self._report(
                "bad_samples",
                f"{n_bad} audio sample(s) are NaN or infinite and were replaced by silence: expected -1 to"
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
