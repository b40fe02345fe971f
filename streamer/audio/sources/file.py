"""Audio files: read for the offline decoder, or played as if it were spoken."""

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from streamer.arrays import Float32Array
from streamer.audio.container import Opening
from streamer.audio.sources.base import SourceCallbacks, ThreadedSource
from streamer.audio.sources.stdin import standard_input
from streamer.audio.track import AudioTrack, OnError
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, StreamerError, TruncatedAudioError
from streamer.outside import printable

logger = logging.getLogger(__name__)

# A replay that is late by up to this catches up, so that its pace is exact. If by more, the computer slept.
MAX_LATE_S = 5.0

SPOOL_BYTES = 16 << 20  # standard input is kept in memory up to here, beyond it in a temporary file


@contextlib.contextmanager
def open_audio(path: str | Path, track: int = 1, *, name: str = "") -> Iterator[AudioTrack]:
    """Open one of the audio tracks of a file ("-": standard input), from 1 on; `name` is what errors call it.

    Raises AudioFileError.
    """
    name = name or ("standard input" if str(path) == "-" else str(path))
    with _spooled(standard_input()) if str(path) == "-" else _opened(Path(path), name) as stream:
        try:
            audio = AudioTrack(stream, Opening(track), name=name)
        except ValueError as error:
            raise AudioFileError(
                f"cannot read {name} as audio ({error}):"
                " expected wav, flac, ogg, mp3, m4a, mp4, webm, mkv or similar; convert it first"
            ) from None
        with contextlib.closing(audio):
            yield audio


def read_audio(path: str | Path, on_error: OnError | None = None, track: int = 1) -> Iterator[Float32Array]:
    """Yield the audio of a file in blocks of 0.1 s, 16 kHz mono, shape (n,).

    Raises as `open_audio` and `AudioTrack.blocks`.
    """
    with open_audio(path, track) as audio:
        yield from audio.blocks(on_error)


def read_upload(path: Path, on_error: OnError) -> Iterator[Float32Array]:
    """Yield the audio of a client's recording as `read_audio` does; of a truncated one, what there is.

    `on_error` is called as by `AudioTrack.blocks`, and if it is truncated. Errors do not name the file, which the
    client does not know. Raises AudioFileError, behind the last block if the recording cannot be read up to its end.
    """
    try:
        with open_audio(path, name="the recording") as audio:
            yield from audio.blocks(on_error)
    except TruncatedAudioError as error:
        if error.reason:
            raise AudioFileError(str(error)) from None
        on_error(AudioFileError(str(error)))


def check_audio(path: str | Path, track: int = 1) -> float | None:
    """Return how long a file is, as far as that is known before it is read. Raises AudioFileError without audio."""
    with open_audio(path, track) as audio:
        return audio.duration_s


def count_tracks(path: str | Path) -> int:
    """Return how many audio tracks a file has. Raises AudioFileError without audio."""
    with open_audio(path) as audio:
        return audio.container.n_tracks


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
        """Play at `speed` times real time; 0: as fast as on_audio takes it. Raises AudioFileError as `open_audio`."""
        assert speed >= 0, f"speed {speed} is negative"
        super().__init__(str(path), realtime=speed > 0, thread_name="file")
        self.speed = speed
        self._file = contextlib.ExitStack()
        self._audio = self._file.enter_context(open_audio(path))

    def stop(self) -> None:
        super().stop()
        if self._thread is None:
            self._file.close()

    def _run(self, callbacks: SourceCallbacks) -> None:
        position_samples = 0
        started_s = monotonic()
        with self._file:
            for block in self._audio.blocks(callbacks.on_error):
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


def _opened(path: Path, name: str) -> BinaryIO:
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
    raise AudioFileError(f"{printable(name):.400} {fact}: expected an audio file; {remedy}")


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
