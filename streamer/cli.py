"""The command line: parsing, logging, exit codes. What commands there are is in `commands.table`.

A command's module is imported when it runs, so that `--help` and a slip in a flag answer at once.
"""

import argparse
import contextlib
import difflib
import errno
import inspect
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from streamer import log
from streamer.commands.invocation import Invocation
from streamer.commands.table import COMMANDS, GROUPS, Subcommand, commands
from streamer.commands.terminal import end_on_sigterm, make_console, notice
from streamer.errors import StreamerError
from streamer.outside import escaped, one_line
from streamer.settings.flags import add_decoding_flags, add_flags
from streamer.settings.registry import SETTINGS
from streamer.version import __version__

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    _prepare_streams()
    args = _parse(sys.argv[1:] if argv is None else argv)
    command: Subcommand = args.run_command
    try:
        exit_code = _run(command, vars(args))
        sys.stdout.flush()
    except BaseException as error:
        if _is_interrupt(error):
            # What runs until it is stopped has done its work; a file that was not transcribed has not.
            return 0 if command.endless else _failed("interrupted", 1, debug=args.debug)
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


def _run(command: Subcommand, arguments: dict[str, Any]) -> int:
    """Call a command's function with the parameters that it has (see `Subcommand`); return the exit code."""
    invocation = Invocation.of(arguments)
    given = {**arguments, "invocation": invocation}
    if command.reads_settings:
        given["settings"] = invocation.settings()
    function = command.load()
    if command.ends_on_sigterm:
        end_on_sigterm()
    parameters = inspect.signature(function).parameters
    if "daemon" in parameters:
        from streamer.commands.listen import daemon_of

        given["daemon"] = daemon_of(arguments, given["settings"])
    if "console" in parameters:
        given["console"] = make_console()
    return function(**{name: given[name] for name in parameters if name in given})


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions only
        import argcomplete

        argcomplete.autocomplete(parser)
    # openai-whisper's flags have underscores.
    dashed = [re.sub(r"^--\w+", lambda flag: flag[0].replace("_", "-"), argument) for argument in argv]
    args, unknown = parser.parse_known_args(dashed)
    if unknown:
        command: _Parser = args.parser
        flag = unknown[0].partition("=")[0]
        command.error(f"unrecognized argument: {unknown[0]}{_meant(flag, command.flags())}")
    return args


class _Parser(argparse.ArgumentParser):
    """A parser that shows an example of its command, and suggests what a misspelt word should be."""

    def format_help(self) -> str:
        lines = (f"streamer {command.name} {command.example}".rstrip() for command in commands())
        example = next(line for line in lines if f"{line} ".startswith(f"{self.prog} "))
        return f"{super().format_help()}\nexample: {example}\n"

    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if found:
            message += _meant(found[1], [choice.strip("' ") for choice in found[2].split(",")])
        # Without the usage: it is longer than a screen, and the line that matters would stand below it.
        self.exit(2, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")


def _meant(found: str, valid: Collection[str]) -> str:
    longer = [name for name in valid if name.startswith(f"{found}-")]
    nearest = longer or difflib.get_close_matches(found, valid, 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def make_parser() -> _Parser:
    parser = _Parser(
        prog="streamer",
        description="Turns live speech into text: Whisper on an Intel NPU, GPU or CPU, captions over WebSockets.",
        epilog="Settings come from flags, STREAMER_... environment variables and config.yaml, in this order.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"streamer {__version__}")
    _add_debug(parser, default=False)
    groups = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for command in commands():
        if (arguments := _arguments_of(command)) is None:
            continue
        group, _, name = command.name.rpartition(" ")
        if group not in groups:
            made = groups[""].add_parser(
                group, help=GROUPS[group], description=_sentence(GROUPS[group]), allow_abbrev=False
            )
            groups[group] = made.add_subparsers(metavar="ACTION", required=True)
        description = f"{_sentence(command.summary)} {command.more}"
        made = groups[group].add_parser(
            name, parents=[arguments], help=command.help, description=description, allow_abbrev=False
        )
        made.set_defaults(run_command=command, parser=made)
    return parser


def _arguments_of(command: Subcommand) -> _Parser | None:
    """Return the arguments of a command; None, behind a warning, if those of a plug-in's cannot be parsed."""
    parser = _Parser(add_help=False)
    # SUPPRESS: a flag before the command must not be undone by its absence after it.
    _add_debug(parser, default=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file")
    try:
        _add_arguments(parser, command)
    except Exception as error:
        if command in COMMANDS:
            raise
        why = f"{type(error).__name__} {one_line(error)}"
        logger.warning("the plug-in's command %s is left out: %s", command.name, why)
        return None
    return parser


def _sentence(summary: str) -> str:
    return f"{summary[:1].upper()}{summary[1:]}."


def _add_debug(parser: _Parser, default: object) -> None:
    parser.add_argument(
        "--debug", action="store_true", default=default, help="log in detail, and show tracebacks of errors"
    )


def _add_arguments(parser: _Parser, command: Subcommand) -> None:
    for flag in command.flags:
        if isinstance(flag, str):
            add_flags(parser, flag)
        else:
            parser.add_argument(*flag.names, **flag.how)
    if command.decoding != "none":
        add_decoding_flags(parser, streaming=command.decoding == "live")
    for name in (name for name, setting in SETTINGS.items() if command.name in setting.commands):
        try:
            add_flags(parser, name)
        except argparse.ArgumentError as error:
            logger.warning("a plug-in's %s has no flag of `streamer %s`: %s", name, command.name, one_line(error))


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
