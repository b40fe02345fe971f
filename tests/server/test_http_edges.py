"""What stands at the edges of HTTP, byte for byte, on the plain port, over TLS and on the Unix socket alike."""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import platformdirs
import pytest

from streamer.server.tls import certificate_path
from streamer.settings.table import ServerSettings
from tests.server.support import Running, final, opened_log, serving, within

HOST = "Host: localhost\r\n"
CLOSE = f"{HOST}Connection: close\r\n\r\n"
UPGRADE = (
    f"GET /v1/captions HTTP/1.1\r\n{HOST}Upgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)

PLACES = ["plain", "tls", "unix"] if os.name != "nt" else ["plain", "tls"]


class Place:
    """A server, and how to talk to it."""

    def __init__(self, running: Running, path: str | None, context: ssl.SSLContext | None) -> None:
        self.running = running
        self._path = path
        self._context = context

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._path is not None and hasattr(asyncio, "open_unix_connection"):
            return await asyncio.open_unix_connection(self._path)
        name = "localhost" if self._context else None
        return await asyncio.open_connection(
            "127.0.0.1", self.running.port, ssl=self._context, server_hostname=name, limit=2**20
        )

    async def talk(self, request: str) -> bytes:
        """Send text, and return all that comes until the daemon closes."""
        reader, writer = await self.connect()
        try:
            writer.write(request.encode("latin-1"))
            return await within(reader.read())
        finally:
            writer.close()


@pytest.fixture(params=PLACES)
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Place]:
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: tmp_path / "data")
    path = str(tmp_path / "socket") if request.param == "unix" else None
    tls = "self-signed" if request.param == "tls" else "off"
    log = opened_log()
    async with serving(log, unix_socket=path or "", tls=tls, queue_events=20) as running:
        context = None
        if tls == "self-signed":
            context = ssl.create_default_context(cafile=certificate_path(ServerSettings(tls="self-signed")))
        yield Place(running, path, context)
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def test_head_has_no_body_and_says_how_long_it_would_be(place: Place) -> None:
    for path in ("/", "/healthz", "/captions.js"):
        head, whole = (
            await place.talk(f"HEAD {path} HTTP/1.1\r\n{CLOSE}"),
            await place.talk(f"GET {path} HTTP/1.1\r\n{CLOSE}"),
        )
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body_of(head) == b""
        assert b"content-length: %d\r\n" % len(body_of(whole)) in head.lower()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (f"GET //[ HTTP/1.1\r\n{CLOSE}", 404),
        (f"GET http://[ HTTP/1.1\r\n{CLOSE}", 404),
        (f"GET /..%2f..%2fetc/passwd HTTP/1.1\r\n{CLOSE}", 404),
        (f"GET /captions.js/../../x HTTP/1.1\r\n{CLOSE}", 404),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (f"BREW / HTTP/1.1\r\n{CLOSE}", 405),
        ("\x00\x01\x02\r\n\r\n", 400),
        (f"{UPGRADE}Content-Length: 5\r\n\r\nhello", 400),
        (f"{UPGRADE}\r\n\x81\x00", 400),
        (f"GET /healthz HTTP/1.1\r\n{HOST}Connection: close\r\nContent-Length: 5\r\n\r\nhello", 200),
        (f"GET /healthz HTTP/1.1\r\n{HOST}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200),
    ],
)  # fmt: skip
async def test_what_no_client_should_ask_gets_an_answer(place: Place, request_text: str, status: int) -> None:
    answer = await place.talk(request_text)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"Traceback" not in answer
    if status >= 400:
        assert json.loads(body_of(answer))["error"].isprintable()


async def test_requests_in_a_row_are_answered_in_a_row(place: Place) -> None:
    row = f"GET /healthz HTTP/1.1\r\n{HOST}\r\n" * 3 + f"GET /nothing HTTP/1.1\r\n{CLOSE}"
    answer = await place.talk(row)
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert answer.count(b"HTTP/1.1 404 ") == 1
    assert answer.index(b"404") > answer.rindex(b"HTTP/1.1 200 ")


async def test_a_client_that_does_not_read_is_let_go_and_others_are_served(place: Place) -> None:
    reader, writer = await place.connect()
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.write(f"{UPGRADE}\r\n".encode("ascii"))
    assert (await within(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 101")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    running, n = place.running, 0
    await running.value("streamer_subscribers", {}, 1)
    async with asyncio.timeout(90):
        while not running.registry.get_sample_value("streamer_subscribers_too_slow_total"):
            n += 1
            running.log.append(final(n, "x" * 20_000))
            await asyncio.sleep(0.001)
    assert n < 300
    assert (await place.talk(f"GET /healthz HTTP/1.1\r\n{CLOSE}")).startswith(b"HTTP/1.1 200")
    writer.transport.abort()
    await running.value("streamer_subscribers", {}, 0)
