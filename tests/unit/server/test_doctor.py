"""What `streamer doctor` finds of the server's address."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from streamer.findings import Finding, Severity
from streamer.server import doctor
from streamer.settings.table import ServerSettings
from tests.findings import OK, PROBLEM, expect
from tests.wire.support import serving

TOKEN = "a secret of 16 or more"


def check(**settings: object) -> Finding:
    return doctor.check_port(ServerSettings(**settings), Path("no-tokens.json"))  # type: ignore[arg-type]


@contextmanager
def listening(server_name: str, body: bytes) -> Iterator[int]:
    """Answer every request on a port of its own with a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return server_name

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "body", "severity", "words"),
    [
        ("streamer", b'{"status":"ok"}', OK, "a streamer daemon runs on 127.0.0.1"),
        ("streamer", b'{"status":"starting"}', OK, "its status is starting"),
        ("nginx", b'{"status":"ok"}', PROBLEM, "taken by another program"),
        ("streamer", b"[1]", PROBLEM, "taken by another program"),
        ("streamer", b"\xff", PROBLEM, "taken by another program"),
        ("streamer", b"[" * 60_000, PROBLEM, "taken by another program"),
        ("streamer", b'{"status":"\\u001b[31mok"}', OK, "its status is [31mok;"),
    ],
)
def test_which_program_holds_a_port(name: str, body: bytes, severity: Severity, words: str) -> None:
    with listening(name, body) as port:
        expect(check(port=port), severity, words)


@pytest.mark.parametrize("tls", ["off", "self-signed"])
async def test_the_real_server_is_known_as_a_daemon(tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: tmp_path)
    async with serving(tls=tls) as running:
        found = await asyncio.to_thread(check, port=running.port)
    expect(found, OK, "a streamer daemon runs on 127.0.0.1")


def test_a_port_whose_holder_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "HEALTH_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        expect(check(port=port), PROBLEM, "taken by another program", "--port N")
        expect(check(host="0.0.0.0", token=TOKEN, port=port), PROBLEM, "taken by another program", "--port N")
    expect(check(port=port), OK, f"127.0.0.1 port {port} is free")


def test_an_address_that_cannot_be_listened_on() -> None:
    expect(check(port=0), OK, "any free port")
    expect(check(host="0.0.0.0"), PROBLEM, "server.token is empty")
    # Of the block for documentation (RFC 5737): no machine has it.
    expect(check(host="192.0.2.1", token=TOKEN), PROBLEM, "cannot listen on 192.0.2.1 port 8765")
    expect(check(host="a" * 70, token=TOKEN), PROBLEM, "cannot be resolved")
    expect(check(tls_certificate="/absent.pem"), PROBLEM, "/absent.pem cannot be read")
