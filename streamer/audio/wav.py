"""The header of a RIFF/WAVE file or stream, as far as it concerns us.

Source: Microsoft, "Multimedia Programming Interface and Data Specifications 1.0" (1991); for RF64, EBU Tech 3306.
Needed beside libsndfile because that mends the header of a truncated file without a word, and cannot read a pipe.
"""

import struct
from dataclasses import dataclass
from typing import BinaryIO

FORMAT_PCM = 1
FORMAT_FLOAT = 3
FORMAT_EXTENSIBLE = 0xFFFE

# Programs that write to a pipe do not know the length: they leave 0xFFFFFFFF, something just below 2 GiB (SoX), or 0.
UNKNOWN_LENGTH_FROM = 0x7FFF_0000

MAX_FORMAT_BYTES = 4096  # a format chunk has 16, 18 or 40 bytes
MAX_CHUNKS = 1000  # chunks before the audio; more is no sound file
SKIP_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class WavHeader:
    """Format and length of the audio that follows."""

    # One of the FORMAT_ numbers, or another's.
    format: int
    channels: int
    sample_rate: int
    bits_per_sample: int

    # Bytes of one frame, all channels.
    frame_bytes: int

    # Bytes of audio that the header announces; None where it does not know. A 0 may mean that, too, or no audio.
    data_bytes: int | None


def read_wav_header(stream: BinaryIO) -> WavHeader | None:
    """Read up to the first byte of audio; None where this is no RIFF/WAVE (some bytes are consumed then, too).

    Lengths in the header are never trusted: chunks we do not need are skipped in small reads, wherever they claim to
    end.
    """
    riff = _read(stream, 12)
    if len(riff) < 12 or riff[:4] not in (b"RIFF", b"RF64", b"BW64") or riff[8:] != b"WAVE":
        return None
    return read_wav_chunks(stream)


def read_wav_chunks(stream: BinaryIO) -> WavHeader | None:
    """Go on after the 12 bytes that say RIFF/WAVE; None where no audio follows."""
    format_fields: tuple[int, int, int, int, int] | None = None
    data_bytes_64: int | None = None
    for _ in range(MAX_CHUNKS):
        chunk = _read(stream, 8)
        if len(chunk) < 8:
            return None
        kind, length = chunk[:4], int.from_bytes(chunk[4:], "little")
        if kind == b"data":
            if format_fields is None:
                return None
            if length == 0xFFFF_FFFF and data_bytes_64 is not None:
                return WavHeader(*format_fields, data_bytes=data_bytes_64)
            known = length < UNKNOWN_LENGTH_FROM
            return WavHeader(*format_fields, data_bytes=length if known else None)
        padded = length + length % 2
        if kind in (b"fmt ", b"ds64") and length <= MAX_FORMAT_BYTES:
            body = _read(stream, padded)
            if kind == b"fmt " and len(body) >= 16:
                format_fields = _format_fields(body)
            elif kind == b"ds64" and len(body) >= 16:
                data_bytes_64 = int.from_bytes(body[8:16], "little")
        else:
            while padded > 0:
                skipped = stream.read(min(padded, SKIP_BYTES))
                if not skipped:
                    return None
                padded -= len(skipped)
    return None


def _format_fields(body: bytes) -> tuple[int, int, int, int, int]:
    kind, channels, sample_rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", body[:16])
    if kind == FORMAT_EXTENSIBLE and len(body) >= 26:
        # The first two bytes of the sub-format's GUID are the format proper.
        kind = int.from_bytes(body[24:26], "little")
    return kind, channels, sample_rate, bits, frame_bytes


def _read(stream: BinaryIO, n_bytes: int) -> bytes:
    """Read `n_bytes`, less at the end of the stream; a pipe gives them in pieces."""
    pieces = []
    while n_bytes > 0 and (piece := stream.read(n_bytes)):
        pieces.append(piece)
        n_bytes -= len(piece)
    return b"".join(pieces)
