"""The command line: flags, logging, exit codes. What a command does is in `commands`.

It is imported when it runs, so that `--help` and a slip in a flag answer at once.
"""

import argparse
import contextlib
import difflib
import errno
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from streamer import __version__
from streamer.commands.terminal import end_on_sigterm, make_console, notice
from streamer.errors import ConfigError, StreamerError
from streamer.settings.flags import add_decoding_flags, add_flags
from streamer.settings.load import load_settings
from streamer.settings.table import SETTINGS, Settings

TRANSCRIPT_FORMATS = ("text", "json", "jsonl", "srt", "vtt", "tsv", "lrc")
LISTEN_FORMATS = ("text", "jsonl", "srt", "vtt", "lrc", "captions")

# Commands that run until they are stopped.
_ENDLESS_COMMANDS = ("run", "listen", "chat")

_RUN_FLAGS = (
    "input.source",
    "input.fallback",
    "input.microphone",
    "input.speed",
    "input.exit_at_end",
    "server.host",
    "server.port",
    "server.token",
)
_DEVICE_FLAGS = ("model.device", "model.encoder_device", "model.cross_kv_device", "model.decoder_device")
_MODEL_FLAGS = ("model.name", "model.tokenizer", "model.windows_s", *_DEVICE_FLAGS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    _prepare_streams()
    args = _parse(sys.argv[1:] if argv is None else argv)
    command: Callable[[argparse.Namespace], int] = args.run_command
    try:
        exit_code = command(args)
        sys.stdout.flush()
    except BaseException as error:
        if _is_interrupt(error):
            # What runs until it is stopped has done its work; a file that was not transcribed has not.
            return 0 if args.command in _ENDLESS_COMMANDS else _failed("interrupted", 1, debug=args.debug)
        if isinstance(error, StreamerError):
            return _failed(str(error), error.exit_code, debug=args.debug)
        if _is_broken_pipe(error):
            return _leave_pipe()
        if not isinstance(error, Exception):
            raise
        reason = f"unexpected {type(error).__name__}: {error}"
        hint = "" if args.debug else "; run the command again with --debug for the traceback"
        return _failed(reason + hint, 1, debug=args.debug)
    return exit_code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    args, unknown = _parser().parse_known_args(argv)
    if unknown:
        command: _Parser = args.parser
        command.error(f"unrecognized argument: {unknown[0]}{_meant(unknown[0].partition('=')[0], command.flags())}")
    return args


class _Parser(argparse.ArgumentParser):
    """A parser that says what was probably meant."""

    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if found:
            message += _meant(found[1], [choice.strip("' ") for choice in found[2].split(",")])
        # Without the usage: it is longer than a screen, and the line that matters would stand below it.
        self.exit(2, f"{self.prog}: error: {message}; `{self.prog} --help` says what there is\n")


def _meant(found: str, valid: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(found, list(valid), 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


class _Add(Protocol):
    """Adds a command with the flags that all have, and returns its parser."""

    def __call__(self, name: str, summary: str, description: str, run: Callable[[argparse.Namespace], int]) -> _Parser:
        """Add a command that `run` carries out; it returns the exit code."""


def _parser() -> _Parser:
    common = _Parser(add_help=False)
    # SUPPRESS: a flag before the command must not be undone by its absence after it.
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="log in detail, and show tracebacks of errors"
    )
    parser = _Parser(
        prog="streamer",
        description="Turns live speech into text: Whisper on an Intel NPU, GPU or CPU, captions over WebSockets.",
        epilog="Settings come from flags, STREAMER_... environment variables and config.yaml, in this order.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"streamer {__version__}")
    parser.add_argument("--debug", action="store_true", help="log in detail, and show tracebacks of errors")

    def add_to(commands: "argparse._SubParsersAction[_Parser]") -> _Add:
        def add(name: str, summary: str, description: str, run: Callable[[argparse.Namespace], int]) -> _Parser:
            command = commands.add_parser(
                name, help=summary, description=description, parents=[common], allow_abbrev=False
            )
            command.set_defaults(run_command=run, parser=command)
            command.add_argument("--config", type=Path, metavar="FILE", help="configuration file")
            return command

        return add

    commands: argparse._SubParsersAction[_Parser] = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True
    )
    add = add_to(commands)
    _add_run(add)
    _add_transcribe(add)
    _add_listen(add)
    _add_chat(add)
    for name, summary, description, add_actions in (
        ("config", "show, write and describe the settings", "Shows, writes and describes the settings.", _add_config),
        (
            "models",
            "list, fetch, convert and verify models",
            "Lists, fetches, converts and verifies Whisper models.",
            _add_models,
        ),
    ):
        group = commands.add_parser(name, help=summary, description=description, allow_abbrev=False)
        add_actions(add_to(group.add_subparsers(dest="action", metavar="ACTION", required=True)))
    _add_devices(add)
    _add_doctor(add)
    _add_bench(add)
    return parser


def _settings(args: argparse.Namespace) -> Settings:
    """Load the settings and begin to log as they say."""
    settings = load_settings(args.config, os.environ, _overrides(args))
    _configure_logging(settings.log.level)
    return settings


def _overrides(args: argparse.Namespace) -> dict[str, object]:
    """Return what flags say of settings."""
    overrides = {name: value for name, value in vars(args).items() if name in SETTINGS and value is not None}
    return {**overrides, "log.level": "debug"} if args.debug else overrides


def _add_run(add: _Add) -> None:
    run = add(
        "run",
        "the daemon: captions what it hears, for all who connect",
        "Listens, transcribes, and publishes captions on one port: a page for browsers, WebSockets for programs."
        " Ends with Ctrl-C.",
        _run,
    )
    add_flags(run, *_RUN_FLAGS, *_MODEL_FLAGS)
    add_decoding_flags(run, streaming=True)
    run.add_argument("--no-captions", action="store_true", help="do not draw captions in the terminal")


def _run(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer import app

    return app.run(settings, captions=not args.no_captions)


def _add_transcribe(add: _Add) -> None:
    transcribe = add(
        "transcribe", "files to text, without a server", "Transcribes audio files (wav, flac, ogg, mp3).", _transcribe
    )
    transcribe.add_argument("files", nargs="+", type=Path, metavar="FILE", help="audio file; - is standard input")
    transcribe.add_argument(
        "--format", choices=TRANSCRIPT_FORMATS, default="text", help="what to write (default: %(default)s)"
    )
    transcribe.add_argument(
        "--stream", action="store_true", help="through the streaming engine instead of the offline decoder"
    )
    transcribe.add_argument(
        "-o", "--output", type=Path, metavar="FILE|DIR", help="where to write (default: standard output)"
    )
    add_flags(transcribe, *_MODEL_FLAGS)
    add_decoding_flags(transcribe, streaming=False)


def _transcribe(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.transcribe import transcribe_files

    return transcribe_files(settings, args.files, format=args.format, streaming=args.stream, output=args.output)


def _add_listen(add: _Add) -> None:
    listen = add(
        "listen",
        "print what a running daemon publishes",
        "Follows a running daemon's captions, across interruptions, until it ends.",
        _listen,
    )
    _add_daemon_flags(listen, "url", nargs="?")
    listen.add_argument(
        "--format", choices=LISTEN_FORMATS, help="what to write (default: captions in a terminal, else text)"
    )


def _listen(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.listen import listen

    return listen(settings, args.url, token=args.token, format=args.format)


def _add_chat(add: _Add) -> None:
    chat = add(
        "chat",
        "talk to a chatbot through a running daemon",
        "Sends each final text of a running daemon to an OpenAI-compatible chat endpoint and prints the replies.",
        _chat,
    )
    add_flags(chat, "chat.url", "chat.model", "chat.system")
    _add_daemon_flags(chat, "--daemon")


def _chat(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.chat import chat

    return chat(settings, args.daemon, token=args.token)


def _add_daemon_flags(parser: _Parser, name: str, nargs: str | None = None) -> None:
    where = "the daemon, HOST:PORT or ws://... (default: the port of the settings, on this machine)"
    parser.add_argument(name, nargs=nargs, metavar="URL", help=where)
    parser.add_argument("--token", default="", metavar="T", help="what the daemon asks its clients for")


def _add_config(add: _Add) -> None:
    show = add(
        "show",
        "each setting, and where it comes from",
        "Prints each setting as config.yaml has it, and whether it is a default or comes from the file, an environment"
        " variable or a flag. Tokens and keys are masked.",
        _config_show,
    )
    add_flags(show, *_RUN_FLAGS, *_MODEL_FLAGS)
    add_decoding_flags(show, streaming=False)
    init = add(
        "init",
        "write a configuration file with all defaults",
        "Writes a configuration file with all defaults, each explained, and prints where it is.",
        _config_init,
    )
    init.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to write (default: the user's configuration directory)"
    )
    init.add_argument("--force", action="store_true", help="replace FILE where it is there")
    add(
        "schema",
        "the JSON Schema of the configuration file",
        "Prints the JSON Schema of the configuration file, by which editors complete and check it.",
        _config_schema,
    )


def _config_show(args: argparse.Namespace) -> int:
    _settings(args)
    from streamer.commands.config import show

    return show(args.config, _overrides(args))


def _config_init(args: argparse.Namespace) -> int:
    from streamer.commands.config import init

    return init(args.output, force=args.force)


def _config_schema(args: argparse.Namespace) -> int:
    from streamer.commands.config import print_schema

    return print_schema()


def _add_models(add: _Add) -> None:
    add(
        "list",
        "what is here, and what can be fetched",
        "Lists the models that are here, and names of models that can be fetched.",
        _models_list,
    )
    pull = add(
        "pull",
        "fetch a model from the Hugging Face Hub",
        "Fetches a model from the Hugging Face Hub, verifies it, and keeps it for use without network."
        " HF_TOKEN, HF_ENDPOINT and HF_HOME are heeded.",
        _models_pull,
    )
    pull.add_argument("name", metavar="NAME", help="a short name such as base.en, or OWNER/REPOSITORY")
    convert = add(
        "convert",
        "build and save the static graphs of a checkpoint",
        "Builds the static graphs of a checkpoint in any format, compresses their weights if asked to, and saves them"
        " in a directory that --model takes.",
        _models_convert,
    )
    convert.add_argument("source", metavar="NAME|PATH", help="a model's name, directory or file")
    convert.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory to make")
    convert.add_argument(
        "--weights",
        default="f16",
        metavar="P",
        help="f32, f16, int8 or int4, or one a stage: encoder=f16,cross_kv=f16,decoder=int8 (default: %(default)s)",
    )
    convert.add_argument("--encoder-only", action="store_true", help="save just the encoder, to serve it elsewhere")
    convert.add_argument("--force", action="store_true", help="replace DIR where it is there")
    convert.add_argument(
        "--find-heads", action="store_true", help="find the heads that words are timed by, on the shipped sample"
    )
    convert.add_argument("--no-report", action="store_true", help="do not measure the drift against float32")
    add_flags(convert, "model.tokenizer")
    verify = add(
        "verify",
        "check a model on its devices, and say what was found",
        "Checks a model's files, its compiled graphs and their results on the devices they would run on, and prints"
        " what was found, what was expected, and a verdict. The exit code is 1 where a check did not pass.",
        _models_verify,
    )
    verify.add_argument("model.name", metavar="NAME|PATH", nargs="?", help="a model's name, directory or file")
    add_flags(verify, *_MODEL_FLAGS[1:])


def _models_list(args: argparse.Namespace) -> int:
    _settings(args)
    from streamer.commands.pull import list_models

    return list_models(make_console())


def _models_pull(args: argparse.Namespace) -> int:
    _settings(args)
    from streamer.commands.pull import pull

    return pull(args.name, make_console())


def _models_convert(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.convert import convert_model

    end_on_sigterm()
    return convert_model(
        args.source,
        args.output,
        weights=args.weights,
        tokenizer=settings.model.tokenizer,
        encoder_only=args.encoder_only,
        report=not args.no_report,
        force=args.force,
        measure_heads=args.find_heads,
        console=make_console(),
    )


def _models_verify(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.verify import verify

    return verify(settings.model, make_console())


def _add_devices(add: _Add) -> None:
    devices = add(
        "devices",
        "list inference devices and microphones",
        "Lists what can compute, what each stage of the model would use, and what can hear.",
        _devices,
    )
    add_flags(devices, *_DEVICE_FLAGS)


def _devices(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.devices import show_devices

    return show_devices(settings, make_console())


def _add_doctor(add: _Add) -> None:
    doctor = add(
        "doctor",
        "look for what is wrong with this machine's set-up",
        "Checks drivers, libraries, permissions, sound, the model and the port, and says how to mend what is wrong."
        " The exit code is 1 where something is.",
        _doctor,
    )
    add_flags(doctor, *_MODEL_FLAGS)


def _doctor(args: argparse.Namespace) -> int:
    refusal = None
    try:
        settings = _settings(args)
    except ConfigError as error:
        settings, refusal = Settings(), error
    from streamer.commands.doctor import diagnose

    return diagnose(settings, make_console(), config=args.config, refusal=refusal)


def _add_bench(add: _Add) -> None:
    bench = add(
        "bench",
        "measure delay, flicker and cost on this machine",
        "Plays recordings at real-time pace as the daemon would hear them, and prints how soon words are seen and"
        " stable, how many are taken back, what it costs, and how many sessions this machine would keep. Where the"
        " text of FILE.flac stands in FILE.txt, words that are wrong are counted too.",
        _bench,
    )
    bench.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="recording (default: the sample that comes with nano.en)"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file as well")
    add_flags(bench, *_MODEL_FLAGS)
    add_decoding_flags(bench, streaming=True)


def _bench(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.bench import bench

    end_on_sigterm()
    return bench(settings, args.files, json_path=args.json, console=make_console())


class _StderrHandler(logging.Handler):
    """Writes to what standard error is at that moment: while captions are drawn, rich puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201
        except Exception:  # noqa: BLE001 - logging must not stop what it tells of
            self.handleError(record)


def _configure_logging(level: str) -> None:
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    # Others only when something is wrong: their debug lines hold headers, and so tokens and keys.
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("streamer").setLevel(level.upper())


def _failed(message: str, exit_code: int, *, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    line = " ".join(message.split())
    with contextlib.suppress(OSError):
        # The name of somebody else's file may hold what a terminal would obey.
        notice(f"error: {''.join(char if char.isprintable() else '?' for char in line)}")
    return exit_code


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what ended the command: also where a library's C code made another error of it.

    An error that comes while the command cleans up has it for its context, not its cause, and is told as itself.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _is_broken_pipe(error: BaseException) -> bool:
    if isinstance(error, BrokenPipeError):
        return True
    # Windows says "invalid argument" of a pipe whose reader has gone.
    return os.name == "nt" and isinstance(error, OSError) and error.errno == errno.EINVAL


def _leave_pipe() -> int:
    """Leave quietly where the reader has had enough, as `head` has."""
    with contextlib.suppress(OSError, ValueError):
        # Python flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _prepare_streams() -> None:
    """Write UTF-8 into pipes and files everywhere, and never fail for a character that a terminal lacks.

    Where standard output or standard error is closed, what is written there is dropped.
    """
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w", encoding="utf-8") for stream in (sys.stdout, sys.stderr))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
