"""What a command is declared with: a function whose signature is its command line, and whose docstring is its help.

    def show(
        session: Annotated[str, Arg("the beginning of a session's name, or last", "SESSION")],
        *,
        limit: Annotated[int, Arg("at most this many", "N", within=(1, 1000))] = 50,
        settings: Annotated[Settings, Flags(("server.history",))],
    ) -> int:
        '''Print a session's text.

        Times are those of its audio.

        Example: streamer history show last
        '''

is `streamer history show SESSION [--limit N] [--history FILE]`. It returns the exit code.

A parameter before `*` is a positional argument, one behind it a flag; without a default it is required. Its type is
str, int, float, Path, a Literal of texts, one of these `| None`, a Sequence of one of these, of which a flag is given
once for each, or bool: a flag without a value, which is `--no-NAME` if the default is True.

What is annotated with `Flags` is not an argument, but what the command line says of settings: as `Settings` they are
read, and logging begins as they say, before the function is called; an `Invocation` leaves that to the function.

Nothing of this needs the table of settings, so that a plug-in may declare settings and commands in one module.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from streamer.extras import requires

# A function whose signature is a command line.
Command = Callable[..., int]
F = TypeVar("F", bound=Command)


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument: what the help says of it and calls its value, and what it may be."""

    help: str
    metavar: str | None = None

    # Further names of a flag, such as `-o`; range of a number, both ends included.
    also: tuple[str, ...] = ()
    within: tuple[float, float] = (float("-inf"), float("inf"))


@dataclass(frozen=True, slots=True)
class Flags:
    """The settings of which a command has flags: by their dotted names, and options of decoding and output."""

    names: tuple[str, ...] = ()
    decoding: Literal["none", "live", "all"] = "none"  # all, or those that live captions use


# Settings of which several commands have flags.
CORRECTION = ("correction.model", "correction.device", "correction.beam_size", "correction.glossary")
ADDRESS = ("server.host", "server.port", "server.tls", "server.token_file")
DEVICES = ("model.device", "model.encoder_device", "model.decoder_device")
MODEL_FILES = ("model.tokenizer", "model.lora", "model.adapter", "model.weights", "model.windows_s", *DEVICES)
MODEL = ("model.name", *MODEL_FILES)


def endless(function: F) -> F:
    """Mark a command that runs until it is stopped, so that an interrupt is its regular end."""
    function.__dict__["endless"] = True
    return function


def is_endless(command: Command) -> bool:
    return "endless" in command.__dict__


def needs(module: str, extra: str) -> Callable[[F], F]:
    """Return what marks a command as one that needs a module, which only an extra of this name brings."""

    def mark(function: F) -> F:
        function.__dict__["needs"] = (module, extra)
        return function

    return mark


def require(command: Command, name: str) -> None:
    """Raise MissingExtraError if a command of this name needs a module that is missing."""
    if "needs" in command.__dict__:
        module, extra = command.__dict__["needs"]
        requires(module, extra=extra, purpose=f"streamer {name}")


def texts_of(command: Command) -> tuple[str, str, str]:
    """Return what the docstring says: a line for lists, all but the example, and the example, empty if it has none."""
    text, _, example = (inspect.getdoc(command) or "").partition("\nExample: ")
    summary = text.partition("\n")[0].removesuffix(".")
    return f"{summary[:1].lower()}{summary[1:]}", " ".join(text.split()), example
