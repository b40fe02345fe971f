"""Audio files: read for the offline decoder, or played as if somebody spoke."""

import errno
import io
import itertools
import logging
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np
import soundfile

from streamer.arrays import Float32Array
from streamer.audio.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, SAMPLE_RATE
from streamer.audio.pcm import silence_bad_samples
from streamer.audio.resample import Resampler
from streamer.audio.sources.base import SourceCallbacks, ThreadedSource
from streamer.audio.sources.stdin import standard_input
from streamer.audio.sources.wav import read_wav_header
from streamer.errors import AudioFileError, StreamerError, TruncatedAudioError

log = logging.getLogger(__name__)

BLOCK_S = 0.1  # audio read, and delivered, at a time

# A replay that is late by no more catches up, so that its pace is exact. By more: the computer slept, and the rest
# would come at once, more than any buffer holds.
MAX_LATE_S = 5.0

# A file counts as truncated where more than this is missing: encoders of lossy formats round to their own frames.
TOLERANCE_S = 0.2

# libsndfile's word for "the header does not say how long it is" is the largest number.
UNKNOWN_FRAMES = 1 << 62

SPOOL_BYTES = 16 << 20  # standard input is kept in memory up to here, beyond it in a temporary file

# Float files may go a little over full scale, and decoders of lossy formats do; beyond this it is another scale.
MAX_PEAK = 16.0

OGG_MAX_PAGE_BYTES = 65_307
OGG_END_OF_STREAM = 0x04

OnError = Callable[[StreamerError], None]


def read_audio(path: str | Path, on_error: OnError | None = None) -> Iterator[Float32Array]:
    """Return the audio of a file in blocks of about 0.1 s, 16 kHz mono, shape (n,), without holding the whole of it.

    Anything libsndfile reads: wav, flac, ogg, mp3 and others; "-" is such a file on standard input. `on_error` hears
    of what is wrong but does not stop the reading: NaN or infinite samples, taken as silence, and samples far out of
    range, clipped; each once.

    Raises AudioFileError at once where there is no audio to read, and TruncatedAudioError from the iterator, after
    the last block, where the file ends before its header says.
    """
    return _Reader(path).blocks(on_error)


class FileReplay(ThreadedSource):
    """A file, played as if it were the microphone."""

    def __init__(self, path: str | Path, speed: float = 1.0) -> None:
        """Play at `speed` times real time; 0: as fast as on_audio takes it.

        Raises AudioFileError where there is no audio to read.
        """
        assert speed >= 0, f"speed {speed} is negative"
        super().__init__(str(path), realtime=speed > 0, thread_name="file")
        self.speed = speed
        self._reader = _Reader(path)

    def stop(self) -> None:
        """Stop playing and close the file."""
        super().stop()
        if self._thread is None:
            self._reader.close()

    def _run(self, callbacks: SourceCallbacks) -> None:
        position_samples = 0
        started_s = monotonic()
        with closing(self._reader.blocks(callbacks.on_error)) as blocks:
            for block in blocks:
                position_samples += len(block)
                if self.speed > 0:
                    # A block is there when its last sample has been spoken. Measured from the start: no drift.
                    due_s = started_s + position_samples / SAMPLE_RATE / self.speed
                    early_s = due_s - monotonic()
                    if early_s < -MAX_LATE_S:
                        started_s -= early_s
                    self._stopping.wait(max(0.0, early_s))
                if self._stopping.is_set():
                    return
                callbacks.on_audio(block)


