"""What commands share of the terminal: a console, notices, and an end by signal."""

import contextlib
import signal
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, TextIO

from streamer import log

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Columns of tables with numbers in them.
_NUMBERS = ("Number", "Channels", "Rate", "Size")


def make_console(file: TextIO | None = None) -> "Console":
    """Return a console on standard output, or on a file that is as wide."""
    # Late, as the command line itself needs none.
    from rich.console import Console

    class _PipeConsole(Console):
        """A console that leaves a broken pipe to the command line, which knows the exit code."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    # A pipe has no width; 80 columns would fold what a script wants on one line.
    return _PipeConsole(file=file, width=None if sys.stdout.isatty() else 200)


def make_table(title: str, *columns: str) -> "Table":
    """Return an empty table, whose cells are folded if there is little room."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in _NUMBERS else "left")
    return table


def say(console: "Console", text: str, style: str = "") -> None:
    """Print text as it is, on one line however narrow the terminal."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def notice(message: str) -> None:
    """Print a line on standard error, behind what was logged before."""
    log.say(f"streamer: {message}")


def end_on_sigterm() -> None:
    """Let SIGTERM end a command as Ctrl-C does: quietly, with what was written complete."""
    # A script's shell lets what it starts with `&` ignore SIGINT: SIGTERM would do nothing either.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def run_until_interrupted(work: Coroutine[None, None, None]) -> None:
    """Run a coroutine to its end, or until Ctrl-C or SIGTERM, which are noticed at once: raises KeyboardInterrupt."""
    # Late, as the command line itself does not need it.
    import asyncio

    async def waking() -> None:
        # A signal just before the loop waits wakes it only if the loop has a wakeup descriptor, as Windows' has.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
        await work

    end_on_sigterm()
    asyncio.run(waking())
