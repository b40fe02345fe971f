"""A daemon that nobody uses: its model leaves memory, and comes back without a word lost."""

import asyncio
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from streamer.events import Error, Final, Gap, from_json
from tests.daemon import (
    SAMPLE,
    WAIT_S,
    Daemon,
    Received,
    connected,
    environment,
    pause_after,
    recording,
    running,
    sample_text,
    send_audio,
    transcribe,
)
from tests.promises import transcript
from tests.waiting import wait_until
from tests.wer import wer

END_S = pause_after(1)
AUDIO = recording(SAMPLE, 0.0, END_S)
AWAY = r"left memory after \S+ s without a session: \d+ MB instead of \d+"
IDLE = ("--input", "none", "--unload-after", "0.5")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    return Path(
        shutil.copytree(SAMPLE.parent, tmp_path / "model", ignore=shutil.ignore_patterns("sample.*", "vocab.json"))
    )


def check_text(received: Received) -> None:
    """Check that nothing is missing, from the first words on."""
    text = transcript(received.of(Final))
    assert text.startswith("The Commission regards ")
    assert wer(sample_text(0.0, END_S), text) < 0.4, text


def wait_away(daemon: Daemon, n_times: int = 1) -> None:
    wait_until(lambda: len(re.findall(AWAY, daemon.stderr)) >= n_times)


def shown(daemon: Daemon) -> tuple[str, str, str, bool]:
    """Return what health, metrics and the list of models say of the model."""
    health = daemon.health()
    (metric,) = re.findall(r"^streamer_model_loaded (\S+)$", daemon.get("/metrics")[1], re.MULTILINE)
    return (
        health["status"],
        health["model_state"],
        metric,
        '"loaded":true' in daemon.get("/v1/models")[1].replace(" ", ""),
    )


async def both(daemon: Daemon) -> list[Received]:
    return list(await asyncio.gather(*(transcribe(daemon, AUDIO, speed=4.0) for _ in range(2))))


def test_the_model_leaves_memory_and_comes_back_for_two_clients_at_once() -> None:
    with running(*IDLE) as daemon:
        asyncio.run(transcribe(daemon, AUDIO, speed=4.0))
        wait_away(daemon)
        assert shown(daemon) == ("ok", "unloaded", "0.0", False)
        for received in asyncio.run(both(daemon)):
            assert received.of(Gap, Error) == []
            check_text(received)
        assert daemon.stderr.count("is loaded again") == 1
        wait_away(daemon, 2)
        assert daemon.stop().exit_code == 0


def test_a_model_that_is_gone_is_an_error_and_a_gap_and_text_follows_when_it_is_back(model: Path) -> None:
    async def talk(daemon: Daemon) -> Received:
        async with connected(daemon.address("/v1/stream")) as (connection, received):
            await send_audio(connection, AUDIO, speed=4.0)
            await received.wait_for(Error)
            assert daemon.get("/healthz")[0] == 503
            away.rename(model)
            await connection.send('{"type":"finish"}')
            await received.wait_closed()
            return received

    with running(*IDLE, "--model", str(model)) as daemon:
        wait_away(daemon)
        away = model.rename(model.with_name("away"))
        received = asyncio.run(talk(daemon))
        (error,) = received.of(Error)
        assert str(model) in error.message
        assert "\n" not in error.message
        assert not error.fatal
        assert {gap.reason for gap in received.of(Gap)} == {"device"}
        assert transcript(received.of(Final)).endswith("danger.")
        assert "Traceback" not in daemon.stderr


# Passes the socket with the number in its first argument as a service manager does, and becomes the daemon.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "streamer", "run", *sys.argv[2:]])
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def activated(listener: socket.socket, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", ACTIVATE, str(listener.fileno()), *arguments],
        pass_fds=[listener.fileno()],
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no systemd")
def test_a_client_starts_the_daemon_which_ends_when_nobody_is_left(listener: socket.socket) -> None:
    for _ in range(2):

        async def talk() -> Received:
            address = f"ws://127.0.0.1:{listener.getsockname()[1]}/v1/stream"
            # The program begins after the connection, and may take its time.
            async with connect(address, proxy=None, open_timeout=WAIT_S) as connection:
                await send_audio(connection, AUDIO)
                await connection.send('{"type":"finish"}')
                return Received([from_json(message) async for message in connection])

        async def talk_first() -> "tuple[Received, subprocess.Popen[bytes]]":
            talking = asyncio.create_task(talk())
            await asyncio.sleep(0)  # the connection waits in the backlog
            process = activated(listener, *IDLE)
            return await talking, process

        received, process = asyncio.run(talk_first())
        check_text(received)
        assert received.of(Gap, Error) == []
        _, stderr = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, stderr
        assert b"no client for 0.5 s: the next one starts the daemon again" in stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no systemd")
def test_a_socket_that_others_reach_needs_a_token() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        process = activated(listener, *IDLE)
        _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert b"server.host is 0.0.0.0, which other machines can reach" in stderr
