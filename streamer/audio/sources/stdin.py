"""Raw PCM, or WAV, from a pipe."""

import contextlib
import logging
import os
import sys
from typing import BinaryIO

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.audio.sources.base import SourceCallbacks, ThreadedSource
from streamer.audio.stream import StreamDecoder
from streamer.constants import TRUNCATED_S, PcmEncoding
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

    def __init__(self, stream: BinaryIO, encoding: PcmEncoding, sample_rate: int, channels: int) -> None:
        """Read `sample_rate` frames a second. Raises ProtocolError for what is not accepted."""
        # A program that writes to a pipe waits until there is room: nothing is lost however slow the consumer.
        super().__init__("standard input", realtime=False, thread_name="stdin")
        self._stream = stream
        self._raw = PcmDecoder(encoding, sample_rate, channels, whole_chunks=False)

    def _open(self) -> None:
        # A pipe that another program set not to block looks ended when it is empty. Not every stream or system can.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            os.set_blocking(self._stream.fileno(), True)

    def _run(self, callbacks: SourceCallbacks) -> None:
        first = data = self._beginning()
        if not first:
            raise _no_audio()
        wav = StreamDecoder() if first[:4] == b"RIFF" and first[8:] == b"WAVE" else None
        decoder = self._raw if wav is None else wav
        while data and not self._stopping.is_set() and (wav is None or wav.failure is None):
            self._deliver(decoder.decode(data), decoder, callbacks)
            data = self._read()
        self._deliver(decoder.finish(), decoder, callbacks)
        if wav is None:
            return
        if wav.failure is not None:
            raise wav.failure
        if not wav.decoded_s:
            raise _no_audio()
        if wav.missing_s > TRUNCATED_S:
            raise TruncatedAudioError(self.name, wav.decoded_s, wav.decoded_s + wav.missing_s)

    def _deliver(self, samples: Float32Array, decoder: PcmDecoder | StreamDecoder, callbacks: SourceCallbacks) -> None:
        for code, message in decoder.take_problems():
            log.debug("%s: %s", self.name, code)
            callbacks.on_error(StreamInputError(code, message))
        if len(samples) and not self._stopping.is_set():
            callbacks.on_audio(samples)

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


def _no_audio() -> AudioFileError:
    return AudioFileError("standard input is empty: expected audio; check the command before the pipe")


class StreamInputError(StreamerError):
    """Something wrong with the samples of a pipe, with the code that a client would get for the same."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the decoder's, not the class's
