"""The command line: exit codes, errors and streams. What commands there are is in `commands.table`."""

import argparse
import contextlib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence

from streamer import log
from streamer.commands.parser import call, make_parser
from streamer.commands.signature import is_endless
from streamer.commands.table import commands
from streamer.commands.terminal import notice
from streamer.errors import StreamerError
from streamer.outside import escaped


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    _prepare_streams()
    args = _parse(sys.argv[1:] if argv is None else argv)
    try:
        exit_code = call(args.command, vars(args))
        sys.stdout.flush()
    except BaseException as error:
        if _is_interrupt(error):
            # What runs until it is stopped has done its work; a file that was not transcribed has not.
            return 0 if is_endless(commands()[args.command]) else _failed("interrupted", 1, debug=args.debug)
        if isinstance(error, StreamerError):
            return _failed(str(error), error.exit_code, debug=args.debug)
        if _is_broken_pipe(error):
            return _leave_pipe()
        if not isinstance(error, Exception):
            raise
        reason = f"unexpected {type(error).__name__}: {error}"
        hint = "" if args.debug else "; run the command again with --debug for the traceback"
        return _failed(reason + hint, 1, debug=args.debug)
    finally:
        log.close()
    return exit_code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    # openai-whisper's flags have underscores.
    dashed = [re.sub(r"^--\w+", lambda flag: flag[0].replace("_", "-"), argument) for argument in argv]
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions only
        import argcomplete

        argcomplete.autocomplete(make_parser(os.environ.get("COMP_LINE", "").split()))
    args, unknown = make_parser(dashed).parse_known_args(dashed)
    if unknown:
        args.parser.refuse(unknown[0])
    return args


def _failed(message: str, exit_code: int, *, debug: bool) -> int:
    with contextlib.suppress(OSError):
        if debug and sys.exc_info()[0] is not None:
            log.say(escaped(traceback.format_exc().rstrip(), keep="\n"))
        line = " ".join(message.split())
        # The name of another user's file may hold control sequences for the terminal.
        notice(f"error: {''.join(char if char.isprintable() else '?' for char in line)}")
    return exit_code


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C ended the command, even if a library's C code raised another error because of it.

    An error during the command's clean-up has the interrupt as its context, not its cause, and is reported as itself.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _is_broken_pipe(error: BaseException) -> bool:
    if isinstance(error, BrokenPipeError):
        return True
    # Windows reports "invalid argument" for a pipe whose reader has gone.
    return os.name == "nt" and isinstance(error, OSError) and error.errno == errno.EINVAL


def _leave_pipe() -> int:
    """End without a message if the reader of a pipe has gone, as `head` does."""
    with contextlib.suppress(OSError, ValueError):
        # Python flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _prepare_streams() -> None:
    """Write UTF-8 into pipes and files everywhere, and never fail for a character that a terminal lacks.

    If standard output or standard error is closed, what is written there is dropped.
    """
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w", encoding="utf-8") for stream in (sys.stdout, sys.stderr))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
