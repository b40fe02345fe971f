"""`--to captions.srt`: a transcript that grows while the daemon runs.

The file is complete at any time, even if the daemon is killed: each final replaces it by a new one, which ends as if
nothing followed.
"""

import copy
import io
from pathlib import Path

from streamer.errors import ConfigError
from streamer.events import Event, Final, Revision, Speakers, Translation
from streamer.outputs.subtitles import SubtitleOptions, open_writer

FORMATS = {".srt": "srt", ".vtt": "vtt", ".txt": "text", ".jsonl": "jsonl"}

# Newest finals to which revisions are applied.
N_WAITING = 20

# Size at which another file is begun, since each final writes all of it; days of subtitles.
MAX_CHARS = 4 << 20


class GrowingFile:
    """A file of finals with their revisions. An existing file is kept as `captions-1.srt`, or the next free number."""

    def __init__(self, path: Path, options: SubtitleOptions) -> None:
        """Begin the file. Raises ConfigError if it cannot be written or has an unknown suffix."""
        if path.suffix.lower() not in FORMATS:
            raise ConfigError(f"--to {path} has no format: expected a file that ends with {', '.join(FORMATS)}")
        self._options = options
        # The newest event that the writer has handled.
        self._handled: Event | None = None
        self._n_chars = 0
        try:
            self._path = path.resolve()  # a link stays one
            if self._path.exists() and not self._path.is_file():
                raise ConfigError(f"--to {path} is not a regular file: expected one that can be replaced")
            if self._path.exists() and self._path.stat().st_size:
                self._keep()
            self._begin()
            self._replace()
        except OSError as error:
            raise ConfigError(f"--to {path} cannot be written ({error.strerror}): name another path") from None

    def handle(self, event: Event) -> None:
        """Write a final, or an event about one; the event may be passed again after an OSError."""
        if not isinstance(event, Final | Revision | Speakers | Translation):
            return
        if event is not self._handled:
            if self._n_chars > MAX_CHARS and isinstance(event, Final):
                self._keep()
                self._begin()
            self._writer.handle(event)
            self._handled = event
        self._replace()

    def close(self) -> None:
        """Do nothing: the file is complete."""

    def _begin(self) -> None:
        self._stream = io.StringIO()
        format = FORMATS[self._path.suffix.lower()]
        self._writer = open_writer(format, self._stream, self._options, n_waiting=N_WAITING)

    def _replace(self) -> None:
        writer, stream = copy.deepcopy((self._writer, self._stream))
        writer.close()
        self._n_chars = stream.tell()
        replace(self._path, stream.getvalue())

    def _keep(self) -> None:
        number = 1
        while (kept := self._path.with_name(f"{self._path.stem}-{number}{self._path.suffix}")).exists():
            number += 1
        self._path.rename(kept)


def replace(path: Path, text: str) -> None:
    """Write a file atomically. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)
