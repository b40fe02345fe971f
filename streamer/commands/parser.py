"""The parser of all command lines, made of the signatures of commands (see `signature`), and the call of a command."""

import argparse
import difflib
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from streamer.commands.invocation import Invocation
from streamer.commands.signature import Arg, Command, Flags, require, texts_of
from streamer.commands.table import COMMANDS, GROUPS, commands
from streamer.errors import MissingExtraError
from streamer.outside import one_line
from streamer.settings.flags import add_decoding_flags, add_flags
from streamer.settings.registry import SETTINGS
from streamer.settings.table import Settings
from streamer.version import __version__

logger = logging.getLogger(__name__)


class Parser(argparse.ArgumentParser):
    """A parser that shows an example of its command, and suggests what a misspelt word should be."""

    def format_help(self) -> str:
        examples = (texts_of(command)[2] for command in commands().values())
        example = next((line for line in examples if f"{line} ".startswith(f"{self.prog} ")), "")
        return f"{super().format_help()}\nexample: {example}\n"

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if found:
            message += _meant(found[1], [choice.strip("' ") for choice in found[2].split(",")])
        # Without the usage: it is longer than a screen, and the line that matters would stand below it.
        self.exit(2, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")

    def refuse(self, argument: str) -> NoReturn:
        """Refuse an argument that is unknown."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        self.error(f"unrecognized argument: {argument}{_meant(argument.partition('=')[0], flags)}")


def _meant(found: str, valid: Collection[str]) -> str:
    longer = [name for name in valid if name.startswith(f"{found}-")]
    nearest = longer or difflib.get_close_matches(found, valid, 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def make_parser(line: Collection[str] | None = None) -> Parser:
    """Return a parser of all commands, in which those that a line does not name have no arguments; None: all have.

    What it parses has the command's name as `command`, and its parser as `parser`.
    """
    parser = Parser(
        prog="streamer",
        description="Turns live speech into text: Whisper on an Intel NPU, GPU or CPU, captions over WebSockets.",
        epilog="Settings come from flags, STREAMER_... environment variables and config.yaml, in this order.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"streamer {__version__}")
    parser.set_defaults(debug=False, config=None)
    _add_common(parser)
    groups = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for name, command in commands().items():
        arguments = Parser(add_help=False)
        _add_common(arguments)
        if line is None or all(word in line for word in name.split()):
            try:
                _add_arguments(arguments, command, name)
            except Exception as error:
                if name in COMMANDS:
                    raise
                why = f"{type(error).__name__} {one_line(error)}"
                logger.warning("the plug-in's command %s is left out: %s", name, why)
                continue
        group, _, action = name.rpartition(" ")
        if group not in groups:
            title = f"{GROUPS[group][:1].upper()}{GROUPS[group][1:]}."
            made = groups[""].add_parser(group, help=GROUPS[group], description=title, allow_abbrev=False)
            groups[group] = made.add_subparsers(metavar="ACTION", required=True)
        _, text, _ = texts_of(command)
        made = groups[group].add_parser(
            action, parents=[arguments], help=_summary(command, name), description=text, allow_abbrev=False
        )
        made.set_defaults(command=name, parser=made)
    return parser


def call(name: str, arguments: Mapping[str, Any]) -> int:
    """Call the command of this name with what the parser found; return its exit code. Raises StreamerError."""
    command = commands()[name]
    require(command, name)
    invocation = Invocation.of(arguments)
    given: dict[str, object] = {}
    for parameter, kind, known in _parameters(command):
        if isinstance(known, Flags):
            given[parameter.name] = invocation.settings() if kind is Settings else invocation
        elif arguments[parameter.name] is not None:
            given[parameter.name] = arguments[parameter.name]
    return command(**given)


def _summary(command: Command, name: str) -> str:
    """Return a command's line in lists, with what to install first if something is missing."""
    summary, _, _ = texts_of(command)
    try:
        require(command, name)
    except MissingExtraError as error:
        return f"{summary} (first: {error.remedy})"
    return summary


def _add_common(parser: Parser) -> None:
    """Add what may stand before a command and behind it; SUPPRESS: its absence there must not undo it here."""
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="log in detail, and show tracebacks of errors"
    )
    parser.add_argument("--config", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="configuration file")


def _add_arguments(parser: Parser, command: Command, name: str) -> None:
    for parameter, kind, known in _parameters(command):
        if isinstance(known, Arg):
            _add(parser, parameter, kind, known)
            continue
        add_flags(parser, *known.names)
        if known.decoding != "none":
            add_decoding_flags(parser, streaming=known.decoding == "live")
    for setting in (setting for setting in SETTINGS.values() if name in setting.commands):
        try:
            add_flags(parser, setting.name)
        except argparse.ArgumentError as error:
            logger.warning("a plug-in's %s has no flag of `streamer %s`: %s", setting.name, name, one_line(error))


def _parameters(command: Command) -> Iterator[tuple[inspect.Parameter, Any, Arg | Flags]]:
    """Yield each parameter with its type and what its annotation says beside."""
    for parameter in inspect.signature(command).parameters.values():
        kind, known = get_args(parameter.annotation)
        yield parameter, kind, known


def _add(parser: Parser, parameter: inspect.Parameter, kind: Any, arg: Arg) -> None:  # noqa: ANN401 - a type
    required, default = parameter.default is parameter.empty, parameter.default
    if NoneType in get_args(kind):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    several = get_origin(kind) is Sequence
    (kind,) = get_args(kind) if several else (kind,)
    shown = "" if required or isinstance(default, bool) or not default else f" (default: {default})"
    how: dict[str, Any] = {"help": f"{arg.help}{shown}".replace("%", "%%")}
    if kind is bool:
        how["action"] = "store_false" if default else "store_true"
    elif get_origin(kind) is Literal:
        how |= {"choices": get_args(kind), "metavar": arg.metavar}
    else:
        how |= {"type": _reader(kind, *arg.within) if kind in (int, float) else kind, "metavar": arg.metavar}
    if parameter.kind is not parameter.KEYWORD_ONLY:
        nargs = ("+" if required else "*") if several else None if required else "?"
        parser.add_argument(parameter.name, nargs=nargs, **how)
        return
    if several:
        how["action"] = "append"
    flag = f"--{'no-' if default is True else ''}{parameter.name.replace('_', '-')}"
    names = sorted((flag, *arg.also), key=lambda name: name[:2] == "--")  # those of one letter first
    # None: the function knows its default.
    parser.add_argument(*names, dest=parameter.name, required=required, default=None, **how)


def _reader(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    """Return what reads a number in a range."""

    def read(text: str) -> float:
        try:
            if low <= (number := kind(text)) <= high:
                return number
        except ValueError:
            pass
        what = f"a {'whole ' if kind is int else ''}number from {low} to {high}"
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not {what}")

    return read
