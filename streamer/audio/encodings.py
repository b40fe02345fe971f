"""Audio as clients of other protocols send it, in pieces that are cut anywhere: raw samples, or a file as it is."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, PcmFormat
from streamer.audio.containers import ContainerStream
from streamer.audio.wav import FORMAT_ALAW, FORMAT_FLOAT, FORMAT_MULAW, FORMAT_PCM, MAX_HEADER_BYTES, read_wav_header
from streamer.errors import AudioFileError


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a sample is written."""

    # Bytes of one sample.
    width: int

    # What `decode` makes of whole samples.
    format: PcmFormat = "s16le"
    decode: Callable[[bytes], bytes] = bytes


def _upper_bytes(width: int) -> Callable[[bytes], bytes]:
    """Return what keeps the upper 16 bits of samples of `width` bytes."""
    return lambda data: np.frombuffer(data, np.uint8).reshape(-1, width)[:, -2:].tobytes()


def _from_unsigned(data: bytes) -> bytes:
    return ((np.frombuffer(data, np.uint8).astype("<i2") - 128) * 256).tobytes()


@functools.cache
def _g711_table(codec: str) -> NDArray[np.int16]:
    """Return the 16-bit sample of each code of G.711, from FFmpeg's decoder `codec`, shape (256,)."""
    import av  # late: it takes 20 MB and a tenth of a second

    decoder: Any = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    [frame] = decoder.decode(av.Packet(bytes(range(256))))
    return np.asarray(frame.to_ndarray(), "<i2").ravel()


def _from_g711(codec: str) -> Callable[[bytes], bytes]:
    return lambda data: _g711_table(codec)[np.frombuffer(data, np.uint8)].tobytes()


LINEAR16 = Encoding(2)
FLOAT32 = Encoding(4, "f32le")
MULAW = Encoding(1, decode=_from_g711("pcm_mulaw"))
ALAW = Encoding(1, decode=_from_g711("pcm_alaw"))

# Integers by the bytes of a sample; those of one byte are unsigned.
PCM = {
    1: Encoding(1, decode=_from_unsigned),
    2: LINEAR16,
    3: Encoding(3, decode=_upper_bytes(3)),
    4: Encoding(4, decode=_upper_bytes(4)),
}

# What needs no FFmpeg in a WAV file.
_OF_WAV = {
    **{(FORMAT_PCM, 8 * width): encoding for width, encoding in PCM.items()},
    (FORMAT_FLOAT, 32): FLOAT32,
    (FORMAT_ALAW, 8): ALAW,
    (FORMAT_MULAW, 8): MULAW,
}


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """How audio is written."""

    encoding: Encoding
    sample_rate: int
    channels: int


class AudioReader:
    """Bytes of audio to samples that a session takes."""

    def __init__(self, format: AudioFormat | None) -> None:
        """Read raw samples in `format`; without one, a file that says it itself."""
        # None until it is known.
        self.format = format
        # Seconds of audio that a WAV file's header announces; None if unknown.
        self.announced_s: float | None = None
        # Frames read so far.
        self._n_frames = 0
        # The beginning of a header, or of a frame, whose rest is still to come.
        self._rest = b""
        # Bytes of audio to come before a WAV file's next chunk; None if there is no end.
        self._left: int | None = None
        # Decodes a file that is not simply samples behind a header.
        self._container: ContainerStream | None = None

    @property
    def read_s(self) -> float:
        """Seconds of audio that were read."""
        return self._n_frames / self.format.sample_rate if self.format else 0.0

    def read(self, data: bytes) -> bytes:
        """Return the whole frames that further bytes complete, as `encoding.format` says. Raises AudioFileError."""
        if not data:
            return b""
        data, self._rest = self._rest + data, b""
        if self.format is None and self._container is None:
            data = self._read_header(data)
        if self._container is not None:
            return self._decode(data)
        if self.format is None:
            self._rest = data
            return b""
        frame_bytes = self.format.encoding.width * self.format.channels
        n_frames = len(data[: self._left]) // frame_bytes
        self._n_frames += n_frames
        end = n_frames * frame_bytes
        self._rest = data[: self._left][end:]
        if self._left is not None:
            self._left -= end
        return self.format.encoding.decode(data[:end])

    def finish(self) -> bytes:
        """Return the last frames. Raises AudioFileError if there was no audio."""
        if self._container is not None:
            return self._decode(b"")
        if self.format is None and self._rest:
            raise AudioFileError("the audio ends within its header: expected a whole one, and audio")
        return b""

    def _read_header(self, data: bytes) -> bytes:
        """Find the format in the first bytes; return the bytes behind the header, or all until it is complete."""
        header = read_wav_header(data)
        if header is None and b"RIFF".startswith(data[:4]) and len(data) < MAX_HEADER_BYTES:
            return data
        encoding = _OF_WAV.get((header.format, header.bits_per_sample)) if header is not None else None
        if header is None or encoding is None:
            self._container = ContainerStream()
            return data
        self.format = _checked(AudioFormat(encoding, header.sample_rate, header.channels))
        self.announced_s, self._left = header.announced_s, header.data_bytes
        return data[header.start_bytes :]

    def _decode(self, data: bytes) -> bytes:
        assert self._container is not None
        samples = self._container.feed(data)
        if self.format is None and self._container.format is not None:
            self.format = _checked(AudioFormat(FLOAT32, *self._container.format))
        if self.format is not None:
            self._n_frames += len(samples) // (self.format.encoding.width * self.format.channels)
        return samples


def _checked(format: AudioFormat) -> AudioFormat:
    if not 1 <= format.channels <= MAX_CHANNELS or not MIN_SAMPLE_RATE <= format.sample_rate <= MAX_SAMPLE_RATE:
        raise AudioFileError(
            f"the audio has {format.channels} channels of {format.sample_rate} samples a second: expected 1 to"
            f" {MAX_CHANNELS}, of {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE}"
        )
    return format
