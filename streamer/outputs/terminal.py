"""Live captions in a terminal."""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable
from typing import TextIO, cast

from rich.console import Console
from rich.control import Control
from rich.text import Text

from streamer import log
from streamer.events import Event, Final, Revision, Speakers
from streamer.outputs.screen import LATER_STYLE, Captions, Drawing
from streamer.outputs.sink import Answer, Delivered, Sink
from streamer.outputs.subtitles.cues import file_line
from streamer.outputs.subtitles.revised import revised, speaker_of, turns
from streamer.outside import printable

logger = logging.getLogger(__name__)

MAX_REMEMBERED = 50  # finals, for the corrections that are printed


class Terminal:
    """Writes captions in lines that end at sentences, of which the last ones are redrawn as they change.

    A correction changes its line while that is on the screen. With `corrections` it is printed instead, behind `~`.

    If the console is not a terminal, only finals and such corrections are written, one a line and flushed at once, for
    a pipe.
    """

    def __init__(self, console: Console, *, corrections: bool = False) -> None:
        self._console = console
        # The newest finals by session and number, for their corrections; None if these are not printed.
        self._finals: dict[tuple[str, int], Final] | None = {} if corrections else None

        # None without a terminal that can redraw.
        self._captions = Captions() if console.is_terminal and not console.is_dumb_terminal else None
        # Guards the captions: what is written to standard error comes from other threads.
        self._lock = threading.Lock()
        # Whether the captions own the terminal, from the first event to close(), and what gives standard error back.
        self._started = False
        self._owned = contextlib.ExitStack()

    def handle(self, event: Event) -> None:
        """Show the next event."""
        correction = self._correction(event)
        if self._captions is None:
            if line := _line(event) if isinstance(event, Final) else correction:
                self._console.file.write(line + "\n")
                self._console.file.flush()
            return
        if not self._started:
            if sys.stderr.isatty():
                self._owned.enter_context(log.standard_error(cast(TextIO, _Lines(self._print))))
            self._started = True
            self._console.show_cursor(False)
        with self._lock:
            size = self._console.size
            if correction:
                self._write(self._captions.print(Text(correction, LATER_STYLE), *size))
            if self._finals is None or not isinstance(event, Revision | Speakers):
                self._write(self._captions.handle(event, *size))

    def close(self) -> None:
        """Leave on the terminal what does not change any more, and the cursor below it."""
        if self._captions is None or not self._started:
            return
        try:
            with self._lock:
                self._started = False
                self._write(self._captions.close(*self._console.size))
                self._console.show_cursor(True)
        finally:
            # Without the lock: who writes to standard error now may wait for it.
            self._owned.close()

    def _correction(self, event: Event) -> str:
        """Return the line that is printed for an event that corrects others; empty if none is."""
        if self._finals is None:
            return ""
        match event:
            case Final():
                self._finals[event.session, event.seq] = event
                if len(self._finals) > MAX_REMEMBERED:
                    del self._finals[next(iter(self._finals))]
            case Revision() if (final := self._finals.get((event.session, event.of))) is not None:
                newer = self._finals[event.session, event.of] = revised(final, event)
                return f"~ {_line(newer)}" if _line(newer) != _line(final) else ""
            case Speakers(same=(label, other)):
                return f"~ {file_line(label)} is {file_line(other)}"
        return ""

    def _print(self, line: str) -> None:
        """Print a line that was written to standard error."""
        assert self._captions is not None
        with self._lock:
            size = self._console.size
            self._write(self._captions.print(Text(printable(line)), *size))
            if not self._started:
                self._write(self._captions.close(*size))

    def _write(self, drawing: Drawing) -> None:
        with self._console:  # all at once
            for item in drawing:
                if isinstance(item, Control):
                    self._console.control(item)
                else:
                    self._console.print(item, end="", no_wrap=True, overflow="ignore", crop=False)


class TerminalSink(Sink):
    """The terminal of a daemon, which goes on without it if it, or the program that reads its output, is gone."""

    partials = True

    def __init__(self, terminal: Terminal, max_waiting: int) -> None:
        # None: it is gone.
        self._terminal: Terminal | None = terminal
        self.max_waiting = max_waiting

    def deliver(self, event: Event) -> Answer:
        """Show the next event."""
        if self._terminal is not None:
            try:
                self._terminal.handle(event)
            except (OSError, ValueError) as error:  # the latter: the stream is closed
                logger.info("captions are no longer drawn (%s)", error)
                self.close()
        return Delivered()

    def close(self) -> None:
        """Leave the terminal."""
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            with contextlib.suppress(OSError, ValueError):
                terminal.close()


class _Lines(io.TextIOBase):
    """A stream that passes on each line."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._on_line(line)
        return len(text)

    def isatty(self) -> bool:
        return True


def _line(final: Final) -> str:
    spoken = ((file_line(speaker_of(turn) or final.speaker), file_line(turn.text)) for turn in turns(final))
    return "\n".join(f"{speaker}: {text}" if speaker and text else text for speaker, text in spoken)
