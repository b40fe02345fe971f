"""The commands as processes: what they print, where, and their exit codes."""

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

import streamer
from streamer.cli import _parse, main, make_parser
from streamer.commands.table import LISTEN_FORMATS, TRANSCRIPT_FORMATS
from streamer.errors import InferenceError, ModelError
from streamer.events import End, Error, Event, Gap, Ready, Revision, Speech
from streamer.outputs.subtitles import FORMATS
from tests import builders
from tests.builders import timed_words
from tests.chat_endpoint import Reply, chat_endpoint, message, saying
from tests.daemon import Outcome, environment
from tests.daemon import command as run_command
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]


def only_error(outcome: Outcome) -> str:
    """Return the error, which must be the one line that was printed."""
    assert (outcome.stdout, outcome.stderr.count("\n"), outcome.stderr[-1]) == ("", 1, "\n"), outcome
    return outcome.error()


@contextlib.asynccontextmanager
async def spawned(*args: str, environ: Mapping[str, str] | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs beside the test, which serves it."""
    process = await asyncio.create_subprocess_exec(
        *args,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(environ),
    )
    try:
        async with asyncio.timeout(WAIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def started(
    *args: str, environ: Mapping[str, str] | None = None
) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Start a command that runs beside the test."""
    return spawned(sys.executable, "-m", "streamer", *args, environ=environ)


async def outcome(*args: str, environ: Mapping[str, str] | None = None) -> Outcome:
    async with started(*args, environ=environ) as process:
        stdout, stderr = await process.communicate()
        assert process.returncode is not None
        return Outcome(process.returncode, stdout.decode(), stderr.decode())


READY = Ready(model="m", device={}, sample_rate=16000, language="en").stamped(1, "s")


def final(seq: int, text: str) -> Event:
    spoken = timed_words((text, seq / 2, seq / 2 + 0.5)) if text else ()
    return builders.final(text, start=seq / 2, segment=seq, words=spoken, seq=seq, session="s")


@contextlib.asynccontextmanager
async def daemon(
    *connections: list[Event] | str, shown: list[str | None] | None = None
) -> AsyncIterator[tuple[str, list[str]]]:
    """A daemon that publishes these events in its nth connection.

    It closes with 1000 after `end`, vanishes without, and stays open after a connection "open". What each connection
    has for an Authorization header goes into `shown`.
    """
    paths: list[str] = []
    waiting = list(connections)

    async def publish(connection: ServerConnection) -> None:
        assert connection.request is not None
        paths.append(connection.request.path)
        if shown is not None:
            shown.append(connection.request.headers.get("Authorization"))
        script = waiting.pop(0)
        if isinstance(script, str):
            await connection.send(script)
            await connection.wait_closed()
            return
        for event in script:
            await connection.send(event.to_json())
        if script and isinstance(script[-1], Error):
            await connection.wait_closed()
        elif not script or not isinstance(script[-1], End):
            connection.transport.abort()

    async with serve(publish, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", paths


SPEECH = Speech(state="start", time=0.0).stamped(1, "s")
END = End().stamped(9, "s")
STAY = Error(code="busy", message="stay open", fatal=False).stamped(8, "s")


def test_version(run_here: Run) -> None:
    assert run_here("--version").stdout == f"streamer {streamer.__version__}\n"


@pytest.mark.parametrize("command", ["run", "transcribe", "listen", "chat", "devices"])
def test_help_names_every_flag_and_needs_nothing_heavy(command: str) -> None:
    code = f"import sys; from streamer.cli import main\ntry: main([{command!r}, '--help'])\nfinally:\n"
    code += " heavy = {'openvino', 'numpy', 'sounddevice', 'rich', 'httpx', 'websockets'} & set(sys.modules)\n"
    code += " assert not heavy, heavy"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--config FILE" in done.stdout
    assert "--debug" in done.stdout


def test_each_help_ends_with_an_example_that_can_be_parsed() -> None:
    def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from commands(command)

    for command in commands(make_parser()):
        *_, before, example = command.format_help().splitlines()
        assert (before, example[:9]) == ("", "example: ")
        assert f"{example[9:]} ".startswith(f"{command.prog} ")
        assert len(example) < 80
        assert _parse(shlex.split(example)[2:]).run_command


def test_defaults_are_shown(run_here: Run) -> None:
    text = " ".join(run_here("run", "--help").stdout.split())
    for default in ("default: 8765)", "(default: 127.0.0.1)", "(default: mic)", "(default: AUTO)", "default: 1.0)"):
        assert default in text


def test_the_formats_are_the_writers() -> None:
    assert TRANSCRIPT_FORMATS == FORMATS
    assert set(LISTEN_FORMATS) - set(FORMATS) == {"captions"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "COMMAND"),
        (["runn"], "did you mean run?"),
        (["run", "--prot", "1"], "--prot; did you mean --port?"),
        (["run", "--por", "1"], "did you mean --port?"),
        (["run", "extra"], "unrecognized argument: extra"),
        (["transcribe"], "FILE"),
        (["transcribe", "a.wav", "--format", "srtt"], "did you mean srt?"),
        (["listen", "--format", "tsv"], "'tsv'"),
        (["--debug"], "COMMAND"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_was_meant(run_here: Run, args: list[str], words: str) -> None:
    done = run_here(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "--port", "99999"], "--port is 99999: expected a whole number from 0 to 65535"),
        (["run", "--port", "http"], "--port is 'http'"),
        (["run", "--speed", "-1"], "--speed is -1.0"),
        (["run", "--device", "tpu"], "--device is 'TPU': expected one of AUTO, NPU, GPU, CPU"),
        (["transcribe", "a.wav", "--task", "transalte"], "the nearest is translate"),
        (["listen", "--config", "missing.yaml"], "missing.yaml does not exist"),
        (["chat"], "--to"),
        (["chat", "--to", "h:1/v1"], "expected http://HOST:PORT/v1"),
        (["listen", "ftp://h"], "expected HOST:PORT"),
        (["listen", "--format", "srt", "--corrections"], "--corrections is about captions, and --format is srt"),
        (["devices", "--config", "bad.yaml"], "bad.yaml:2: there is no setting 'server.prot'"),
    ],
)
def test_a_wrong_setting_exits_2_with_one_line(
    run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("server:\n  prot: 1\n", encoding="utf-8")
    done = run_here(*args)
    assert done.exit_code == 2
    assert words in only_error(done)


@pytest.mark.parametrize("args", [["--debug", "chat"], ["chat", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(run_here: Run, args: list[str]) -> None:
    done = run_here(*args)
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("streamer: error: ")


def test_an_unexpected_exception_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a\nbug")

    monkeypatch.setattr("streamer.commands.devices.list_devices", fail)
    assert main(["devices"]) == 1
    assert capsys.readouterr().err == (
        "streamer: error: unexpected LookupError: a bug; run the command again with --debug for the traceback\n"
    )
    assert main(["devices", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("raised", [SystemError("returned a result with an exception set"), ModelError("broken")])
def test_ctrl_c_is_reported_even_if_a_library_makes_another_error_of_it(
    raised: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_inside_a_library(*_: object) -> None:
        raise raised from KeyboardInterrupt()

    monkeypatch.setattr("streamer.commands.devices.show_devices", interrupted_inside_a_library)
    assert main(["devices"]) == 1
    assert capsys.readouterr().err == "streamer: error: interrupted\n"


def test_what_fails_after_ctrl_c_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_and_not_written(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise InferenceError("the device is gone")

    monkeypatch.setattr("streamer.commands.devices.show_devices", interrupted_and_not_written)
    assert main(["devices"]) == 1
    assert capsys.readouterr().err == "streamer: error: the device is gone\n"


def in_shell(line: str) -> Outcome:
    """Run a line of a POSIX shell, with Python as `$0`."""
    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_S,
        env=environment(),
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(os.name == "nt", reason="the shell is POSIX's")
@pytest.mark.parametrize("command", ["run --port 0 --input -", "transcribe -"])
def test_standard_input_that_is_closed_is_one_line(command: str) -> None:
    done = in_shell(f'"$0" -m streamer {command} <&-')
    assert only_error(done) == (
        "streamer: error: standard input is closed: expected audio on it; pipe it into the command, or name a file"
        " instead of -"
    )
    assert done.exit_code == 2


@pytest.mark.skipif(os.name == "nt", reason="the shell is POSIX's")
def test_standard_output_that_is_closed_is_no_error() -> None:
    assert in_shell('"$0" -m streamer config show >&-') == Outcome(0, "", "")


def test_devices_lists_inference_devices_stages_and_microphones(run_here: Run) -> None:
    done = run_here("devices")
    assert done.exit_code == 0, done.stderr
    for word in ("CPU", "encoder", "cross_kv", "decoder", "AUTO", "Microphones"):
        assert word in done.stdout


async def test_listen_prints_finals_and_ends_with_the_daemon() -> None:
    async with daemon([READY, final(2, " One."), final(3, ""), final(4, " Zwölf — 字."), END]) as (address, _):
        assert await outcome("listen", address) == Outcome(0, "One.\nZwölf — 字.\n", "")


async def test_listen_writes_the_other_formats() -> None:
    events = [READY, final(2, " One."), END]
    corrected = [*events[:2], Revision(of=2, by="glossary", text="Won.", words=(), edits=()).stamped(3, "s"), END]
    async with daemon(events, events, events, events, corrected) as (address, _):
        assert (await outcome("listen", address, "--format", "srt", "--subtitle-style", "whisper")).stdout == (
            "1\n00:00:01,000 --> 00:00:01,500\nOne.\n\n"
        )
        assert (await outcome("listen", address, "--format", "vtt")).stdout == (
            "WEBVTT\n\n00:00:01.000 --> 00:00:01.700\nOne.\n\n"
        )
        assert (await outcome("listen", address, "--format", "captions")).stdout == "One.\n"
        lines = (await outcome("listen", address, "--format", "jsonl")).stdout.splitlines()
        assert lines == [event.to_json() for event in events]
        assert (await outcome("listen", address, "--corrections")).stdout == "One.\n~ Won.\n"


async def test_listen_comes_back_where_it_was_and_says_so_once() -> None:
    async with daemon([READY, final(2, " One.")], [final(3, " Two."), END]) as (address, paths):
        done = await outcome("listen", address)
    assert done.exit_code == 0
    assert done.stdout == "One.\nTwo.\n"
    assert paths[1].endswith("?after=2&session=s")
    assert [line.partition(address)[2].split()[1:2] for line in done.stderr.splitlines()] == [["went"], ["is"]]


async def test_listen_tells_of_gaps_and_errors_beside_the_text() -> None:
    trouble = [Gap(start=1.0, end=2.0, reason="overrun").stamped(2, "s")]
    async with daemon(
        [READY, *trouble, Error(code="x\x1b[2J", message="a\n\x9bb", fatal=True).stamped(3, "s"), END]
    ) as (
        address,
        _,
    ):
        done = await outcome("listen", address)
    assert done.stdout == ""
    assert "WARNING 1.0 s to 2.0 s are missing: overrun" in done.stderr
    assert "WARNING x [2J: a b" in done.stderr


async def test_listen_without_a_daemon_exits_1_and_says_how_to_start_one() -> None:
    async with daemon() as (address, _):
        pass
    done = await outcome("listen", address)
    assert done.exit_code == 1
    assert "start one with `streamer run`" in only_error(done)


async def test_listen_asks_the_daemon_of_the_settings() -> None:
    async with daemon([READY, END]) as (address, _):
        port = address.rpartition(":")[2]
        environ = {"STREAMER_SERVER_PORT": port, "STREAMER_SERVER_HOST": "0.0.0.0"}
        assert (await outcome("listen", environ=environ)).exit_code == 0


async def test_a_token_comes_from_a_file_or_the_environment_and_one_in_an_address_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("token-of-the-file\n", encoding="utf-8")
    shown: list[str | None] = []
    async with daemon(*4 * [[READY, END]], shown=shown) as (address, _):
        environ = {"STREAMER_TOKEN": "token-of-environment", "STREAMER_SERVER_TOKEN": "token-of-our-own-daemon"}
        assert await outcome("listen", address, "--token-file", str(file), environ=environ) == Outcome(0, "", "")
        assert await outcome("listen", address, environ=environ) == Outcome(0, "", "")
        del environ["STREAMER_TOKEN"]
        assert await outcome("listen", address, environ=environ) == Outcome(0, "", "")  # not for any other daemon
        said = await outcome("listen", f"ws://{address}/?token=of-an-address")
        assert said.exit_code == 0
        (line,) = said.stderr.splitlines()
        assert "--token-file FILE" in line
        assert "of-an" not in line
    known = ("token-of-the-file", "token-of-environment", None, "of-an-address")
    assert shown == [token and f"Bearer {token}" for token in known]


def test_a_token_that_is_too_short_or_not_there_is_one_line(tmp_path: Path) -> None:
    run = ("run", "--port", "0", "--input", "none")
    done = run_command(*run, environ={"STREAMER_SERVER_TOKEN": "hunter2"})
    assert done.exit_code == 2
    assert "16" in only_error(done)
    assert "hunter2" not in done.stderr
    done = run_command(*run, "--token-file", str(tmp_path))
    assert done.exit_code == 2
    assert "token file" in only_error(done)
    done = run_command(*run[:-1], "-", "--token-file", "-")
    assert done.exit_code == 2
    assert "token file - holds no token" in only_error(done)


@pytest.mark.parametrize("command", [("config", "show"), ("run",), ("gateway",), ("listen",), ("chat",)])
def test_no_flag_takes_a_token_and_one_in_the_arguments_is_not_shown(run_here: Run, command: tuple[str, ...]) -> None:
    done = run_here(*command, "--token", "a token in the arguments")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "did you mean --token-file?" in done.stderr
    assert "in the arguments" not in done.stderr


async def test_listen_ends_with_one_line_at_what_is_no_event() -> None:
    async with daemon('{"type":"final","text":7}') as (address, _):
        done = await outcome("listen", address)
    assert done.exit_code == 1
    assert "sent an invalid event" in only_error(done)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to send")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_listen_ends_cleanly(number: signal.Signals) -> None:
    async with daemon([READY, final(2, " One."), STAY]) as (address, _), started("listen", address) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"One.\n"  # flushed at once
        process.send_signal(number)
        stdout, stderr = await process.communicate()
        assert (process.returncode, stdout) == (0, b"")
        assert b"Traceback" not in stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to send")
async def test_sigterm_ends_what_a_shell_started_in_the_background() -> None:
    async with daemon([READY, final(2, " One."), STAY]) as (address, _):
        # As shells do: what runs beside them ignores Ctrl-C.
        ignoring = 'trap "" INT; exec "$0" -m streamer listen "$1"'
        async with spawned("sh", "-c", ignoring, sys.executable, address) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"One.\n"
            process.send_signal(signal.SIGTERM)
            stdout, stderr = await process.communicate()
            assert (process.returncode, stdout) == (0, b"")
            assert b"Traceback" not in stderr


@pytest.mark.skipif(os.name == "nt", reason="names there have no such characters")
def test_a_name_gives_the_terminal_no_orders(tmp_path: Path) -> None:
    directory = tmp_path / "red\x1b[31m\x07"
    directory.mkdir()
    done = run_command("models", "verify", str(directory))
    assert done.exit_code == 2
    assert "red?[31m?" in only_error(done)
    assert done.stderr.removesuffix("\n").isprintable()


@pytest.mark.skipif(os.name == "nt", reason="head belongs to POSIX")
async def test_a_reader_that_has_had_enough_is_no_error() -> None:
    finals = [final(seq, f" Line {seq}.") for seq in range(2, 2000)]
    async with daemon([READY, *finals, End().stamped(5000, "s")]) as (address, _):
        reading = '{ "$0" -m streamer listen "$1"; echo "exit code $?" >&2; } | head -n 1'
        async with spawned("sh", "-c", reading, sys.executable, address) as process:
            assert await process.communicate() == (b"Line 2.\n", b"exit code 0\n")


async def test_chat_prints_the_conversation() -> None:
    async with (
        chat_endpoint(saying("Hello", " there.", "\nTwo lines.\x1b[2J")) as endpoint,
        daemon([READY, SPEECH, final(2, " Hi."), final(3, " Who are you?"), END]) as (address, _),
    ):
        done = await outcome("chat", "--to", endpoint.url, "--daemon", address, "--model", "m", "--system", "Be nice.")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    # On a busy machine the first final alone is a question, which the second interrupts.
    assert endpoint.questions[-1] == "Hi. Who are you?"
    assert done.stdout.endswith("you: Hi. Who are you?\nbot: Hello there.\nTwo lines. [2J\n")
    assert endpoint.bodies[0]["model"] == "m"
    assert endpoint.bodies[0]["messages"][0] == {"role": "system", "content": "Be nice."}


async def test_chat_shows_a_reply_as_it_comes_and_ends_cleanly_when_interrupted() -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        await reply.say("One moment")
        await reply.hang()

    async with (
        chat_endpoint(script) as endpoint,
        daemon([READY, final(2, " Hi."), STAY]) as (address, _),
        started("chat", "--to", endpoint.url, "--daemon", address) as process,
    ):
        assert process.stdout is not None
        assert await process.stdout.readuntil(b"One moment") == b"you: Hi.\nbot: One moment"
        process.send_signal(signal.SIGTERM)
        stdout, stderr = await process.communicate()
        if os.name != "nt":
            assert (process.returncode, stdout) == (0, b"\n")
            assert b"Traceback" not in stderr


async def test_chat_keeps_what_was_said_of_a_reply_that_is_cut_off() -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        await reply.send(message("So far"))
        await reply.cut()

    async with (
        chat_endpoint(script) as endpoint,
        daemon([READY, final(2, " Hi."), END]) as (address, _),
    ):
        done = await outcome("chat", "--to", endpoint.url, "--daemon", address)
    assert done.stdout == "you: Hi.\nbot: So far\n"
    assert "broke off" in done.stderr
    assert done.stderr.count("\n") == 1


async def test_chat_goes_on_without_an_endpoint_and_exits_1_without_a_daemon() -> None:
    async with chat_endpoint() as endpoint, daemon() as (nowhere, _):
        pass
    async with daemon([READY, final(2, " Hi."), END]) as (address, _):
        done = await outcome("chat", "--to", endpoint.url, "--daemon", address)
        assert done.exit_code == 0
        # If it had failed before the end came, it is asked once more.
        assert done.stdout in ("you: Hi.\nbot: \n", "you: Hi.\nbot: \n" * 2)
        assert "start the chat endpoint" in done.stderr.splitlines()[-1]
    done = await outcome("chat", "--to", endpoint.url, "--daemon", nowhere)
    assert done.exit_code == 1
    assert "start one with `streamer run`" in only_error(done)


async def test_the_key_of_the_endpoint_comes_from_the_environment_and_is_in_no_log() -> None:
    async with (
        chat_endpoint(saying("Hello.")) as endpoint,
        daemon([READY, final(2, " Hi."), END]) as (address, _),
    ):
        environ = {"STREAMER_CHAT_API_KEY": "sk-secret"}
        done = await outcome("--debug", "chat", "--to", endpoint.url, "--daemon", address, environ=environ)
    assert done.exit_code == 0
    assert endpoint.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in done.stdout + done.stderr
