"""What commands share of the terminal: a console, notices, and an end by signal."""

import signal
import sys
from typing import TYPE_CHECKING

from streamer import log
from streamer.extras import requires

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Columns of tables with numbers in them.
_NUMBERS = ("Number", "Channels", "Rate", "Size")


def make_console() -> "Console":
    """Return a console on standard output."""
    # Late, as the command line itself needs none.
    from rich.console import Console

    class _PipeConsole(Console):
        """A console that leaves a broken pipe to the command line, which knows the exit code."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    # A pipe has no width; 80 columns would fold what a script wants on one line.
    return _PipeConsole() if sys.stdout.isatty() else _PipeConsole(width=200)


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


def print_completion(shell: str) -> int:
    """Print what a shell has to read to complete commands and flags. Returns the exit code."""
    requires("argcomplete", extra="completion", purpose="streamer completion")
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["streamer"], shell=shell))
    return 0


def notice(message: str) -> None:
    """Print a line on standard error, behind what was logged before."""
    log.say(f"streamer: {message}")


def end_on_sigterm() -> None:
    """Let SIGTERM end a command as Ctrl-C does: quietly, with what was written complete."""
    # A script's shell lets what it starts with `&` ignore SIGINT: SIGTERM would do nothing either.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
