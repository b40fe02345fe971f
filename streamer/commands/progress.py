"""What a person sees while a model is fetched and compiled, and files are transcribed: bars on a terminal."""

import atexit
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
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

from streamer.audio.constants import SAMPLE_RATE
from streamer.outside import one_line
from streamer.whisper.hub import progress as hub

logger = logging.getLogger(__name__)

# Told how many samples of a file are done, and of how many, where that is known.
OnProgress = Callable[[int, int | None], None]


class Loading:
    """Is told how far a model is, and shows nothing."""

    def fetched(self, progress: hub.Progress) -> None:
        """Hear how much of a model is here."""

    def compiled(self, done: int, total: int) -> None:
        """Hear how many graphs of how many are compiled."""


@contextlib.contextmanager
def show_progress(name: str) -> Iterator[Loading]:
    """Show on standard error how far the model of this name is."""
    if not sys.stderr.isatty():
        yield _LogLines(name)
        return
    console = Console(stderr=True)
    # A daemon that is stopped while it loads leaves the thread that loads behind, and the cursor hidden.
    atexit.register(console.show_cursor)
    with contextlib.ExitStack() as stack:
        yield _Bars(console, stack)
    atexit.unregister(console.show_cursor)


class _Bars(Loading):
    """Draws a bar for what is being done, which is removed at its end."""

    def __init__(self, console: Console, stack: contextlib.ExitStack) -> None:
        self._console = console
        self._stack = stack
        self._bar: Progress | None = None
        self._doing = ""

    def fetched(self, progress: hub.Progress) -> None:
        columns = (DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
        self._draw(progress.doing, progress.n_here, progress.n_all or None, columns)

    def compiled(self, done: int, total: int) -> None:
        self._draw("compiling", done, total, (MofNCompleteColumn(),))

    def _draw(self, doing: str, done: int, total: int | None, columns: Sequence[ProgressColumn]) -> None:
        if self._bar is not None and doing == self._doing:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
            return
        # A new bar for each file, so that what was on this machine already does not count as speed.
        self._stack.close()
        shown = (TextColumn("{task.description}"), BarColumn(), *columns)
        self._bar = self._stack.enter_context(Progress(*shown, console=self._console, transient=True))
        self._bar.add_task(doing, completed=done, total=total)
        self._doing = doing


class _LogLines(Loading):
    """Logs what a program waits for; what is fetched from where, and how large it is, the log says anyway."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""

    def fetched(self, progress: hub.Progress) -> None:
        if not progress.n_all and progress.doing != self._last:
            self._last = progress.doing
            logger.info("%s: %s", self._name, progress.doing)


@contextlib.contextmanager
def show_files(console: Console, lengths_s: Mapping[Path, float | None]) -> Iterator[Callable[[Path], OnProgress]]:
    """Show the progress of files in one bar on a terminal, else log each of several; yield what begins a file.

    lengths_s : of each file, None if it is not known; empty: nothing is shown
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
    shares = estimated_lengths(lengths_s)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), PercentColumn(), TimeRemainingColumn())
    # Text that comes to the terminal meanwhile stands above the bar.
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(f"{len(shares)} files", total=sum(shares.values()))

        def begin(path: Path) -> OnProgress:
            before_s = sum(list(shares.values())[: list(shares).index(path)])
            bar.update(task, completed=before_s, description=numbered(path))

            def on_progress(done: int, total: int | None) -> None:
                of = total or (lengths_s[path] or 0) * SAMPLE_RATE
                bar.update(task, completed=before_s + shares[path] * (min(1.0, done / of) if of else 0.0))

            return on_progress

        yield begin


def estimated_lengths(lengths_s: Mapping[Path, float | None]) -> dict[Path, float]:
    """Return the lengths of files in seconds; one that is not known counts as an average one."""
    known = [length for length in lengths_s.values() if length]
    average_s = sum(known) / len(known) if known else 1.0
    return {path: length or average_s for path, length in lengths_s.items()}
