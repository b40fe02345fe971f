"""`--to captions.srt`: a transcript that grows while the daemon runs.

Whoever reads the file finds it whole at every moment, also where the daemon was killed: each final replaces it by a new
one, with the last cue as it would stand if nothing followed.
"""

import copy
import io
from pathlib import Path

from streamer.errors import ConfigError
from streamer.events import Event, Final, Revision, Speakers, Translation
from streamer.outputs.subtitles import SubtitleOptions, open_writer

FORMATS = {".srt": "srt", ".vtt": "vtt", ".txt": "text", ".jsonl": "jsonl"}

# Finals that wait for their revisions; the file has them all the same, as they read so far.
N_WAITING = 20

# A file of so many characters is kept and another one begun, since each final writes all of it: days of subtitles.
MAX_CHARS = 4 << 20


class GrowingFile:
    """A file of finals as they read by now. What lies in its place is kept as `captions-1.srt`, or a later number."""

    def __init__(self, path: Path, options: SubtitleOptions) -> None:
        """Begin the file. Raises ConfigError where it cannot be written, or its ending is that of no format."""
        if path.suffix.lower() not in FORMATS:
            raise ConfigError(f"--to {path} is no file that grows: expected one that ends with {', '.join(FORMATS)}")
        self._options = options

        # The event that the writer was given last.
        self._taken: Event | None = None

        # Characters of the file.
        self._n_chars = 0

        try:
            self._path = path.resolve()  # a link stays one
            if self._path.exists() and not self._path.is_file():
                raise ConfigError(f"--to {path} is no file: expected one that can be replaced")
            if self._path.exists() and self._path.stat().st_size:
                self._keep()
            self._begin()
            self._replace()
        except OSError as error:
            raise ConfigError(f"--to {path} cannot be written ({error.strerror}): name another place") from None

    def handle(self, event: Event) -> None:
        """Add a final. Raises OSError where the file cannot be replaced now; the event may be handed over again."""
        if not isinstance(event, Final | Revision | Speakers | Translation):
            return
        if event is not self._taken:
            if self._n_chars > MAX_CHARS and isinstance(event, Final):
                self._keep()
                self._begin()
            self._writer.handle(event)
            self._taken = event
        self._replace()

    def close(self) -> None:
        """Do nothing: the file is whole."""

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
    """Write a file so that a reader sees all of it or what was there before. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)
