"""Audio as clients of other protocols send it, in pieces that are cut anywhere: raw samples, or a file as it is."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamer.audio.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, PcmFormat
from streamer.audio.containers import ContainerStream
from streamer.audio.g711 import decode_alaw, decode_mulaw
from streamer.audio.wav import FORMAT_FLOAT, FORMAT_PCM, read_wav_header
from streamer.errors import AudioFileError

FORMAT_ALAW, FORMAT_MULAW = 6, 7  # in a WAV header

# Within so many bytes a WAV file's audio has to begin; one in which it does not is left to FFmpeg.
MAX_HEADER_BYTES = 65_536


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


LINEAR16 = Encoding(2)
FLOAT32 = Encoding(4, "f32le")
MULAW = Encoding(1, decode=decode_mulaw)
ALAW = Encoding(1, decode=decode_alaw)

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
        """Read raw samples, or, where no format is given, a file that says it itself."""
        # None until that is known.
        self.format = format
        # Frames read so far.
        self._n_frames = 0
        # The beginning of a header, or of a frame, whose rest is still to come.
        self._rest = b""
        # What decodes a file that is not simply samples behind a header.
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
        n_frames, n_rest = divmod(len(data), self.format.encoding.width * self.format.channels)
        self._n_frames += n_frames
        self._rest = data[len(data) - n_rest :]
        return self.format.encoding.decode(data[: len(data) - n_rest])

    def finish(self) -> bytes:
        """Return the last frames. Raises AudioFileError where what came is no audio."""
        if self._container is not None:
            return self._decode(b"")
        if self.format is None and self._rest:
            raise AudioFileError("the audio ends within its header: expected a whole one, and audio")
        return b""

    def _read_header(self, data: bytes) -> bytes:
        """Look for the format in the first bytes; return those behind the header, or all while that is not whole."""
        wav = any(magic.startswith(data[:4]) for magic in (b"RIFF", b"RF64", b"BW64")) and len(data) <= MAX_HEADER_BYTES
        stream = io.BytesIO(data)
        header = read_wav_header(stream) if wav else None
        if wav and header is None:
            return data
        encoding = _OF_WAV.get((header.format, header.bits_per_sample)) if header is not None else None
        if header is None or encoding is None:
            self._container = ContainerStream()
            return data
        self.format = _checked(AudioFormat(encoding, header.sample_rate, header.channels))
        return data[stream.tell() :]

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
