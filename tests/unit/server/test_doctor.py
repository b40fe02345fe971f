"""What `streamer doctor` finds of the server's address."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from streamer.findings import Finding, Severity
from streamer.server import doctor
from streamer.settings.table import ServerSettings
from tests.findings import OK, PROBLEM, expect
from tests.wire.harness import TOKEN, serving


def check(**settings: object) -> Finding:
    return doctor.check_port(ServerSettings(**settings), Path("no-tokens.json"))  # type: ignore[arg-type]


@contextmanager
def listening(server_name: str, body: bytes) -> Iterator[int]:
    """Answer every request on a port of its own with a body."""
    head = f"HTTP/1.1 200 OK\r\nServer: {server_name}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(head.encode() + body)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("name", "body", "severity", "found"),
    [
        ("streamer", b'{"status":"starting"}', OK, "starting"),
        ("streamer", b'{"status":"\\u001b[31mok"}', OK, " [31mok"),
        ("nginx", b'{"status":"ok"}', PROBLEM, ""),
        ("streamer", b"[1]", PROBLEM, ""),
        ("streamer", b"\xff", PROBLEM, ""),
        ("streamer", b"[" * 60_000, PROBLEM, ""),
    ],
)
def test_which_program_holds_a_port(name: str, body: bytes, severity: Severity, found: str) -> None:
    with listening(name, body) as port:
        expect(check(port=port), severity, found, "--port N" if severity == PROBLEM else "")


@pytest.mark.parametrize("tls", ["off", "self-signed"])
async def test_the_real_server_is_known_as_a_daemon(tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: tmp_path)
    async with serving(tls=tls) as running:
        expect(await asyncio.to_thread(check, port=running.port), OK, "127.0.0.1")


def test_a_port_whose_holder_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "HEALTH_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            expect(check(host=host, token=TOKEN, port=port), PROBLEM, f"{host} port {port}", "--port N")
    expect(check(port=port), OK, str(port))
    expect(check(port=0), OK, "any free port")


# 192.0.2.1 is of the block for documentation (RFC 5737): no machine has it.
@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"host": "192.0.2.1", "token": TOKEN},
        {"host": "a" * 70, "token": TOKEN},
        {"tls_certificate": "/absent.pem"},
        {"tls_key": "/absent.pem"},
        {"tls": "on"},
    ],
)
def test_a_server_that_could_not_start_is_a_problem(settings: dict[str, str]) -> None:
    expect(check(**settings), PROBLEM, f"server.{next(iter(settings)).replace('key', 'certificate')}")
