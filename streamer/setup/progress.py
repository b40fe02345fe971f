"""What a person sees while a model is fetched and compiled, and files are transcribed: bars on a terminal."""

import atexit
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import TaskProgressColumn as PercentColumn
from rich.progress import TransferSpeedColumn as SpeedColumn

from streamer import log
from streamer.constants import SAMPLE_RATE
from streamer.outside import one_line
from streamer.whisper.hub import progress as hub

logger = logging.getLogger(__name__)

# Called with how many samples of a file are done, and of how many, if that is known.
OnProgress = Callable[[int, int | None], None]


@contextlib.contextmanager
def show_progress(name: str) -> Iterator["Loading"]:
    """Show on standard error how far the model of this name is: a bar on a terminal, else log lines."""
    console = Console(stderr=True) if sys.stderr.isatty() else None
    if console is not None:
        # A daemon that is stopped while it loads leaves the thread that loads behind, and the cursor hidden.
        atexit.register(console.show_cursor)
    with contextlib.ExitStack() as stack:
        loading = Loading(name, console, stack)
        yield loading
    loading.end()
    if console is not None:
        atexit.unregister(console.show_cursor)


class Loading:
    """Shows what is being done to a model: a bar for each step on a terminal, else a log line for each."""

    def __init__(self, name: str, console: Console | None, stack: contextlib.ExitStack) -> None:
        self._name = name
        self._console = console
        self._stack = stack  # closes the present bar
        self._bar: Progress | None = None
        self._doing = ""

    def fetched(self, progress: hub.Progress) -> None:
        """Show how much of a model is here."""
        if self._console is not None:
            columns = (DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
            self._draw(progress.doing, progress.n_here, progress.n_all or None, columns)
        elif not progress.n_all:  # what is fetched, and how large it is, is logged anyway
            self.begin(progress.doing)

    def compiled(self, done: int, total: int) -> None:
        """Show how many graphs of how many are compiled."""
        self._draw("compiling", done, total, (MofNCompleteColumn(),))

    def begin(self, doing: str) -> None:
        """Show what is being done, if it is not known how far that is."""
        if self._console is not None:
            self._draw(doing, 0, None, ())
        elif doing != self._doing:
            self._doing = doing
            logger.info("%s: %s", self._name, doing)

    def end(self) -> None:
        """Stop drawing: what is compiled later, beside captions, is not shown."""
        self._console = None

    def _draw(self, doing: str, done: int, total: int | None, columns: Sequence[ProgressColumn]) -> None:
        if (console := self._console) is None:
            return
        if self._bar is not None and doing == self._doing:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
            return
        # A new bar for each file, so that what was on this machine already does not count as speed.
        self._stack.close()
        shown = (TextColumn("{task.description}"), BarColumn(), *columns)
        self._bar = self._stack.enter_context(_drawn(console, *shown))
        self._bar.add_task(doing, completed=done, total=total)
        self._doing = doing


@contextlib.contextmanager
def _drawn(console: Console, *columns: ProgressColumn, redirect_stdout: bool = False) -> Iterator[Progress]:
    """Draw a bar; what is written to the terminal meanwhile stands above it."""
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=redirect_stdout, redirect_stderr=False)
    with log.standard_error(cast(TextIO, FileProxy(console, sys.stderr))):
        bar.start()
        try:
            yield bar
        finally:
            # A line that is written while the bar is removed would draw it once more.
            with log.writing:
                bar.stop()


@contextlib.contextmanager
def show_files(console: Console, lengths_s: Mapping[Path, float | None]) -> Iterator[Callable[[Path], OnProgress]]:
    """Show the progress of files in one bar on a terminal, else log each of several; yield what begins a file.

    lengths_s : of each file, None if it is not known; empty: nothing is shown

    Several files may be at work at once.
    """

    def numbered(path: Path) -> str:
        number = f"{list(lengths_s).index(path) + 1} of {len(lengths_s)} " if len(lengths_s) > 1 else ""
        return f"{number}{one_line(path.name):.40}"

    def log_begin(path: Path) -> OnProgress:
        if len(lengths_s) > 1:
            logger.info("%s", numbered(path))
        return lambda done, total: None

    if not console.is_terminal or not lengths_s:
        yield log_begin
        return
    known = [length for length in lengths_s.values() if length]
    average_s = sum(known) / len(known) if known else 1.0
    shares = {path: length or average_s for path, length in lengths_s.items()}
    done_s = dict.fromkeys(shares, 0.0)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), PercentColumn(), TimeRemainingColumn())
    with _drawn(console, *columns, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(f"{len(shares)} files", total=sum(shares.values()))

        def begin(path: Path) -> OnProgress:
            bar.update(task, description=numbered(path))

            def on_progress(done: int, total: int | None) -> None:
                of = total or (lengths_s[path] or 0) * SAMPLE_RATE
                done_s[path] = shares[path] * (min(1.0, done / of) if of else 0.0)
                bar.update(task, completed=sum(done_s.values()))

            return on_progress

        yield begin
