"""`--to captions.srt`: a transcript that grows while the daemon runs.

After each final the file ends as if nothing followed. Only what changed is written, from the beginning of its line or
cue, and what changed before is cut off first: if the daemon is killed meanwhile, the file has whole lines and cues.
"""

import contextlib
import copy
import io
import itertools
import os
from pathlib import Path

from streamer.errors import ConfigError
from streamer.events import Event, Final, Revision, Speakers, Translation
from streamer.outputs.subtitles import SubtitleOptions, open_writer

FORMATS = {".srt": "srt", ".vtt": "vtt", ".txt": "text", ".jsonl": "jsonl"}

# Newest finals to which revisions are applied.
N_WAITING = 20

# Size at which another file is begun, since all of it is kept in memory: days of subtitles, hours of JSON Lines.
MAX_BYTES = 4 << 20


class GrowingFile:
    """A file of finals with their revisions. An existing file is kept as `captions-1.srt`, or the next free number."""

    def __init__(self, path: Path, options: SubtitleOptions) -> None:
        """Begin the file. Raises ConfigError if it cannot be written or has an unknown suffix."""
        if path.suffix.lower() not in FORMATS:
            raise ConfigError(f"--to {path} has an unknown file type: expected a name ending in {', '.join(FORMATS)}")
        self._options = options
        self._format = FORMATS[path.suffix.lower()]
        # The newest event that the writer has handled.
        self._handled: Event | None = None
        try:
            self._path = path.resolve()  # a link stays one
            if self._path.exists() and not self._path.is_file():
                raise ConfigError(f"--to {path} is not a regular file: expected one that can be replaced")
            if self._path.exists() and self._path.stat().st_size:
                self._keep()
            self._begin()
            self._update()
        except OSError as error:
            raise ConfigError(f"cannot write --to {path} ({error.strerror}): choose another path") from None

    def handle(self, event: Event) -> None:
        """Write a final, or an event about one; the event may be passed again after an OSError."""
        if not isinstance(event, Final | Revision | Speakers | Translation):
            return
        if event is not self._handled:
            if len(self._text) > MAX_BYTES and isinstance(event, Final):
                self._keep()
                self._begin()
            self._writer.handle(event)
            self._handled = event
        self._update()

    def close(self) -> None:
        """Do nothing: the file is complete."""

    def _begin(self) -> None:
        # What the writer has written since the last update.
        self._stream = io.StringIO()
        self._writer = open_writer(self._format, self._stream, self._options, n_waiting=N_WAITING)
        # What is in the file, and how many bytes of it no later event changes.
        self._text = bytearray()
        self._n_fixed = 0

    def _update(self) -> None:
        """Write what changed. Raises OSError; the file then has the lines or cues that did not change."""
        ending = io.StringIO()
        copy.deepcopy(self._writer, {id(self._stream): ending}).close()
        fixed = self._stream.getvalue().encode("utf-8")
        new = fixed + ending.getvalue().encode("utf-8")
        end = b"\n\n" if self._format in ("srt", "vtt") else b"\n"
        pairs = zip(self._text[self._n_fixed :].split(end)[:-1], new.split(end), strict=False)
        n_same = sum(len(same) + len(end) for same, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        try:
            self._write(self._n_fixed + n_same, new[n_same:])
        except FileNotFoundError:
            self._text[self._n_fixed :] = new
            replace(self._path, self._text.decode("utf-8"))
        self._n_fixed += len(fixed)
        self._stream.seek(0)
        self._stream.truncate()

    def _write(self, begin: int, rest: bytes) -> None:
        """Replace the file's bytes from `begin` on. Raises FileNotFoundError if another program has changed it."""
        with self._path.open("r+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END) != len(self._text):
                raise FileNotFoundError
            if begin < len(self._text):
                file.truncate(begin)
                del self._text[begin:]
            try:
                file.seek(begin)
                n_written = 0
                while n_written < len(rest):
                    n_written += file.write(rest[n_written:])
            except OSError:
                file.truncate(begin)
                raise
            self._text += rest

    def _keep(self) -> None:
        number = 1
        while (kept := self._path.with_name(f"{self._path.stem}-{number}{self._path.suffix}")).exists():
            number += 1
        with contextlib.suppress(FileNotFoundError):  # deleted by a user
            self._path.rename(kept)


def replace(path: Path, text: str) -> None:
    """Write a file atomically. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)
