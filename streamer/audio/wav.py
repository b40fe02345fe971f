"""The header of a RIFF/WAVE file or stream.

Source: Microsoft, "Multimedia Programming Interface and Data Specifications 1.0" (1991).
Needed beside FFmpeg, which reads 64 KiB of a stream before it decodes any, and ignores the length that a header of
16-bit audio announces.
"""

import io
import re
import struct
import wave
from dataclasses import dataclass

from streamer.arrays import Float32Array
from streamer.audio.pcm import to_int16
from streamer.constants import SAMPLE_RATE, PcmEncoding

# Of the formats of audio that Microsoft has numbered.
FORMAT_PCM, FORMAT_FLOAT, FORMAT_EXTENSIBLE = 1, 3, 0xFFFE

# Raw samples, by format and bits; 6 and 7 are G.711.
_ENCODINGS: dict[tuple[int, int], PcmEncoding] = {(FORMAT_FLOAT, 32): "f32le", (6, 8): "alaw", (7, 8): "mulaw"}
_ENCODINGS |= {(FORMAT_PCM, 8): "u8", (FORMAT_PCM, 16): "s16le", (FORMAT_PCM, 24): "s24le", (FORMAT_PCM, 32): "s32le"}

# Programs that write to a pipe do not know the length: they write 0xFFFFFFFF, something just below 2 GiB (SoX), or 0.
UNKNOWN_LENGTH_FROM = 0x7FFF_0000

# Others write a round number, from this many bytes on and many times what there is.
PLACEHOLDER_FROM = 50_000_000
PLACEHOLDER_TIMES = 4

# A chunk, which may follow the audio: a byte that makes its length even, and a name.
WAV_CHUNK = re.compile(rb"\0?[ -~]{4}")

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

    # Bits that count in each sample, where the header says so, and speakers; 0: not said.
    valid_bits: int
    channel_mask: int

    # Position of the first byte of the format, and of the first byte of audio.
    format_bytes: int
    start_bytes: int

    # Bytes of audio that the header announces; None if that is unknown.
    data_bytes: int | None

    @property
    def encoding(self) -> PcmEncoding | None:
        """The encoding of raw samples; None for other audio, and if channels are for speakers: FFmpeg knows these."""
        has_speakers = self.channels > 2 and self.channel_mask != 0
        return None if has_speakers else _ENCODINGS.get((self.format, self.bits_per_sample))

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


def is_placeholder(announced_bytes: float, found_bytes: float) -> bool:
    """Return whether the length of audio that a header announces is a number in place of one that was not known.

    It is far more than there is, and it, or it with the header's own length, is round, in decimal or as a power of two.
    """
    lengths = (round(announced_bytes) + n for n in (0, 1, 8, 36, 37, 44))
    round_number = any(n % 1_000_000 == 0 or n % 65_536 == 0 for n in lengths)
    return round_number and announced_bytes >= max(PLACEHOLDER_FROM, PLACEHOLDER_TIMES * found_bytes)


def mend_header(data: bytes) -> bytes:
    """Return a file's first bytes up to its format, changed so that FFmpeg reads it right; nothing if it would anyway.

    FFmpeg takes integers of 24 bits in 32 for another program's floats of 24 bits.
    """
    header = read_wav_header(data)
    if header is None or not 0 < header.valid_bits < header.bits_per_sample or header.format != FORMAT_PCM:
        return b""
    valid_at = header.format_bytes + 18
    return data[:valid_at] + header.bits_per_sample.to_bytes(2, "little")


def read_wav_header(data: bytes) -> WavHeader | None:
    """Return the header that `data` begins with; None if `data` is not RIFF/WAVE, or ends before the audio."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    fields: tuple[int, ...] | None = None
    valid_bits = mask = format_bytes = 0
    position = 12
    while len(chunk := data[position : position + 8]) == 8:
        kind, length = struct.unpack("<4sI", chunk)
        position += 8
        if kind == b"data" and fields is not None:
            format, channels, sample_rate, _, frame_bytes, bits = fields
            known = length if 0 < length < UNKNOWN_LENGTH_FROM else None
            return WavHeader(
                format, channels, sample_rate, bits, frame_bytes, valid_bits, mask, format_bytes, position, known
            )
        if kind == b"fmt " and len(body := data[position : position + min(length, 26)]) >= 16:
            fields, format_bytes = struct.unpack("<HHIIHH", body[:16]), position
            if fields[0] == FORMAT_EXTENSIBLE and len(body) == 26:
                # The first two bytes of the sub-format's GUID are the format proper.
                valid_bits, mask, format = struct.unpack("<HIH", body[18:])
                fields = (format, *fields[1:])
        position += length + length % 2
    return None