class _Reader:
    """An audio file, opened and checked; read once."""

    def __init__(self, path: str | Path) -> None:
        self.path = "standard input" if str(path) == "-" else str(path)

        # The bytes; open until the last block was read or close() was called.
        self._stream: BinaryIO = _spooled(standard_input()) if str(path) == "-" else _opened(Path(path))
        try:
            # Frames that the file's own header announces; None where it does not say.
            self._announced_frames = self._read_announced_frames()
            self._file = self._sound_file()
            self._check()
        except BaseException:
            self._stream.close()
            raise

    def blocks(self, on_error: OnError | None) -> Generator[Float32Array, None, None]:
        """Yield the audio; see read_audio."""
        try:
            yield from self._blocks(on_error)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        self._stream.close()

    def _blocks(self, on_error: OnError | None) -> Iterator[Float32Array]:
        sample_rate: int = self._file.samplerate
        resampler = Resampler(sample_rate, self._file.channels)
        n_frames = 0
        told: set[str] = set()

        def tell(fact: str, remedy: str) -> None:
            if on_error is not None and fact not in told:
                told.add(fact)
                on_error(
                    AudioFileError(
                        f"{self.path} holds {fact}, the first within {n_frames / sample_rate:.1f} s:"
                        f" expected -1 to 1; {remedy}, convert the file again"
                    )
                )

        for frames in self._frames(max(1, round(sample_rate * BLOCK_S))):
            n_frames += len(frames)
            if silence_bad_samples(frames):
                tell("NaN or infinite samples", "they were heard as silence")
            if np.abs(frames).max() > MAX_PEAK:
                tell(f"samples beyond {MAX_PEAK:g}", "they were clipped")
                np.clip(frames, -1.0, 1.0, out=frames)
            if len(block := resampler.process(frames)):
                yield block
        if len(block := resampler.flush()):
            yield block
        if n_frames == 0:
            raise AudioFileError(
                f"{self.path} holds no audio that can be decoded: expected at least one frame; copy it again"
            )
        self._check_complete(n_frames)

    def _frames(self, block_frames: int) -> Iterator[Float32Array]:
        """Yield frames, shape (n, channels), up to the end or to where they cannot be decoded any more."""
        for position in itertools.count(0, block_frames):
            frames = np.zeros((block_frames, self._file.channels), dtype=np.float32)
            try:
                n_read = len(self._file.read(dtype="float32", always_2d=True, out=frames))
            except (soundfile.SoundFileError, RuntimeError) as error:
                log.debug("%s: cannot be decoded after frame %d: %s", self.path, position, error)
                # The part of the block that was decoded before the error is there; only its length is not returned.
                n_read = min(max(self._tell() - position, 0), block_frames)
                if n_read:
                    yield frames[:n_read]
                return
            if n_read:
                yield frames[:n_read]
            if n_read < block_frames:
                return

    def _tell(self) -> int:
        try:
            return int(self._file.tell())
        except (soundfile.SoundFileError, RuntimeError):
            return 0

    def _check_complete(self, n_frames: int) -> None:
        sample_rate = int(self._file.samplerate)
        if self._announced_frames is not None:
            if self._announced_frames - n_frames > self._tolerance_frames():
                raise TruncatedAudioError(self.path, n_frames / sample_rate, self._announced_frames / sample_rate)
        elif self._file.format == "OGG" and not _ogg_is_complete(self._stream):
            raise TruncatedAudioError(self.path, n_frames / sample_rate, None)

    def _tolerance_frames(self) -> int:
        if self._file.format in ("WAV", "WAVEX", "RF64", "FLAC", "AIFF"):
            return 0
        return int(self._file.samplerate * TOLERANCE_S)

    def _read_announced_frames(self) -> int | None:
        header = read_wav_header(self._stream)
        if header is not None and header.data_bytes == 0 and _is_audio(self._stream):
            # Whoever wrote it was stopped before it put the length in; libsndfile would take the 0 at its word.
            self._stream = _WithoutLength(self._stream)  # type: ignore[assignment]  # has all of BinaryIO that is used
        self._stream.seek(0)
        if header is None or not header.data_bytes or header.frame_bytes == 0:
            return None
        # Compressed WAV (ADPCM, GSM) has several frames a block: leave that to libsndfile's own count.
        if header.frame_bytes * 8 != header.channels * header.bits_per_sample:
            return None
        return header.data_bytes // header.frame_bytes

    def _sound_file(self) -> soundfile.SoundFile:
        try:
            return _SoundFile(self._stream)
        except TypeError:
            # soundfile takes a name in .raw for headerless audio and asks for a format.
            raise AudioFileError(
                f"{self.path} is named like raw audio: expected a file with a header (wav, flac, ogg, mp3);"
                " raw audio goes to standard input: streamer run --input -"
            ) from None
        except (soundfile.SoundFileError, RuntimeError) as error:
            reason = str(error).rpartition(": ")[2].rstrip(".") or "unknown format"
            raise AudioFileError(
                f"{self.path} is not audio that can be read ({reason}):"
                " expected wav, flac, ogg or mp3; convert it first"
            ) from None

    def _check(self) -> None:
        file = self._file
        if not MIN_SAMPLE_RATE <= file.samplerate <= MAX_SAMPLE_RATE:
            raise AudioFileError(
                f"{self.path} has a sample rate of {file.samplerate} Hz:"
                f" expected {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE}; convert it first"
            )
        if file.channels > MAX_CHANNELS:
            raise AudioFileError(
                f"{self.path} has {file.channels} channels: expected at most {MAX_CHANNELS}; mix it down first"
            )
        if file.frames == 0:
            raise AudioFileError(f"{self.path} holds no audio: expected at least one frame; check how it was made")
        # Of an Ogg file libsndfile counts what is there, so its number announces nothing.
        if self._announced_frames is None and 0 < file.frames < UNKNOWN_FRAMES and file.format not in ("OGG", "WAV"):
            self._announced_frames = file.frames


