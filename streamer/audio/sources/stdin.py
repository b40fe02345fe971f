"""Raw PCM, or a WAV stream, from a pipe."""

import contextlib
import logging
import os
import sys
from typing import BinaryIO

from streamer.audio.pcm import PcmDecoder
from streamer.audio.sources.base import SourceCallbacks, ThreadedSource
from streamer.audio.wav import FORMAT_FLOAT, FORMAT_PCM, WavHeader, read_wav_chunks
from streamer.errors import AudioFileError, ProtocolError, StreamerError, TruncatedAudioError

log = logging.getLogger(__name__)

# At most this much is asked of the pipe at a time; it gives what it has.
READ_BYTES = 16_384


def standard_input() -> BinaryIO:
    """Return standard input as bytes. Raises AudioFileError where it is closed."""
    if sys.stdin is None:
        raise AudioFileError(
            "standard input is closed: expected audio on it; pipe it into the command, or name a file instead of -"
        )
    return sys.stdin.buffer


class StdinPcm(ThreadedSource):
    """Raw PCM from a pipe; a RIFF/WAVE header at its beginning is recognised and its format taken instead."""

    # A read that is under way cannot be called off portably; its thread is left to die with the process.
    stop_timeout_s = 0.5

    def __init__(self, stream: BinaryIO, format: str, sample_rate: int, channels: int) -> None:
        """Read "s16le" or "f32le" of `sample_rate` frames a second. Raises ProtocolError for what is not accepted."""
        # Whoever writes to a pipe waits until there is room: nothing is lost however slow the consumer.
        super().__init__("standard input", realtime=False, thread_name="stdin")
        self._stream = stream
        self._decoder = PcmDecoder(format, sample_rate, channels, whole_chunks=False)

    def _open(self) -> None:
        # A pipe that another program set not to block looks ended when it is empty. Not every stream or system can.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            os.set_blocking(self._stream.fileno(), True)

    def _run(self, callbacks: SourceCallbacks) -> None:
        first, header = self._beginning()
        if header is not None:
            log.info("%s: WAV, %d Hz, %d channel(s)", self.name, header.sample_rate, header.channels)
            self._decoder = _wav_decoder(header)
        # A 0 is the sign of a program that did not know the length when it began.
        left = (header.data_bytes or None) if header is not None else None
        n_bytes = 0
        data = first or self._read(left)
        while data and not self._stopping.is_set():
            n_bytes += len(data)
            self._deliver(data, callbacks)
            data = self._read(None if left is None else left - n_bytes)
        if self._stopping.is_set():
            return
        rest = self._decoder.finish()
        if len(rest):
            callbacks.on_audio(rest)
        self._report(callbacks)
        if n_bytes == 0:
            raise AudioFileError("standard input is empty: expected audio; check the command before the pipe")
        if left is not None and n_bytes < left:
            bytes_per_second = self._decoder.frame_bytes * self._decoder.sample_rate
            raise TruncatedAudioError(self.name, n_bytes / bytes_per_second, left / bytes_per_second)

    def _beginning(self) -> tuple[bytes, WavHeader | None]:
        """Return the first bytes of audio that were read, and the header where there is one."""
        start = b""
        while len(start) < 12 and (data := self._read(12 - len(start))):
            start += data
            # Raw audio flows at once, without waiting for twelve bytes.
            if not b"RIFF".startswith(start[:4]):
                return start, None
        if start[:4] != b"RIFF" or start[8:] != b"WAVE":
            return start, None
        header = read_wav_chunks(self._stream)
        if header is None:
            raise AudioFileError(
                "standard input begins as WAV but holds no audio: expected a format and a data chunk; send it again"
            )
        return b"", header

    def _read(self, left: int | None) -> bytes:
        """Return what the pipe has, at least one byte; none at the end."""
        wanted = READ_BYTES if left is None else min(left, READ_BYTES)
        if wanted <= 0:
            return b""
        try:
            # read1 returns what is there; read would wait until it is `wanted`.
            read = getattr(self._stream, "read1", self._stream.read)
            return bytes(read(wanted) or b"")
        except (OSError, ValueError) as error:
            # ValueError: somebody closed the stream.
            if self._stopping.is_set():
                return b""
            raise AudioFileError(
                f"standard input cannot be read ({error}): expected raw audio from a pipe; check the command before it"
            ) from None

    def _deliver(self, data: bytes, callbacks: SourceCallbacks) -> None:
        samples = self._decoder.decode(data)
        self._report(callbacks)
        if len(samples):
            callbacks.on_audio(samples)

    def _report(self, callbacks: SourceCallbacks) -> None:
        for code, message in self._decoder.take_problems():
            log.debug("%s: %s", self.name, code)
            callbacks.on_error(StreamInputError(code, message))


class StreamInputError(StreamerError):
    """Something wrong with the samples of a pipe, with the code that a client would hear for the same."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # told by the decoder, not by the class


def _wav_decoder(header: WavHeader) -> PcmDecoder:
    known = {(FORMAT_PCM, 16): "s16le", (FORMAT_FLOAT, 32): "f32le"}
    format = known.get((header.format, header.bits_per_sample))
    if format is None:
        raise AudioFileError(
            f"standard input is WAV of format {header.format} with {header.bits_per_sample} bits:"
            " expected 16-bit PCM or 32-bit float; convert it before the pipe"
        )
    try:
        return PcmDecoder(format, header.sample_rate, header.channels, whole_chunks=False)
    except ProtocolError as error:
        raise AudioFileError(f"standard input is WAV, but its {error}") from None
