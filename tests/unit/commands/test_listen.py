"""`streamer listen` and `streamer chat`: where they look for the daemon, and what they print."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from streamer.commands.listen import daemon_address
from streamer.events import Error, Gap, Revision, Speech
from streamer.settings.table import ServerSettings, Settings
from tests.chat_endpoint import Reply, chat_endpoint, saying
from tests.daemon import Outcome, command, environment
from tests.unit.commands.daemon import END, READY, STAY, publishing, said
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]
posix_only = pytest.mark.skipif(os.name == "nt", reason="shells, signals and head are those of POSIX")


@contextlib.asynccontextmanager
async def spawned(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs beside the test."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        async with asyncio.timeout(WAIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    ("host", "place"), [("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("localhost", "localhost"), ("[::]", "[::1]")]
)
def test_the_daemon_is_where_the_settings_start_it(host: str, place: str) -> None:
    settings = Settings(server=ServerSettings(host=host, port=9000))
    assert daemon_address(None, "", "", settings).url == f"ws://{place}:9000/v1/captions"
    own = Settings(server=ServerSettings(unix_socket="/run/s", token="t" * 16))
    assert daemon_address("unix:///run/s", "", "", own).token == "t" * 16
    assert daemon_address("unix:///run/other", "", "", own).token == ""


def test_finals_are_printed_until_the_daemon_ends(run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with publishing([READY, said(2, " One."), said(3, ""), said(4, " Zwölf — 字."), END]) as daemon:
        monkeypatch.setenv("STREAMER_SERVER_PORT", daemon.address.rpartition(":")[2])
        assert run_here("listen") == Outcome(0, "One.\nZwölf — 字.\n", "")


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (["--format", "srt", "--subtitle-style", "whisper"], "1\n00:00:01,000 --> 00:00:01,500\nOne.\n\n"),
        (["--format", "vtt"], "WEBVTT\n\n00:00:01.000 --> 00:00:01.700\nOne.\n\n"),
        (["--format", "captions"], "One.\n"),
        (["--corrections"], "One.\n~ Won.\n"),
        (["--format", "jsonl"], ""),
    ],
)
def test_other_formats_are_printed(run_here: Run, flags: list[str], printed: str) -> None:
    events = [READY, said(2, " One.")]
    if "--corrections" in flags:
        events.append(Revision(of=2, by="glossary", text="Won.", words=(), edits=()).stamped(3, "s"))
    events.append(END)
    with publishing(events) as daemon:
        lines = "".join(f"{event.to_json()}\n" for event in events)
        assert run_here("listen", daemon.address, *flags) == Outcome(0, printed or lines, "")


def test_a_daemon_that_goes_away_is_followed_where_it_was(run_here: Run) -> None:
    with publishing([READY, said(2, " One.")], [said(3, " Two."), END]) as daemon:
        done = run_here("listen", daemon.address)
    assert (done.exit_code, done.stdout) == (0, "One.\nTwo.\n")
    assert daemon.paths[1].endswith("?after=2&session=s")
    assert len(done.stderr.splitlines()) == 2


def test_gaps_and_errors_are_logged_beside_the_text(run_here: Run) -> None:
    gap, error = Gap(start=1.0, end=2.0, reason="overrun"), Error(code="x\x1b[2J", message="a\n\x9bb", fatal=True)
    events = [READY, gap.stamped(2, "s"), error.stamped(3, "s"), END]
    with publishing(events, events) as daemon:
        done = run_here("listen", daemon.address)
        assert run_here("listen", daemon.address, "--format", "jsonl").stderr == ""
    missing, wrong = done.stderr.splitlines()
    assert ("1.0 s to 2.0 s" in missing, missing.endswith("overrun"), done.stdout) == (True, True, "")
    assert wrong.endswith("WARNING x [2J: a b")


def test_no_daemon_or_one_that_sends_something_else_ends_it_in_one_line(run_here: Run) -> None:
    with publishing('{"type":"final","text":7}') as daemon:
        invalid = run_here("listen", daemon.address)
    gone = run_here("listen", daemon.address)
    for done in (invalid, gone, run_here("chat", "--to", "http://127.0.0.1:9/v1", "--daemon", daemon.address)):
        assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
        assert done.error()


def test_a_token_comes_from_a_file_or_the_environment_and_one_in_an_address_is_warned_of(
    run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("token-of-the-file\n", encoding="utf-8")
    monkeypatch.setenv("STREAMER_TOKEN", "token-of-environment")
    monkeypatch.setenv("STREAMER_SERVER_TOKEN", "token-of-our-own-daemon")
    with publishing(*4 * [[READY, END]]) as daemon:
        assert run_here("listen", daemon.address, "--token-file", tmp_path / "token") == Outcome(0, "", "")
        assert run_here("listen", daemon.address) == Outcome(0, "", "")
        monkeypatch.delenv("STREAMER_TOKEN")
        assert run_here("listen", daemon.address) == Outcome(0, "", "")  # ours is not for any other daemon
        warned = run_here("listen", f"ws://{daemon.address}/?token=of-an-address")
    (line,) = warned.stderr.splitlines()
    assert (warned.exit_code, "--token-file" in line, "of-an" in line) == (0, True, False)
    known = ("token-of-the-file", "token-of-environment", None, "of-an-address")
    assert daemon.authorizations == [token and f"Bearer {token}" for token in known]


@posix_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("background", ["", 'trap "" INT;'])
async def test_an_interrupted_listen_ends_in_order(number: signal.Signals, background: str) -> None:
    # What a shell runs beside it ignores Ctrl-C; SIGTERM ends it all the same.
    number = signal.SIGTERM if background else number
    line = f'{background} exec "$0" -m streamer listen "$1"'
    with publishing([READY, said(2, " One."), STAY]) as daemon:
        async with spawned("sh", "-c", line, sys.executable, daemon.address) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"One.\n"  # flushed at once
            process.send_signal(number)
            stdout, stderr = await process.communicate()
    assert (process.returncode, stdout, b"Traceback" in stderr) == (0, b"", False)


@posix_only
async def test_a_reader_that_has_had_enough_is_no_error() -> None:
    finals = [said(seq, f" Line {seq}.") for seq in range(2, 2000)]
    reading = '{ "$0" -m streamer listen "$1"; echo "exit code $?" >&2; } | head -n 1'
    with publishing([READY, *finals, END]) as daemon:
        async with spawned("sh", "-c", reading, sys.executable, daemon.address) as process:
            assert await process.communicate() == (b"Line 2.\n", b"exit code 0\n")


async def test_chat_prints_the_conversation_and_shows_its_key_to_the_endpoint_alone() -> None:
    speech = Speech(state="start", time=0.0).stamped(1, "s")
    with publishing([READY, speech, said(2, " Hi."), said(3, " Who are you?"), END]) as daemon:
        async with chat_endpoint(saying("Hello", " there.", "\nTwo lines.\x1b[2J")) as endpoint:
            flags = ("--daemon", daemon.address, "--model", "m", "--system", "Be nice.")
            environ = {"STREAMER_CHAT_API_KEY": "sk-secret"}
            line = ("--debug", "chat", "--to", endpoint.url, *flags)
            done = await asyncio.to_thread(command, *line, environ=environ)
    # On a busy machine the first final alone is a question, which the second interrupts.
    assert endpoint.questions[-1] == "Hi. Who are you?"
    assert done.stdout.endswith("you: Hi. Who are you?\nbot: Hello there.\nTwo lines. [2J\n")
    assert endpoint.bodies[0]["model"] == "m"
    assert endpoint.bodies[0]["messages"][0] == {"role": "system", "content": "Be nice."}
    assert endpoint.headers[0]["authorization"] == "Bearer sk-secret"
    assert (done.exit_code, "sk-secret" in done.stdout + done.stderr) == (0, False)


async def test_chat_shows_a_reply_as_it_comes_and_ends_in_order_when_interrupted() -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        await reply.say("One moment")
        await reply.hang()

    with publishing([READY, said(2, " Hi."), STAY]) as daemon:
        async with chat_endpoint(script) as endpoint:
            line = ("chat", "--to", endpoint.url, "--daemon", daemon.address)
            async with spawned(sys.executable, "-m", "streamer", *line) as process:
                assert process.stdout is not None
                assert await process.stdout.readuntil(b"One moment") == b"you: Hi.\nbot: One moment"
                process.send_signal(signal.SIGTERM)
                stdout, stderr = await process.communicate()
    assert os.name == "nt" or (process.returncode, stdout, b"Traceback" in stderr) == (0, b"\n", False)