class _SoundFile(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """A file that is read from its beginning to its end."""

    def seekable(self) -> bool:
        # Where it can, soundfile seeks to where it is after each read. An MP3 decoder that is sent anywhere forgets
        # the frames that the next one refers to, so that every block would begin with a click.
        return False


def _opened(path: Path) -> BinaryIO:
    try:
        if path.is_dir():
            raise AudioFileError(f"{path} is a directory: expected an audio file; name a file in it")
        if path.exists() and not path.is_file():
            # A pipe or a device may never end, and cannot be searched as the formats need.
            raise AudioFileError(f"{path} is not a regular file: expected an audio file; for a pipe, use - as its name")
        if path.is_file() and path.stat().st_size == 0:
            raise AudioFileError(f"{path} is empty: expected an audio file; check how it was made")
        return path.open("rb")
    except FileNotFoundError:
        raise AudioFileError(f"{path} does not exist: expected an audio file; check the name") from None
    except PermissionError:
        raise AudioFileError(f"{path} may not be read: expected read permission; change it, or the user") from None
    except (OSError, ValueError) as error:
        # ValueError: a name with a null character in it.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        remedy = "shorten the name" if getattr(error, "errno", None) == errno.ENAMETOOLONG else "check name and disk"
        raise AudioFileError(
            f"{str(path)!r:.200} cannot be opened ({reason}): expected an audio file; {remedy}"
        ) from None


def _spooled(stream: BinaryIO) -> BinaryIO:
    """Copy a stream that cannot be searched to one that can."""
    spool = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - closed by the reader
    while data := stream.read(1 << 16):
        spool.write(data)
    if spool.tell() == 0:
        spool.close()
        raise AudioFileError("standard input is empty: expected an audio file; check the command before the pipe")
    spool.seek(0)
    return spool  # type: ignore[return-value]  # has all of BinaryIO that is used


class _WithoutLength(io.RawIOBase):
    """A WAV file whose data chunk says that its length is unknown, without writing to the file."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

        # Where the length is: the four bytes before the audio.
        self._length_at = stream.tell() - 4

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        position = self._stream.tell()
        data = bytearray(self._stream.read(len(buffer)))
        for i in range(max(0, self._length_at - position), min(len(data), self._length_at + 4 - position)):
            data[i] = 0xFF
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()


def _is_audio(stream: BinaryIO) -> bool:
    """Say whether what follows an empty data chunk is audio: not nothing, and not a chunk that ends with the file."""
    start = stream.tell()
    beginning = stream.read(8)
    end = stream.seek(0, 2)
    stream.seek(start)
    length = int.from_bytes(beginning[4:], "little")
    return len(beginning) == 8 and start + 8 + length + length % 2 != end


def _ogg_is_complete(stream: BinaryIO) -> bool:
    """Say whether the last page of an Ogg file is whole and marked as the last (RFC 3533, section 6)."""
    end = stream.seek(0, 2)
    stream.seek(max(0, end - 2 * OGG_MAX_PAGE_BYTES))
    tail = stream.read(2 * OGG_MAX_PAGE_BYTES)
    start = tail.rfind(b"OggS")
    if start < 0 or len(tail) < start + 27:
        return False
    n_segments = tail[start + 26]
    segments = tail[start + 27 : start + 27 + n_segments]
    page_bytes = 27 + n_segments + sum(segments)
    return bool(tail[start + 5] & OGG_END_OF_STREAM) and len(tail) - start >= page_bytes
