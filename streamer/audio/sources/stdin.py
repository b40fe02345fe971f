"""Raw PCM, or WAV, from a pipe."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from streamer.arrays import Float32Array
from streamer.audio.encodings import AudioReader
from streamer.audio.pcm import PcmDecoder
from streamer.audio.sources.base import SourceCallbacks, ThreadedSource
from streamer.constants import TRUNCATED_S
from streamer.errors import AudioFileError, StreamerError, TruncatedAudioError

log = logging.getLogger(__name__)

# At most this much is asked of the pipe at a time; it gives what it has.
READ_BYTES = 16_384


def standard_input() -> BinaryIO:
    """Return standard input as bytes. Raises AudioFileError if it is closed."""
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
        # A program that writes to a pipe waits until there is room: nothing is lost however slow the consumer.
        super().__init__("standard input", realtime=False, thread_name="stdin")
        self._stream = stream
        self._decoder = PcmDecoder(format, sample_rate, channels, whole_chunks=False)

        # What reads WAV files instead, and whether the decoder is one for what it reads.
        self._wav: AudioReader | None = None
        self._header_read = False

    def _open(self) -> None:
        # A pipe that another program set not to block looks ended when it is empty. Not every stream or system can.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            os.set_blocking(self._stream.fileno(), True)

    def _run(self, callbacks: SourceCallbacks) -> None:
        for samples in self._samples():
            if self._stopping.is_set():
                return
            problems = self._decoder.take_problems()
            if self._wav is not None:
                problems += [("ignored", f"{self.name}: {message}") for message in self._wav.take_problems()]
            for code, message in problems:
                log.debug("%s: %s", self.name, code)
                callbacks.on_error(StreamInputError(code, message))
            if len(samples):
                callbacks.on_audio(samples)

    def _samples(self) -> Iterator[Float32Array]:
        """Yield the audio, 16 kHz mono, shape (n,). Raises AudioFileError, TruncatedAudioError."""
        first = data = self._beginning()
        wav = self._wav = AudioReader(None) if data[:4] == b"RIFF" and data[8:] == b"WAVE" else None
        while data:
            yield self._decode(wav.read(data) if wav is not None else data)
            data = self._read()
        while wav is not None and (data := wav.finish()):
            yield self._decode(data)
        yield self._decoder.finish()
        if not first or (wav is not None and not wav.read_s):
            raise AudioFileError("standard input is empty: expected audio; check the command before the pipe")
        if wav is not None and wav.missing_s > TRUNCATED_S:
            raise TruncatedAudioError(self.name, wav.read_s, wav.read_s + wav.missing_s)

    def _decode(self, data: bytes) -> Float32Array:
        """Return the samples, shape (n,), that further bytes, as a WAV file's reader returns them, complete."""
        if not self._header_read and self._wav is not None and (format := self._wav.format) is not None:
            self._header_read = True
            log.info("%s: WAV, %d Hz, %d channel(s)", self.name, format.sample_rate, format.channels)
            self._decoder = PcmDecoder(format.encoding.format, format.sample_rate, format.channels, whole_chunks=False)
        return self._decoder.decode(data)

    def _beginning(self) -> bytes:
        """Return the first bytes: twelve if they may be RIFF/WAVE, else what there is."""
        start = b""
        # Raw audio flows at once, without waiting for twelve bytes.
        while len(start) < 12 and b"RIFF".startswith(start[:4]) and (data := self._read(12 - len(start))):
            start += data
        return start

    def _read(self, n_bytes: int = READ_BYTES) -> bytes:
        """Return up to `n_bytes` of what the pipe has, at least one byte; none at the end."""
        try:
            # read1 returns what is there; read would wait until it is `n_bytes`.
            read = getattr(self._stream, "read1", self._stream.read)
            return bytes(read(n_bytes) or b"")
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            if self._stopping.is_set():
                return b""
            raise AudioFileError(
                f"standard input cannot be read ({error}): expected raw audio from a pipe; check the command before it"
            ) from None


class StreamInputError(StreamerError):
    """Something wrong with the samples of a pipe, with the code that a client would get for the same."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the decoder's, not the class's
