"""Audio files: read for the offline decoder, or played as if it were spoken."""

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from time import monotonic
from typing import BinaryIO

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.pcm import silence_bad_samples
from streamer.audio.resample import Resampler
from streamer.audio.sources.base import SourceCallbacks, ThreadedSource
from streamer.audio.sources.container import AudioTrack
from streamer.audio.sources.stdin import standard_input
from streamer.constants import SAMPLE_RATE, TRUNCATED_S
from streamer.errors import AudioFileError, StreamerError, TruncatedAudioError
from streamer.outside import printable

logger = logging.getLogger(__name__)

BLOCK_S = 0.1  # audio read, and delivered, at a time

# A replay that is late by up to this catches up, so that its pace is exact. If by more, the computer slept.
MAX_LATE_S = 5.0

SPOOL_BYTES = 16 << 20  # standard input is kept in memory up to here, beyond it in a temporary file

# Float files may go a little over full scale, and decoders of lossy formats do; beyond this it is another scale.
MAX_PEAK = 16.0

OnError = Callable[[StreamerError], None]


def read_audio(path: str | Path, on_error: OnError | None = None, track: int = 1) -> Iterator[Float32Array]:
    """Return the audio of a file in blocks of 0.1 s, 16 kHz mono, shape (n,). See `AudioFile` for what it raises."""
    return AudioFile(path, track).blocks(on_error)


def read_upload(path: Path, on_error: OnError) -> Iterator[Float32Array]:
    """Yield the audio of a client's recording as `read_audio` does; of a truncated one, what there is.

    `on_error` is called as by `AudioFile.blocks`, and if it is truncated. Errors do not name the file, which the client
    does not know. Raises AudioFileError, behind the last block if the recording cannot be read up to its end.
    """

    def unnamed(error: StreamerError) -> AudioFileError:
        return AudioFileError(str(error).replace(str(path), "the recording"))

    try:
        yield from read_audio(path, lambda error: on_error(unnamed(error)))
    except AudioFileError as error:
        raise unnamed(error) from None
    except TruncatedAudioError as error:
        if error.reason:
            raise unnamed(error) from None
        on_error(unnamed(error))


def check_audio(path: str | Path, track: int = 1) -> float | None:
    """Return how long a file is, as far as that is known before it is read. Raises AudioFileError without audio."""
    file = AudioFile(path, track)
    file.close()
    return file.duration_s


def count_tracks(path: str | Path) -> int:
    """Return how many audio tracks a file has. Raises AudioFileError without audio."""
    file = AudioFile(path)
    file.close()
    return file.n_tracks


class Recording:
    """The audio of a file that is transcribed up to its end, also if it is truncated there."""

    def __init__(self, path: str | Path, track: int = 1) -> None:
        self.path = path
        self.track = track
        # What was wrong at its end, and samples that were read.
        self.truncated: TruncatedAudioError | None = None
        self.n_samples = 0
        self._warned: set[str] = set()

    def read(self) -> Iterator[Float32Array]:
        """Yield its audio in blocks, 16 kHz mono, shape (n,). Raises AudioFileError if it has none."""
        self.n_samples = 0
        try:
            for block in read_audio(self.path, self._warn, self.track):
                self.n_samples += len(block)
                yield block
        except TruncatedAudioError as error:
            self.truncated = error

    def _warn(self, error: StreamerError) -> None:
        if str(error) not in self._warned:  # once, however often it is read
            self._warned.add(str(error))
            logger.warning("%s", error)


class FileReplay(ThreadedSource):
    """A file, played as if it were the microphone."""

    def __init__(self, path: str | Path, speed: float = 1.0) -> None:
        """Play at `speed` times real time; 0: as fast as on_audio takes it. Raises AudioFileError as `AudioFile`."""
        assert speed >= 0, f"speed {speed} is negative"
        super().__init__(str(path), realtime=speed > 0, thread_name="file")
        self.speed = speed
        self._reader = AudioFile(path)

    def stop(self) -> None:
        super().stop()
        if self._thread is None:
            self._reader.close()

    def _run(self, callbacks: SourceCallbacks) -> None:
        position_samples = 0
        started_s = monotonic()
        with contextlib.closing(self._reader.blocks(callbacks.on_error)) as blocks:
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


