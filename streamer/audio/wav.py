"""The header of a RIFF/WAVE file or stream.

Source: Microsoft, "Multimedia Programming Interface and Data Specifications 1.0" (1991).
Needed beside FFmpeg, which reads 64 KiB of a stream before it decodes any, and ignores the length that a header of
16-bit audio announces.
"""

import io
import struct
import wave
from dataclasses import dataclass

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.pcm import to_int16

FORMAT_PCM, FORMAT_FLOAT, FORMAT_ALAW, FORMAT_MULAW, FORMAT_EXTENSIBLE = 1, 3, 6, 7, 0xFFFE

# Programs that write to a pipe do not know the length: they write 0xFFFFFFFF, something just below 2 GiB (SoX), or 0.
UNKNOWN_LENGTH_FROM = 0x7FFF_0000

# A header is searched for up to here.
MAX_HEADER_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class WavHeader:
    """Format and length of the audio."""

    # One of the FORMAT_ numbers, or another.
    format: int
    channels: int
    sample_rate: int
    bits_per_sample: int

    # Bytes of one frame, all channels.
    frame_bytes: int

    # Position of the first byte of audio.
    start_bytes: int

    # Bytes of audio that the header announces; None if that is unknown.
    data_bytes: int | None

    @property
    def announced_s(self) -> float | None:
        """Seconds of audio that the header announces; None if unknown, or if the audio is compressed (ADPCM, GSM)."""
        compressed = self.frame_bytes * 8 != self.channels * self.bits_per_sample
        if compressed or not (self.data_bytes and self.frame_bytes and self.sample_rate):
            return None
        return self.data_bytes / self.frame_bytes / self.sample_rate


def wav(samples: Float32Array) -> bytes:
    """Return 16 kHz mono audio, shape (n,), as a file of 16-bit integers."""
    file = io.BytesIO()
    with wave.open(file, "wb") as to:
        to.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        to.writeframes(to_int16(samples).astype("<i2").tobytes())
    return file.getvalue()


def read_wav_header(data: bytes) -> WavHeader | None:
    """Return the header that `data` begins with; None if `data` is not RIFF/WAVE, or ends before the audio."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    fields: tuple[int, ...] | None = None
    position = 12
    while len(chunk := data[position : position + 8]) == 8:
        kind, length = struct.unpack("<4sI", chunk)
        position += 8
        if kind == b"data" and fields is not None:
            format, channels, sample_rate, _, frame_bytes, bits = fields
            known = length if 0 < length < UNKNOWN_LENGTH_FROM else None
            return WavHeader(format, channels, sample_rate, bits, frame_bytes, position, known)
        if kind == b"fmt " and len(body := data[position : position + min(length, 26)]) >= 16:
            fields = struct.unpack("<HHIIHH", body[:16])
            if fields[0] == FORMAT_EXTENSIBLE and len(body) == 26:
                # The first two bytes of the sub-format's GUID are the format proper.
                fields = (int.from_bytes(body[24:], "little"), *fields[1:])
        position += length + length % 2
    return None
