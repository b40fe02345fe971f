"""The server over TLS and on a Unix socket, with real clients: programs, a browser, and those who got it wrong."""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import os
import ssl
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import soundfile
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import InvalidStatus

from streamer.client.captions import captions
from streamer.client.connection import DaemonAddress, parse_address
from streamer.commands.listen import daemon_address
from streamer.errors import ConfigError, PeerError, PortInUseError
from streamer.events import Final, Ready
from streamer.server.certificates import fingerprint_of
from streamer.server.tls import certificate_path
from streamer.settings.table import ServerSettings, Settings
from tests.browser import browse, fake_microphone_flags
from tests.wire.support import WAIT_S, Running, events_until, final, partial, serving, within

POSIX = pytest.mark.skipif(os.name == "nt", reason="asyncio has no Unix sockets there")
SELF_SIGNED = ServerSettings(tls="self-signed")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the certificate out of the user's own directory."""
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: tmp_path / "data")


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate_path(SELF_SIGNED))


async def answer(running: Running, request: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Send bytes, and return all that comes back."""
    name = "localhost" if context else None
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context, server_hostname=name)
    try:
        writer.write(request)
        return await within(reader.read())
    except ConnectionError:
        return b""
    finally:
        writer.close()


def get(path: str, host: str = "localhost") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


async def heard(running: Running, address: DaemonAddress) -> str:
    """Return the text of a final that a client gets."""
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(captions(address, on_notice=print)) as events:
        async for event in events:
            if isinstance(event, Ready):
                running.log.append(final(1, "in private"))
            elif isinstance(event, Final):
                return event.text
    raise AssertionError


async def test_everything_is_there_over_tls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(tls="self-signed") as running:
        assert running.url == f"https://127.0.0.1:{running.port}/"
        page = await answer(running, get("/"), trusting())
        assert page.startswith(b"HTTP/1.1 200")
        assert b"wss://localhost" in page
        async with connect(f"wss://localhost:{running.port}/v1/captions", ssl=trusting(), proxy=None) as client:
            running.log.append(final(1, "in private"))
            assert (await events_until(client, "final"))[-1].text == "in private"  # type: ignore[attr-defined]
    said = " ".join(record.message for record in caplog.records)
    assert fingerprint_of(certificate_path(SELF_SIGNED)) in said
    assert "in this network" not in said  # it listens on loopback


async def test_the_command_line_knows_the_daemon_of_its_settings() -> None:
    async with serving(tls="self-signed") as running:
        own = Settings(server=ServerSettings(tls="self-signed", port=running.port))
        assert await heard(running, daemon_address(None, "", "", own)) == "in private"
        fingerprint = fingerprint_of(certificate_path(SELF_SIGNED))
        there = daemon_address(f"127.0.0.1:{running.port}", "", fingerprint, Settings())
        assert await heard(running, there) == "in private"
        with pytest.raises(PeerError, match="--fingerprint"):
            await heard(running, parse_address(running.url))


async def test_who_does_not_speak_tls_is_left_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(tls="self-signed") as running:
        for said in (get("/"), b"\x00" * 1000, b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000):
            assert b"200" not in await answer(running, said)
        assert (await answer(running, get("/healthz"), trusting())).startswith(b"HTTP/1.1 200")
        refused = await answer(running, b"\x00\x01\x02\r\n\r\n", trusting())
        assert refused.startswith(b"HTTP/1.1 400 ")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"].isprintable()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_subscriber_that_does_not_read_is_closed_over_tls_too() -> None:
    async with serving(tls="self-signed", queue_events=20) as running:
        client = await connect(f"wss://localhost:{running.port}/v1/captions", ssl=trusting(), proxy=None)
        client.transport.pause_reading()
        await running.value("streamer_subscribers", {}, 1)
        for n in range(300):
            running.log.append(final(n, "x" * 20_000))
            await asyncio.sleep(0.001)
        assert running.registry.get_sample_value("streamer_subscribers_too_slow_total") == 1
        assert (await answer(running, get("/healthz"), trusting())).startswith(b"HTTP/1.1 200")
        client.transport.abort()
        await running.value("streamer_subscribers", {}, 0)


async def test_a_client_that_speaks_no_tls_is_told_to() -> None:
    async with serving(tls="self-signed") as running:
        with pytest.raises(PeerError, match="wss://"):
            await heard(running, parse_address(f"127.0.0.1:{running.port}"))


async def test_who_says_nothing_is_not_waited_for() -> None:
    async with serving(tls="self-signed", header_timeout_s=0.1) as running:
        assert await answer(running, b"") == b""
        assert running.server.n_connections == 0


async def test_tls_for_a_plain_port_is_answered_as_no_http(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as running:
        with pytest.raises(PeerError, match="does not speak TLS"):
            await heard(running, parse_address(f"wss://127.0.0.1:{running.port}"))
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_connection_that_breaks_off_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tls="self-signed") as running:
        for _ in range(20):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", running.port, ssl=trusting(), server_hostname="localhost"
            )
            writer.write(b"GET / HT")
            writer.transport.abort()
        async with asyncio.timeout(WAIT_S):
            while running.server.n_connections:
                await asyncio.sleep(0.01)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def spki_hash() -> str:
    """Return the hash of the certificate's public key, by which Chromium lets a certificate be trusted (RFC 7469)."""
    certificate = x509.load_pem_x509_certificate(certificate_path(SELF_SIGNED).read_bytes())
    key = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(hashlib.sha256(key).digest()).decode("ascii")


async def test_a_browser_captions_its_own_microphone_over_tls(tmp_path: Path) -> None:
    wav = tmp_path / "tone.wav"
    soundfile.write(wav, 0.5 * np.sin(2 * np.pi * 1000 * np.arange(48_000) / 48_000), 48_000, subtype="PCM_16")
    async with serving(tls="self-signed") as running:
        flags = (*fake_microphone_flags(wav), f"--ignore-certificate-errors-spki-list={spki_hash()}")
        async with browse(running.url, flags=flags) as page:
            await page.wait_for("['live', 'speech'].includes(document.querySelector('#status').dataset.state)")
            assert await page.evaluate("location.protocol") == "https:"
            running.log.append(final(1, "over TLS"))
            await page.wait_for("document.querySelector('#finals .text')?.textContent === 'over TLS'")
            assert await page.evaluate("window.isSecureContext")
            await page.click("#microphone")
            stream = await running.streams.first()
            stream.log.append(partial(1, "a tone", 2))
            await page.wait_for("document.querySelector('#stable').textContent === 'a '")
            await within(stream.written.wait())
            assert page.problems == []


@POSIX
async def test_a_unix_socket_besides_the_port(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with serving(unix_socket=str(path)) as running:
        assert await heard(running, parse_address(f"unix://{path}")) == "in private"
        assert await heard(running, parse_address(f"127.0.0.1:{running.port}")) == "in private"
    assert not path.exists()


@POSIX
async def test_a_unix_socket_asks_for_the_token_and_for_a_local_host(tmp_path: Path) -> None:
    path, token = tmp_path / "socket", "t" * 20
    async with serving(unix_socket=str(path), host="0.0.0.0", token=token, tls="self-signed") as running:
        with pytest.raises(PeerError, match="401"):
            await heard(running, parse_address(f"unix://{path}"))
        own = Settings(server=ServerSettings(unix_socket=str(path), token=token))
        assert await heard(running, daemon_address(f"unix://{path}", "", "", own)) == "in private"
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            reader, writer = await asyncio.open_unix_connection(str(path))
            names = {"Host": "localhost", "Connection": "close", **headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in names.items())
            writer.write(f"GET /healthz HTTP/1.1\r\n{head}\r\n".encode("ascii"))
            got = await within(reader.read())
            assert got.startswith(b"HTTP/1.1 403")
            assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]
            writer.close()
        with pytest.raises(InvalidStatus):
            async with unix_connect(str(path), "ws://evil.example/v1/captions"):
                pass


@POSIX
async def test_what_cannot_be_started_leaves_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with serving(unix_socket=str(path)) as running:
        with pytest.raises(ConfigError, match="already in use"):
            async with serving(unix_socket=str(path)):
                pass
        with pytest.raises(PortInUseError):
            async with serving(unix_socket=str(tmp_path / "other"), port=running.port):
                pass
        assert not (tmp_path / "other").exists()
        assert path.exists()


async def test_a_certificate_that_cannot_be_loaded_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        async with serving(tls_certificate=str(tmp_path / "absent.pem")):
            pass