class AudioFile:
    """An audio file of any format that `container` reads, opened and checked; read once."""

    def __init__(self, path: str | Path, track: int = 1) -> None:
        """Open a file ("-": standard input) and one of its audio tracks, from 1 on. Raises AudioFileError."""
        self.path = "standard input" if str(path) == "-" else str(path)

        # The bytes; open until the last block was read or close() was called.
        self._stream: BinaryIO = _spooled(standard_input()) if str(path) == "-" else _opened(Path(path))
        try:
            self._track = AudioTrack(self._stream, track, name=self.path, block_s=BLOCK_S)
        except BaseException as error:
            self._stream.close()
            if not isinstance(error, ValueError):
                raise
            raise AudioFileError(
                f"cannot read {self.path} as audio ({error}):"
                " expected wav, flac, ogg, mp3, m4a, mp4, webm, mkv or similar; convert it first"
            ) from None
        self.sample_rate = self._track.sample_rate
        # How long it is, as far as that is known before it is read, how much was read, and how many tracks there are.
        self.duration_s = self._track.duration_s
        self.n_tracks = self._track.n_tracks
        self._n_frames = 0

    def blocks(self, on_error: OnError | None = None) -> Generator[Float32Array, None, None]:
        """Yield the audio in 16 kHz mono, shape (n,), and close the file.

        `on_error` is called, once for each, with what is wrong but does not stop the reading: NaN or infinite samples,
        taken as silence, samples far out of range, clipped, audio that cannot be decoded, or that a header leaves out.

        Raises TruncatedAudioError after the last block, if the file ends before its header says, or cannot be read on.
        """
        track = self._track
        resampler = Resampler(self.sample_rate, track.channels)
        reported: set[str] = set()

        def report(fact: str, expectation: str, at_s: float | None = None) -> None:
            if on_error is not None and fact not in reported:
                reported.add(fact)
                at_s = self._n_frames / self.sample_rate if at_s is None else at_s
                text = f"{self.path} has {fact}, first at {at_s:.1f} s: expected {expectation}"
                on_error(AudioFileError(f"{text}; convert the file again"))

        truncated: TruncatedAudioError | None = None
        try:
            try:
                for frames in track.blocks():
                    self._n_frames += len(frames)
                    if silence_bad_samples(frames):
                        report("NaN or infinite samples, replaced by silence", "-1 to 1")
                    if np.abs(frames).max() > MAX_PEAK:
                        report(f"samples beyond {MAX_PEAK:g}, which were clipped", "-1 to 1")
                        np.clip(frames, -1.0, 1.0, out=frames)
                    if len(block := resampler.process(frames)):
                        yield block
            except TruncatedAudioError as error:
                truncated = error
            if len(block := resampler.flush()):
                yield block
            if track.lost_s > TRUNCATED_S:
                fact = f"{track.lost_s:.2f} s that cannot be decoded and are missing from the text"
                report(fact, "intact packets", track.lost_at_s)
            if track.ignored_s > TRUNCATED_S:
                fact = f"{track.ignored_s:.2f} s of audio beyond the length in its header, which were ignored"
                report(fact, "none", track.ignored_at_s)
            if truncated is not None:
                raise truncated
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._track.close()
        self._stream.close()


def _opened(path: Path) -> BinaryIO:
    try:
        if path.is_dir():
            fact, remedy = "is a directory", "name a file in it"
        elif path.exists() and not path.is_file():
            # A pipe or a device may never end, and cannot be searched as the formats need.
            fact, remedy = "is not a regular file", "for a pipe, use - as its name"
        elif path.is_file() and path.stat().st_size == 0:
            fact, remedy = "is empty", "check how it was made"
        else:
            return path.open("rb")
    except FileNotFoundError:
        fact, remedy = "does not exist", "check the name"
    except PermissionError:
        fact, remedy = "may not be read", "change its permissions, or the user"
    except (OSError, ValueError) as error:  # ValueError: a name with a null character in it
        fact, remedy = f"cannot be opened ({getattr(error, 'strerror', None) or error})", "check name and disk"
    raise AudioFileError(f"{printable(str(path)):.400} {fact}: expected an audio file; {remedy}")


def _spooled(stream: BinaryIO) -> BinaryIO:
    """Copy a stream that cannot be searched to one that can."""
    spool = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - closed by the reader
    try:
        shutil.copyfileobj(stream, spool)
    except OSError as error:
        spool.close()
        raise AudioFileError(
            f"standard input cannot be read ({error.strerror}): expected an audio file; check the command before it"
        ) from None
    if spool.tell() == 0:
        spool.close()
        raise AudioFileError("standard input is empty: expected an audio file; check the command before the pipe")
    spool.seek(0)
    return spool  # type: ignore[return-value]  # has all of BinaryIO that is used
