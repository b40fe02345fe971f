"""`streamer listen`: where it looks for the daemon, and what it prints; tests/wire/client has how it is followed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from streamer.commands.listen import daemon_address
from streamer.commands.terminal import run_until_interrupted
from streamer.events import End, Error, Event, Gap, Revision
from streamer.settings.table import ServerSettings, Settings
from tests import builders
from tests.daemon import Outcome, environment
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]

READY = builders.ready().stamped(1, "s")
END = End().stamped(9, "s")


def said(seq: int, text: str) -> Event:
    """Return a final of half a second, half of its number after the beginning."""
    spoken = builders.timed_words((text, seq / 2, seq / 2 + 0.5)) if text else ()
    return builders.final(text, start=seq / 2, segment=seq, words=spoken, seq=seq, session="s")


@contextlib.contextmanager
def publishing(*events: Event) -> Iterator[tuple[str, list[str | None]]]:
    """Run a daemon that sends each client these events, and stays open after another than END.

    Yields its address, and what its clients are authorized by.
    """
    authorizations: list[str | None] = []

    def publish(connection: ServerConnection) -> None:
        assert connection.request is not None
        authorizations.append(connection.request.headers.get("Authorization"))
        with contextlib.suppress(ConnectionClosed):  # the client goes
            for event in events:
                connection.send(event.to_json())
            if events[-1] != END:
                connection.recv(WAIT_S)

    with serve(publish, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.socket.getsockname()[1]}", authorizations
        finally:
            server.shutdown()
            thread.join()


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
    with publishing(READY, said(2, " One."), said(3, ""), said(4, " Zwölf — 字."), END) as (address, _):
        monkeypatch.setenv("STREAMER_SERVER_PORT", address.rpartition(":")[2])
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
    with publishing(*events) as (address, _):
        lines = "".join(f"{event.to_json()}\n" for event in events)
        assert run_here("listen", address, *flags) == Outcome(0, printed or lines, "")


def test_gaps_and_errors_are_logged_beside_the_text(run_here: Run) -> None:
    gap, error = Gap(start=1.0, end=2.0, reason="overrun"), Error(code="x\x1b[2J", message="a\n\x9bb", fatal=True)
    events = [READY, gap.stamped(2, "s"), error.stamped(3, "s"), END]
    with publishing(*events) as (address, _):
        done = run_here("listen", address)
        assert run_here("listen", address, "--format", "jsonl").stderr == ""
    missing, wrong = done.stderr.splitlines()
    assert ("1.0 s to 2.0 s" in missing, missing.endswith("overrun"), done.stdout) == (True, True, "")
    assert wrong.endswith("WARNING x [2J: a b")


def test_a_token_comes_from_a_file_or_the_environment_and_one_in_an_address_is_warned_of(
    run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("token-of-the-file\n", encoding="utf-8")
    monkeypatch.setenv("STREAMER_TOKEN", "token-of-environment")
    monkeypatch.setenv("STREAMER_SERVER_TOKEN", "token-of-our-own-daemon")
    with publishing(READY, END) as (address, authorizations):
        assert run_here("listen", address, "--token-file", tmp_path / "token") == Outcome(0, "", "")
        assert run_here("listen", address) == Outcome(0, "", "")
        monkeypatch.delenv("STREAMER_TOKEN")
        assert run_here("listen", address) == Outcome(0, "", "")  # ours is not for any other daemon
        warned = run_here("listen", f"ws://{address}/?token=of-an-address")
    (line,) = warned.stderr.splitlines()
    assert (warned.exit_code, "--token-file" in line, "of-an" in line) == (0, True, False)
    known = ("token-of-the-file", "token-of-environment", None, "of-an-address")
    assert authorizations == [token and f"Bearer {token}" for token in known]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals for one process")
@pytest.mark.parametrize(
    ("number", "before"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_IGN),  # what a shell runs beside it ignores Ctrl-C
    ],
)
def test_an_interrupted_listen_ends_in_order(number: signal.Signals, before: Any) -> None:  # noqa: ANN401
    signal.signal(signal.SIGINT, before)
    with publishing(READY, said(2, " One.")) as (address, _):
        line = [sys.executable, "-m", "streamer", "listen", address]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"One.\n"  # flushed at once
            process.send_signal(number)
            stdout, stderr = process.communicate()
    assert (process.returncode, stdout, b"Traceback" in stderr) == (0, b"", False)


@pytest.mark.skipif(os.name == "nt", reason="its loop is always told of signals")
def test_a_loop_that_waits_is_woken_by_a_signal_whichever_thread_gets_it() -> None:
    found = []

    async def look() -> None:
        found.append(signal.set_wakeup_fd(-1))
        signal.set_wakeup_fd(found[0])

    run_until_interrupted(look())
    assert found != [-1]
