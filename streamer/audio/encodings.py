"""Audio as clients of other protocols send it, in pieces that are cut anywhere: raw samples, or a file as it is."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.audio.containers import ContainerStream
from streamer.audio.links import WAV_BEGINNING, WAV_MAGICS, n_doubtful
from streamer.audio.pcm import to_int16
from streamer.audio.wav import (
    FORMAT_ALAW,
    FORMAT_FLOAT,
    FORMAT_MULAW,
    FORMAT_PCM,
    MAX_HEADER_BYTES,
    WAV_CHUNK,
    WavHeader,
    is_placeholder,
    read_wav_header,
)
from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, TRUNCATED_S, PcmFormat
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
    """Bytes of audio to samples that a session takes: raw samples, a file, or files one behind another."""

    def __init__(self, format: AudioFormat | None) -> None:
        """Read raw samples in `format`; without one, a file that says it itself."""
        # None until it is known. Files that follow are made the same.
        self.format = format
        # Seconds of audio up to the end of a WAV file as its header announces it; None if unknown.
        self.announced_s: float | None = None
        # Frames read so far, and those before the WAV file that is read.
        self._n_frames = self._n_before = 0
        # The beginning of a header, or of a frame, whose rest is still to come.
        self._rest = b""
        # Header of the WAV file whose audio is read; None for raw samples, and before a header.
        self._wav: WavHeader | None = None
        # Bytes of its audio to come; None if there is no end. Those behind that, and the first of them.
        self._left: int | None = None
        self._n_ignored, self._ignored = 0, b""
        # Decodes a file that is not simply samples behind a header.
        self._container: ContainerStream | None = None
        # Problems not taken yet, and whether there was one.
        self._problems: list[str] = []
        self._reported = False

    @property
    def read_s(self) -> float:
        """Seconds of audio that were read."""
        return self._n_frames / self.format.sample_rate if self.format else 0.0

    @property
    def missing_s(self) -> float:
        """Seconds of audio that a WAV file's header announces and that have not come."""
        if self.announced_s is None or self._wav is None or self._wav.data_bytes is None:
            return 0.0
        found_bytes = (self._n_frames - self._n_before) * self._wav.frame_bytes
        return 0.0 if is_placeholder(self._wav.data_bytes, found_bytes) else self.announced_s - self.read_s

    def read(self, data: bytes) -> bytes:
        """Return the whole frames that further bytes complete, as `encoding.format` says.

        Raises AudioFileError if they cannot be read, once all before them have been returned.
        """
        if not data:
            return b""
        data, self._rest = self._rest + data, b""
        decoded = b""
        while data:
            if self._container is not None:
                return decoded + self._decode(data)
            if self.format is None or (self._left == 0 and WAV_BEGINNING.match(data)):
                begun = self._wav
                data = self._read_header(data)
                if self._container is None and self._wav is begun:
                    self._rest = data
                    break
                continue
            found = WAV_BEGINNING.search(data) if self._wav is not None else None
            end = found.start() if found else len(data) - (n_doubtful(data, WAV_MAGICS) if self._wav else 0)
            frames, rest = self._take(data[:end])
            decoded += frames
            data = data[end:]
            if not found:
                self._rest = rest + data
                break
            self._left = 0
        return decoded

    def finish(self) -> bytes:
        """Return the last frames; until it returns nothing.

        Raises AudioFileError if there was no audio, or if it cannot be read up to its end.
        """
        if self._container is not None:
            return self._decode(b"")
        if self.format is None and self._rest:
            raise AudioFileError("the audio ends within its header: expected a whole header and audio; send the rest")
        frames, _ = self._take(self._rest) if self._wav is not None else (b"", b"")
        self._rest = b""
        return frames

    def take_problems(self) -> list[str]:
        """Return the problems found since the last call: audio behind what a header announces."""
        problems, self._problems = self._problems, []
        return problems

    def _take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the whole frames, decoded, and the beginning of the next one."""
        assert self.format is not None
        own = data[: self._left]
        frame_bytes = self.format.encoding.width * self.format.channels
        end = len(own) // frame_bytes * frame_bytes
        self._n_frames += end // frame_bytes
        if self._left is not None:
            self._left -= end if len(own) == len(data) else self._left
        if len(own) < len(data):
            self._ignore(data[len(own) :])
            return self.format.encoding.decode(own[:end]), b""
        return self.format.encoding.decode(own[:end]), own[end:]

    def _ignore(self, data: bytes) -> None:
        """Note what is neither audio nor a chunk of a WAV file."""
        assert self.format is not None
        self._ignored = (self._ignored + data)[:8]
        self._n_ignored += len(data)
        ignored_s = self._n_ignored / self.format.encoding.width / self.format.channels / self.format.sample_rate
        if ignored_s > TRUNCATED_S and not WAV_CHUNK.match(self._ignored) and not self._reported:
            self._reported = True
            self._problems.append(
                f"the audio goes on after the {self.read_s:.2f} s in its WAV header, and the rest is ignored: expected"
                " another header; write a length of 0 if it is unknown"
            )

    def _read_header(self, data: bytes) -> bytes:
        """Find the format in the first bytes; return the bytes behind the header, or all until it is complete."""
        header = read_wav_header(data)
        if header is None and b"RIFF".startswith(data[:4]) and len(data) < MAX_HEADER_BYTES:
            return data
        given = self.format
        encoding = _OF_WAV.get((header.format, header.bits_per_sample)) if header is not None else None
        own = _checked(AudioFormat(encoding, header.sample_rate, header.channels)) if header and encoding else None
        # FFmpeg knows what to do with speakers, and with another format than that of the file before.
        if header is None or own is None or header.has_speakers or own != (given or own):
            self._container = ContainerStream((given.sample_rate, given.channels) if given is not None else None)
            return data
        self.format, self._wav, self._left = own, header, header.data_bytes
        self._n_before, self._n_ignored, self._ignored = self._n_frames, 0, b""
        self.announced_s = None if header.announced_s is None else self.read_s + header.announced_s
        return data[header.start_bytes :]

    def _decode(self, data: bytes) -> bytes:
        assert self._container is not None
        samples = self._container.feed(data)
        if self.format is None and self._container.format is not None:
            self.format = _checked(AudioFormat(FLOAT32, *self._container.format))
        if self.format is not None:
            self._n_frames += len(samples) // (FLOAT32.width * self.format.channels)
            if self.format.encoding.format == "s16le":
                return to_int16(np.frombuffer(samples, "<f4")).astype("<i2").tobytes()
        return samples


def _checked(format: AudioFormat) -> AudioFormat:
    if not 1 <= format.channels <= MAX_CHANNELS or not MIN_SAMPLE_RATE <= format.sample_rate <= MAX_SAMPLE_RATE:
        raise AudioFileError(
            f"the audio has {format.channels} channel(s) at {format.sample_rate} Hz: expected 1 to {MAX_CHANNELS} at"
            f" {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz; convert it first"
        )
    return format
