"""`--to captions.srt`: a transcript that grows while the daemon runs.

After each final the file ends as if nothing followed. New text is appended; where a later event changes what was
written, the end is written again from the first byte that differs, at most the newest `N_WAITING` finals and the cue
before them. Each update is one write, so whenever the daemon is killed, all that was delivered is there, in whole
lines and cues.
"""

import contextlib
import io
from pathlib import Path

from streamer.errors import ConfigError
from streamer.events import Event, Final, Revision, Speakers, Translation
from streamer.outputs.sink import Answer, Delivered, Sink
from streamer.outputs.subtitles import SubtitleOptions, open_writer

FORMATS = {".srt": "srt", ".vtt": "vtt", ".txt": "text", ".jsonl": "jsonl"}

# Newest finals to which revisions are applied.
N_WAITING = 20


class GrowingFile(Sink):
    """A file of finals with their revisions. An existing file is kept as `captions-1.srt`, or the next free number.

    So is one that another program has changed. Then, and if it was moved or deleted, the next event begins another.
    """

    def __init__(self, path: Path, options: SubtitleOptions) -> None:
        """Begin the file. Raises ConfigError if it cannot be written or has an unknown suffix."""
        if path.suffix.lower() not in FORMATS:
            raise ConfigError(f"--to {path} has an unknown file type: expected a name ending in {', '.join(FORMATS)}")
        self._options = options
        self._format = FORMATS[path.suffix.lower()]
        # The newest event that the writer has handled: one that could not be written is delivered again.
        self._handled: Event | None = None
        try:
            self._path = path.resolve()  # a link stays one
            if self._path.exists() and not self._path.is_file():
                raise ConfigError(f"--to {path} is not a regular file: expected one that can be replaced")
            self._begin()
            self._update()
        except OSError as error:
            raise ConfigError(f"cannot write --to {path} ({error.strerror}): choose another path") from None

    def deliver(self, event: Event) -> Answer:
        """Write a final, or an event about one. Raises OSError; then the file is as it was."""
        if isinstance(event, Final | Revision | Speakers | Translation):
            if not self._is_ours():
                self._begin()
            if event is not self._handled:
                self._writer.handle(event)
                self._handled = event
            self._update()
        return Delivered()

    def _is_ours(self) -> bool:
        """Return whether the file is as the last update left it."""
        try:
            return self._path.stat().st_size == self._n_fixed + len(self._tail)
        except FileNotFoundError:
            return False

    def _begin(self) -> None:
        """Begin an empty file, and keep one that is there."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size:
                number = 1
                while (kept := self._path.with_name(f"{self._path.stem}-{number}{self._path.suffix}")).exists():
                    number += 1
                self._path.rename(kept)
        self._path.touch()
        # What the writer has written since the last update.
        self._stream = io.StringIO()
        self._writer = open_writer(self._format, self._stream, self._options, n_waiting=N_WAITING)
        # Bytes of the file that no later event changes, and what is behind them.
        self._n_fixed, self._tail = 0, b""
        self._handled = None

    def _update(self) -> None:
        """Write what has changed. Raises OSError."""
        fixed = self._stream.getvalue().encode("utf-8")
        tail = fixed + self._writer.ending().encode("utf-8")
        with self._path.open("r+b", buffering=0) as file:
            _rewrite(file, self._n_fixed, self._tail, tail)
        self._n_fixed, self._tail = self._n_fixed + len(fixed), tail[len(fixed) :]
        self._stream.seek(0)
        self._stream.truncate()


def _rewrite(file: io.FileIO, begin: int, old: bytes, new: bytes) -> None:
    """Turn the end of a file into another one. Raises OSError; the end is the old one then."""
    if old == new:
        return
    n_same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    try:
        # Empty lines in the place of what was longer are no text, if the daemon is killed before they are cut off.
        _write_at(file, begin + n_same, new[n_same:].ljust(len(old) - n_same, b"\n"))
    except OSError:
        _write_at(file, begin + n_same, old[n_same:])
        file.truncate(begin + len(old))
        raise
    if len(new) < len(old):
        file.truncate(begin + len(new))


def _write_at(file: io.FileIO, begin: int, data: bytes) -> None:
    file.seek(begin)
    n_written = 0
    while n_written < len(data):  # a disk that is full takes a part
        n_written += file.write(data[n_written:])


def replace(path: Path, text: str) -> None:
    """Write a file atomically. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)
