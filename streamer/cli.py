"""The command line: flags, logging, exit codes.

What a command needs is imported when it runs, so that `--help` and a slip in a flag answer at once.
"""

import argparse
import asyncio
import contextlib
import difflib
import errno
import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from streamer import __version__
from streamer.errors import ConfigError, StreamerError, UsageError
from streamer.settings.flags import add_decoding_flags
from streamer.settings.table import Settings, all_settings, load_settings

if TYPE_CHECKING:
    from rich.console import Console

    from streamer.client.captions import DaemonAddress
    from streamer.sinks.base import Sink

logger = logging.getLogger(__name__)

TRANSCRIPT_FORMATS = ("text", "json", "jsonl", "srt", "vtt", "tsv", "lrc")
LISTEN_FORMATS = ("text", "jsonl", "srt", "vtt", "lrc", "captions")

# Commands that run until they are stopped.
_ENDLESS_COMMANDS = ("run", "listen", "chat")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    _speak_utf8(sys.stdout)
    _speak_utf8(sys.stderr)
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
    commands: argparse._SubParsersAction[_Parser] = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True
    )

    def add(
        name: str,
        summary: str,
        description: str,
        run: Callable[[argparse.Namespace], int],
        among: "argparse._SubParsersAction[_Parser]" = commands,
    ) -> _Parser:
        command = among.add_parser(name, help=summary, description=description, parents=[common], allow_abbrev=False)
        command.set_defaults(run_command=run, parser=command)
        command.add_argument("--config", type=Path, metavar="FILE", help="configuration file")
        return command

    run = add(
        "run",
        "the daemon: captions what it hears, for all who connect",
        "Listens, transcribes, and publishes captions on one port: a page for browsers, WebSockets for programs."
        " Ends with Ctrl-C.",
        _run,
    )
    _setting(run, "--input", "input.source", "mic|FILE|-|none", "where the audio comes from")
    _setting(run, "--fallback", "input.fallback", "FILE", "file played where there is no microphone")
    _setting(run, "--microphone", "input.microphone", "NAME", "part of the microphone's name, or its number")
    _setting(run, "--speed", "input.speed", "X", "pace of a file; 1 is real time, 0 as fast as it can")
    run.add_argument(
        "--exit-at-end",
        action="store_const",
        const=True,
        dest="input.exit_at_end",
        help="leave when the file has ended",
    )
    _setting(run, "--host", "server.host", "H", "address to listen on")
    _setting(run, "--port", "server.port", "N", "port to listen on; 0 picks a free one")
    _setting(run, "--token", "server.token", "T", "what clients must show")
    _model_flags(run)
    add_decoding_flags(run, streaming=True)
    run.add_argument("--no-captions", action="store_true", help="do not draw captions in the terminal")

    transcribe = add(
        "transcribe",
        "files to text, without a server",
        "Transcribes audio files (wav, flac, ogg, mp3).",
        _transcribe,
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
    _model_flags(transcribe)
    add_decoding_flags(transcribe, streaming=False)

    listen = add(
        "listen",
        "print what a running daemon publishes",
        "Follows a running daemon's captions, across interruptions, until it ends.",
        _listen,
    )
    listen.add_argument("url", nargs="?", metavar="URL", help=f"the daemon, HOST:PORT or ws://... ({_where_default()})")
    listen.add_argument(
        "--format", choices=LISTEN_FORMATS, help="what to write (default: captions in a terminal, else text)"
    )
    listen.add_argument("--token", default="", metavar="T", help="what the daemon asks its clients for")

    chat = add(
        "chat",
        "talk to a chatbot through a running daemon",
        "Sends each final text of a running daemon to an OpenAI-compatible chat endpoint and prints the replies.",
        _chat,
    )
    _setting(chat, "--to", "chat.url", "URL", "the endpoint, up to and including /v1")
    _setting(chat, "--model", "chat.model", "M", "name of the model there")
    _setting(chat, "--system", "chat.system", "S", "what the model is told first")
    chat.add_argument("--daemon", metavar="URL", help=f"the daemon, HOST:PORT or ws://... ({_where_default()})")
    chat.add_argument("--token", default="", metavar="T", help="what the daemon asks its clients for")

    models = commands.add_parser(
        "models",
        help="list, fetch, convert and verify models",
        description="Lists, fetches, converts and verifies Whisper models.",
        allow_abbrev=False,
    )
    actions: argparse._SubParsersAction[_Parser] = models.add_subparsers(dest="action", metavar="ACTION", required=True)
    add(
        "list",
        "what is here, and what can be fetched",
        "Lists the models that are here, and names of models that can be fetched.",
        _models_list,
        actions,
    )
    pull = add(
        "pull",
        "fetch a model from the Hugging Face Hub",
        "Fetches a model from the Hugging Face Hub, verifies it, and keeps it for use without network."
        " HF_TOKEN, HF_ENDPOINT and HF_HOME are heeded.",
        _models_pull,
        actions,
    )
    pull.add_argument("name", metavar="NAME", help="a short name such as base.en, or OWNER/REPOSITORY")
    convert = add(
        "convert",
        "build and save the static graphs of a checkpoint",
        "Builds the static graphs of a checkpoint in any format, compresses their weights if asked to, and saves them"
        " in a directory that --model takes.",
        _models_convert,
        actions,
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
    _tokenizer_flag(convert)
    verify = add(
        "verify",
        "check a model on its devices, and say what was found",
        "Checks a model's files, its compiled graphs and their results on the devices they would run on, and prints"
        " what was found, what was expected, and a verdict. The exit code is 1 where a check did not pass.",
        _models_verify,
        actions,
    )
    verify.add_argument("model.name", metavar="NAME|PATH", nargs="?", help="a model's name, directory or file")
    _windows_flag(verify)
    _device_flags(verify)
    _tokenizer_flag(verify)

    devices = add(
        "devices",
        "list inference devices and microphones",
        "Lists what can compute, what each stage of the model would use, and what can hear.",
        _devices,
    )
    _device_flags(devices)
    doctor = add(
        "doctor",
        "look for what is wrong with this machine's set-up",
        "Checks drivers, libraries, permissions, sound, the model and the port, and says how to mend what is wrong."
        " The exit code is 1 where something is.",
        _doctor,
    )
    _model_flags(doctor)
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
    _model_flags(bench)
    add_decoding_flags(bench, streaming=True)
    return parser


def _model_flags(parser: argparse.ArgumentParser) -> None:
    _setting(parser, "--model", "model.name", "NAME|PATH", "which Whisper: a name, a directory or a file")
    _tokenizer_flag(parser)
    _windows_flag(parser)
    _device_flags(parser)


def _device_flags(parser: argparse.ArgumentParser) -> None:
    _setting(parser, "--device", "model.device", "NPU|GPU|CPU|AUTO", "where it computes", to=str.upper)
    for stage, part in (("encoder", "encoder"), ("cross_kv", "cross-KV"), ("decoder", "decoder")):
        flag = f"--{stage.replace('_', '-')}-device"
        _setting(parser, flag, f"model.{stage}_device", "D", f"where the {part} computes, if elsewhere", to=str.upper)


def _windows_flag(parser: argparse.ArgumentParser) -> None:
    _setting(parser, "--windows", "model.windows_s", "S,S", "windows of live captions besides 30 s, such as 5,10")


def _tokenizer_flag(parser: argparse.ArgumentParser) -> None:
    _setting(
        parser,
        "--tokenizer",
        "model.tokenizer",
        "FILE",
        "tokenizer of a checkpoint that has none, such as tokenizer.json",
    )


def _setting(
    parser: argparse.ArgumentParser, flag: str, name: str, metavar: str, help: str, to: Callable[[str], str] = str
) -> None:
    """Add a flag for a setting. Its text is checked with all other settings, so that ranges stand in one place."""
    default = all_settings()[name].default
    shown = "" if default in ("", ()) else f" (default: {default})".replace("%", "%%")
    parser.add_argument(flag, dest=name, type=to, metavar=metavar, help=help + shown)


def _where_default() -> str:
    return "default: the port of the settings, on this machine"


def _settings(args: argparse.Namespace) -> Settings:
    """Load the settings and begin to log as they say."""
    known = all_settings()
    overrides = {name: value for name, value in vars(args).items() if name in known and value is not None}
    flags = {name: "--" + ("to" if name == "chat.url" else _flag_of(name)) for name in overrides}
    if args.debug:
        overrides["log.level"] = "debug"
    settings = load_settings(args.config, os.environ, overrides, flags=flags)
    _configure_logging(settings.log.level)
    return settings


def _flag_of(name: str) -> str:
    flags = {"input.source": "input", "model.name": "model", "model.windows_s": "windows"}
    return flags.get(name, name.partition(".")[2].replace("_", "-"))


def _run(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer import app

    return app.run(settings, captions=not args.no_captions)


def _transcribe(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.transcribe import transcribe_files

    return transcribe_files(settings, args.files, format=args.format, streaming=args.stream, output=args.output)


def _listen(args: argparse.Namespace) -> int:
    settings = _settings(args)
    address = _daemon_address(args.url, args.token, settings)
    format = args.format or ("captions" if sys.stdout.isatty() else "text")
    if format == "captions":
        from streamer.sinks.terminal import TerminalSink

        sink: Sink = TerminalSink(_console())
    else:
        from streamer.sinks.subtitles import open_writer

        sink = open_writer(format, sys.stdout)
    shown = format == "jsonl" or (format == "captions" and sys.stdout.isatty())
    _end_on_sigterm()
    try:
        asyncio.run(_follow(address, sink, tell_trouble=not shown))
    finally:
        with contextlib.suppress(OSError):  # whoever read the pipe may have gone
            sink.close()
    return 0


async def _follow(address: "DaemonAddress", sink: "Sink", *, tell_trouble: bool) -> None:
    """Give a daemon's events to a sink; what the sink does not show of trouble is logged."""
    from streamer.client.captions import captions
    from streamer.events import Error, Gap

    async with contextlib.aclosing(captions(address, on_notice=_notice)) as events:
        async for event in events:
            if tell_trouble and isinstance(event, Gap):
                logger.warning("%.1f s to %.1f s not heard: %s", event.start, event.end, event.reason)
            elif tell_trouble and isinstance(event, Error):
                logger.warning("%s: %s", event.code, " ".join(event.message.split()))
            sink.handle(event)


def _chat(args: argparse.Namespace) -> int:
    settings = _settings(args)
    if not settings.chat.url:
        raise UsageError(
            "no chat endpoint is named: give --to http://HOST:PORT/v1, or set chat.url in the configuration file"
        )
    address = _daemon_address(args.daemon, args.token, settings)
    _end_on_sigterm()
    asyncio.run(_converse(address, settings))
    return 0


async def _converse(address: "DaemonAddress", settings: Settings) -> None:
    from streamer.sinks.chatbot import Chatbot, Conversation

    chat = settings.chat
    printer = _ChatPrinter(_console())
    conversation = Conversation(
        chat.url,
        model=chat.model,
        system=chat.system,
        api_key=chat.api_key,
        timeout_s=chat.timeout_s,
        history_turns=chat.history_turns,
    )
    bot = Chatbot(
        conversation,
        on_question=printer.question,
        on_piece=printer.piece,
        on_end=printer.end,
        on_error=printer.error,
    )
    async with conversation:
        following = asyncio.create_task(_follow(address, bot, tell_trouble=True))
        following.add_done_callback(lambda _: bot.close())
        try:
            await bot.run()
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            printer.end()


class _ChatPrinter:
    """Prints a conversation as it goes."""

    def __init__(self, console: "Console") -> None:
        self._console = console

        # Whether a line has been begun and not ended.
        self._in_line = False

    def question(self, text: str) -> None:
        self._print("you: ", "bold cyan")
        self._print(text + "\n")
        self._print("bot: ", "bold green")
        self._in_line = True

    def piece(self, text: str) -> None:
        self._print("".join(char if char.isprintable() or char == "\n" else " " for char in text))

    def end(self) -> None:
        if self._in_line:
            self._in_line = False
            self._print("\n")

    def error(self, error: StreamerError) -> None:
        self.end()
        _notice(f"error: {error}")

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(text, style), end="", soft_wrap=True)
        self._console.file.flush()


def _models_list(args: argparse.Namespace) -> int:
    _settings(args)
    from streamer.commands.pull import list_models

    return list_models(_console())


def _models_pull(args: argparse.Namespace) -> int:
    _settings(args)
    from streamer.commands.pull import pull

    return pull(args.name, _console())


def _models_convert(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.convert import convert_model

    _end_on_sigterm()
    return convert_model(
        args.source,
        args.output,
        weights=args.weights,
        tokenizer=settings.model.tokenizer,
        encoder_only=args.encoder_only,
        report=not args.no_report,
        force=args.force,
        measure_heads=args.find_heads,
        console=_console(),
    )


def _models_verify(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.verify import verify

    return verify(settings.model, _console())


def _devices(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.devices import show_devices

    return show_devices(settings, _console())


def _doctor(args: argparse.Namespace) -> int:
    refusal = None
    try:
        settings = _settings(args)
    except ConfigError as error:
        settings, refusal = Settings(), error
    from streamer.commands.doctor import diagnose

    return diagnose(settings, _console(), config=args.config, refusal=refusal)


def _bench(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from streamer.commands.bench import bench

    _end_on_sigterm()
    return bench(settings, args.files, json_path=args.json, console=_console())


def _daemon_address(url: str | None, token: str, settings: Settings) -> "DaemonAddress":
    from streamer.client.captions import DEFAULT_PORT, parse_address

    if url:
        return parse_address(url, token)  # the token of the settings is for our own daemon, not for any other
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host)  # noqa: S104
    place = f"[{host}]" if ":" in host else host
    return parse_address(f"{place}:{settings.server.port or DEFAULT_PORT}", token or settings.server.token)


def _console() -> "Console":
    from rich.console import Console

    class _PipeConsole(Console):
        """A console that leaves a broken pipe to main(), which knows the exit code."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    # A pipe has no width; 80 columns would fold what a script wants on one line.
    return _PipeConsole() if sys.stdout.isatty() else _PipeConsole(width=200)


def _end_on_sigterm() -> None:
    """Let SIGTERM end a command as Ctrl-C does: quietly, with what was written complete."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


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


def _notice(message: str) -> None:
    print(f"streamer: {message}", file=sys.stderr, flush=True)  # noqa: T201


def _failed(message: str, exit_code: int, *, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    line = " ".join(message.split())
    with contextlib.suppress(OSError):
        # The name of somebody else's file may hold what a terminal would obey.
        _notice(f"error: {''.join(char if char.isprintable() else '?' for char in line)}")
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


def _speak_utf8(stream: TextIO) -> None:
    """Write UTF-8 into pipes and files everywhere, and never fail for a character that a terminal lacks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
