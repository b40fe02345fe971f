"""The server over TLS and on a Unix socket, with real clients: programs, a browser, and those who got it wrong."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import soundfile
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import InvalidStatus

from streamer.client.captions import listen
from streamer.client.connection import DaemonAddress, parse_address
from streamer.commands.listen import daemon_address
from streamer.errors import ConfigError, PeerError, PortInUseError
from streamer.events import Final, Ready
from streamer.server.certificates import fingerprint_of
from streamer.server.sockets import UnixSocket
from streamer.server.tls import certificate_path
from streamer.settings.table import ServerSettings, Settings
from tests.browser import browse, fake_microphone_flags
from tests.builders import final
from tests.waiting import WAIT_S, until
from tests.wire.harness import TOKEN, Running, heard, pass_time, serving

POSIX = pytest.mark.skipif(os.name == "nt", reason="asyncio has no Unix sockets there")
SELF_SIGNED = ServerSettings(tls="self-signed")
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the certificate out of the user's own directory."""
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: tmp_path / "data")


@pytest.fixture
def _no_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    records = caplog.get_records("call")  # without a phase: those of this one
    assert [record.getMessage() for record in records if record.levelno >= logging.WARNING] == []


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate_path(SELF_SIGNED))


async def read(running: Running, address: DaemonAddress) -> str:
    """Return the text of a final that a client gets."""
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(aiter(listen(address, on_notice=print))) as events:
        async for event in events:
            if isinstance(event, Ready):
                running.log.append(final("in private"))
            elif isinstance(event, Final):
                return event.text
    raise AssertionError


@pytest.mark.usefixtures("_no_warnings")
async def test_everything_is_there_over_tls_and_clients_without_it_are_left_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(tls="self-signed") as running:
        assert running.url == f"https://127.0.0.1:{running.port}/"
        assert (await running.ask("GET /")).status_code == 200
        for said in (HEALTH, b"\x00" * 1000, b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000):
            assert "200" not in await running.answer(said)
        assert (await running.answer(HEALTH, trusting=trusting())).startswith("HTTP/1.1 200")
        assert (await running.answer(b"\x00\r\n\r\n", trusting=trusting())).startswith("HTTP/1.1 400 ")
    assert fingerprint_of(certificate_path(SELF_SIGNED)) in caplog.text


@pytest.mark.usefixtures("_no_warnings")
async def test_the_command_line_knows_the_daemon_of_its_settings_and_no_other() -> None:
    async with serving(tls="self-signed") as running:
        own = Settings(server=ServerSettings(tls="self-signed", port=running.port))
        assert await read(running, daemon_address(None, "", "", own)) == "in private"
        fingerprint = fingerprint_of(certificate_path(SELF_SIGNED))
        there = daemon_address(f"127.0.0.1:{running.port}", "", fingerprint, Settings())
        assert await read(running, there) == "in private"
        for address in (running.url, f"127.0.0.1:{running.port}"):
            with pytest.raises(PeerError):
                await read(running, parse_address(address))
    async with serving() as running:
        with pytest.raises(PeerError):
            await read(running, parse_address(f"wss://127.0.0.1:{running.port}"))


async def test_a_subscriber_that_does_not_read_is_closed_over_tls_too() -> None:
    async with serving(tls="self-signed", queue_events=20) as running:
        client = await connect(f"wss://localhost:{running.port}/v1/captions", ssl=trusting(), proxy=None)
        client.transport.pause_reading()
        await running.value("streamer_subscribers", {}, 1)
        for n in range(100):
            running.log.append(final("x" * 100_000, segment=n))
            await asyncio.sleep(0)
        await running.value("streamer_subscribers_too_slow_total", {}, 1)
        client.transport.abort()
        await running.value("streamer_subscribers", {}, 0)


@pytest.mark.usefixtures("_no_warnings")
async def test_clients_that_say_nothing_or_break_off_leave_nothing() -> None:
    async with serving(tls="self-signed") as running:
        _, silent = await running.raw()
        writers = [(await running.raw(trusting()))[1] for _ in range(5)]
        for writer in writers:
            writer.write(b"GET / HT")
            writer.transport.abort()
        pass_time(10.1)  # for a handshake
        await until(lambda: not running.server.n_connections)
        silent.close()


@pytest.mark.slow
async def test_a_browser_captions_its_own_microphone_over_tls(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(48_000), 48_000, subtype="PCM_16")
    async with serving(tls="self-signed") as running:
        flags = (*fake_microphone_flags(tmp_path / "a.wav"), "--ignore-certificate-errors")
        async with browse(running.url, flags=flags) as page:
            running.log.append(final("over TLS"))
            await page.wait_for("document.querySelector('#finals .text')?.textContent === 'over TLS'")
            await page.click("#microphone")
            await heard(await running.streams.first(), 1000)
            assert page.problems == []


@POSIX
async def test_a_unix_socket_besides_the_port_asks_for_the_token_too(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with serving(unix_socket=str(path), host="0.0.0.0", token=TOKEN, tls="self-signed") as running:
        with pytest.raises(PeerError):
            await read(running, parse_address(f"unix://{path}"))
        own = Settings(server=ServerSettings(unix_socket=str(path), token=TOKEN))
        assert await read(running, daemon_address(f"unix://{path}", "", "", own)) == "in private"
        with pytest.raises(InvalidStatus):
            await unix_connect(str(path), "ws://evil.example/v1/captions")
        # What cannot be started leaves no socket, and that of another.
        with pytest.raises(ConfigError):
            async with serving(unix_socket=str(path)):
                pass
        with pytest.raises(PortInUseError):
            async with serving(unix_socket=str(tmp_path / "other"), port=running.port):
                pass
        assert (path.exists(), (tmp_path / "other").exists()) == (True, False)
    assert not path.exists()


@POSIX
@pytest.mark.parametrize(("folder", "mode"), [(0o700, 0o600), (0o2750, 0o660)])
def test_only_its_user_may_connect_and_the_group_of_a_folder_with_the_setgid_bit(
    tmp_path: Path, folder: int, mode: int
) -> None:
    tmp_path.chmod(folder)
    listening = UnixSocket(tmp_path / "socket")
    status = (tmp_path / "socket").stat()
    listening.close()
    assert (status.st_mode & 0o777, status.st_gid) == (mode, tmp_path.stat().st_gid)


@POSIX
def test_the_file_of_a_dead_daemon_is_replaced_and_that_of_another_left(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    dead = UnixSocket(path)
    dead.sock.close()
    alive = UnixSocket(path)
    dead.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    with pytest.raises(ConfigError):
        UnixSocket(path)
    alive.close()
    assert not path.exists()
