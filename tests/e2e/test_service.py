"""The daemon as a service: signals, what the service manager is told, settings that are read again."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from streamer.after.postprocessing import PostProcessing
from streamer.app import STUCK_RECOVERING_S, STUCK_S, Daemon
from streamer.errors import ConfigError
from streamer.settings.load import load_settings
from streamer.settings.table import CorrectionSettings, LogSettings, ServerSettings, Settings
from streamer.signals import has_hung_up
from tests.daemon import REPOSITORY, WAIT_S, environment, started

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither SIGHUP nor Unix sockets")


# --- signals ----------------------------------------------------------------------------------------------------------

# Stops, or loads, for ever: what hangs is a thread that nothing interrupts.
STUCK = """
import asyncio, time
from streamer import signals

async def main():
    stop = asyncio.Event()
    with signals.handled(asyncio.get_running_loop(), stop.set, *2 * [lambda: None]):
        print("ready", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        WAIT

asyncio.run(main())
"""


@posix_only
@pytest.mark.parametrize(
    "wait", ["await asyncio.to_thread(time.sleep, 99)", "time.sleep(99)", "pass\n    time.sleep(99)"]
)
def test_a_second_signal_ends_at_once_whatever_hangs(wait: str) -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK.replace("WAIT", wait)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"stopping\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == -signal.SIGINT


HANGING_UP = """
import asyncio, signal
from streamer import signals
from streamer import cli

async def main():
    done = asyncio.Queue()
    tell = [lambda what=what: done.put_nowait(what) for what in ("stop", "pause", "reload")]
    with signals.handled(asyncio.get_running_loop(), *tell):
        print("handles them", flush=True)
        print(await done.get(), flush=True)
        second = await done.get()
        signals.has_hung_up = lambda terminals: True
        print(second, flush=True)
        print(await done.get(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)

assert cli.main(["run", "--config", "nowhere.yaml"]) == 2
print("begun", flush=True)
input()
asyncio.run(main())
"""


@posix_only
def test_sighup_reloads_and_stops_only_where_the_terminal_is_gone() -> None:
    program, pipe = [sys.executable, "-c", HANGING_UP], subprocess.PIPE
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(program, stdin=pipe, stdout=pipe, encoding="utf-8"))
        stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGHUP)  # one that has only begun is not ended by it
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "handles them\n"
        for number, answer in ((signal.SIGHUP, "reload"), (signal.SIGUSR1, "pause"), (signal.SIGHUP, "stop True")):
            process.send_signal(number)
            assert process.stdout.readline() == f"{answer}\n"
        assert process.wait(WAIT_S) == 0


@posix_only
def test_a_terminal_that_is_gone_is_noticed() -> None:
    ours, theirs = os.openpty()
    assert not has_hung_up([theirs])
    os.close(ours)
    assert has_hung_up([theirs])
    assert not has_hung_up([])
    os.close(theirs)


# --- reloading --------------------------------------------------------------------------------------------------------


def reloaded(before: Settings, after: Settings | Exception) -> None:
    """Let a daemon with some settings read others."""

    def read() -> Settings:
        if isinstance(after, Exception):
            raise after
        return after

    Daemon(before, captions=False, read_settings=read)._reload()


async def test_what_cannot_be_changed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    after = Settings(log=LogSettings(access=True), server=ServerSettings(token="not to be told", port=1))
    reloaded(Settings(), after)
    assert caplog.messages == [
        "the settings were read again; changed: server.token, log.access",
        "these settings take effect at the next start: server.port",
    ]


async def test_of_a_broken_file_nothing_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    reloaded(Settings(), ConfigError("config.yaml:3: no"))
    assert caplog.messages == ["the settings stay as they were: config.yaml:3: no"]


async def test_of_settings_that_are_refused_the_glossary_is_not_taken_either(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- Quorbix", encoding="utf-8")
    wanted = Settings(correction=CorrectionSettings(glossary=str(path)))
    daemon = Daemon(wanted, captions=False, read_settings=lambda: wanted)
    daemon._enrichment = enrichment = PostProcessing(wanted, MagicMock(), MagicMock())
    daemon._server, daemon._streams = MagicMock(), MagicMock()
    daemon._server.reload.side_effect = ConfigError("server.origins has 'x'")
    path.write_text("- Grafana", encoding="utf-8")
    daemon._reload()
    assert enrichment.glossary is not None
    assert enrichment.glossary.texts == ["Quorbix"]
    daemon._server.reload.side_effect = None
    daemon._reload()
    assert enrichment.glossary.texts == ["Grafana"]


# --- health -----------------------------------------------------------------------------------------------------------


class Engine:
    stalled_s = 0.0


class Model:
    recovering = False


async def test_a_slow_pass_is_not_stuck_and_a_thread_that_hangs_is() -> None:
    daemon = Daemon(Settings(), captions=False, read_settings=Settings)
    assert not daemon._stuck(), "nothing is loaded"
    engine, model = Engine(), Model()
    daemon._engine, daemon._model = engine, model  # type: ignore[assignment]
    for stalled_s, recovering, stuck in (
        (27.0, False, False),
        (STUCK_S + 1, False, True),
        (STUCK_S + 1, True, False),
        (STUCK_RECOVERING_S + 1, True, True),
    ):
        engine.stalled_s, model.recovering = stalled_s, recovering
        assert daemon._stuck() == stuck


async def test_the_watchdog_is_fed_only_while_there_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("streamer.systemd.notify", told.append)
    monkeypatch.setattr("streamer.systemd.watchdog_s", lambda: 0.0)
    daemon = Daemon(Settings(), captions=False, read_settings=Settings)
    engine = Engine()
    daemon._engine, daemon._model = engine, Model()  # type: ignore[assignment]
    feeding = asyncio.create_task(daemon._feed_watchdog())
    while not told:
        await asyncio.sleep(0)
    engine.stalled_s = STUCK_S + 1
    await asyncio.sleep(0)
    n_told = len(told)
    for _ in range(10):
        await asyncio.sleep(0)
    feeding.cancel()
    assert set(told) == {"WATCHDOG=1"}
    assert len(told) <= n_told + 1


# --- files for operators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["contrib/streamer.service", "contrib/streamer-user.service"])
def test_what_is_shipped_for_operators_names_settings_that_there_are(name: str) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    environ = dict(re.findall(r"(STREAMER_\w+)=(\S+)", code))
    settings = load_settings(Path(os.devnull), environ, {})
    assert settings.server.token_file if "user" not in name else not environ


# --- all of it --------------------------------------------------------------------------------------------------------


@posix_only
def test_a_service_tells_its_manager_how_it_is_and_reads_its_settings_again(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("log:\n  format: json\n", encoding="utf-8")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)

        def heard(wanted: str) -> str:
            while not (message := manager.recv(4096).decode()).startswith(wanted):
                pass
            return message

        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with started("run", "--port", "0", "--input", "none", "--config", config, environ=environ) as daemon:
            heard("STATUS=loading")
            daemon.process.send_signal(signal.SIGHUP)  # while the model is loaded
            heard("RELOADING=1\nMONOTONIC_USEC=")
            assert "STATUS=listening on http://127.0.0.1:" in heard("READY=1")
            heard("WATCHDOG=1")
            config.write_text("log:\n  format: json\n  level: debug\nstream:\n  pace_s: 1.0\n", encoding="utf-8")
            daemon.process.send_signal(signal.SIGHUP)
            heard("RELOADING=1")
            assert heard("READY=1") == "READY=1"
            daemon.wait_said("take effect at the next start: stream.pace_s")
            config.write_text("servre: {}\n", encoding="utf-8")
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_said("the settings stay as they were")
            daemon.terminate()
            heard("STOPPING=1")
            outcome = daemon.wait()
    assert outcome.exit_code == 0, outcome.stderr
    lines = [json.loads(line) for line in outcome.stderr.splitlines()]
    assert {"the settings were read again; changed: none", "the settings were read again; changed: log.level"} <= {
        line["message"] for line in lines
    }


def test_standard_error_that_nobody_reads_does_not_stop_the_daemon() -> None:
    environ = environment({"STREAMER_LOG_ACCESS": "true"})
    arguments = ["-m", "streamer", "run", "--port", "0", "--input", "none"]
    with subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, env=environ) as process:
        try:
            assert process.stderr is not None
            # Unbuffered, and read up to the address only: the pipe is full after some hundred requests.
            head = b""
            while not (found := re.search(rb"http://127\.0\.0\.1:(\d+)/\s", head)):
                piece = os.read(process.stderr.fileno(), 100)
                assert piece, head
                head += piece
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=WAIT_S)
            for _ in range(800):
                connection.request("GET", "/livez?" + "x" * 100)
                response = connection.getresponse()
                assert response.read() == b'{"status":"ok"}\n'
            connection.close()
            process.terminate()
            assert process.wait(WAIT_S) == (1 if sys.platform == "win32" else 0)
        finally:
            process.kill()
