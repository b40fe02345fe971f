"""What the service manager hears."""

import os
import socket
import sys
from pathlib import Path

import pytest

from streamer import systemd
from streamer.errors import ConfigError
from streamer.systemd import notify, notify_reloading, watchdog_s

unix_only = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets in Python for Windows")


@unix_only
@pytest.mark.parametrize("abstract", [False, True])
def test_assignments_arrive_in_one_datagram(tmp_path: Path, abstract: bool) -> None:
    if abstract and sys.platform != "linux":
        pytest.skip("only Linux has abstract sockets")
    name = f"@streamer-test-{os.getpid()}" if abstract else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0") if abstract else name)
        notify("READY=1", "STATUS=all is\nwell\x1b", environ={"NOTIFY_SOCKET": name})
        assert manager.recv(1000) == b"READY=1\nSTATUS=all is well"
        notify_reloading(environ={"NOTIFY_SOCKET": name})
        first, second = manager.recv(1000).decode().split("\n")
        assert first == "RELOADING=1"
        assert second.removeprefix("MONOTONIC_USEC=").isdigit()


@pytest.mark.parametrize("address", ["", "/nowhere/s", "a\0b", "x" * 200])
def test_a_manager_that_is_not_there_harms_nobody(address: str) -> None:
    notify("READY=1", environ={"NOTIFY_SOCKET": address})


@unix_only
def test_a_manager_that_reads_nothing_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        for _ in range(10_000):
            notify("WATCHDOG=1", environ={"NOTIFY_SOCKET": str(tmp_path / "s")})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_asked(environ: dict[str, str], expected: float | None) -> None:
    assert watchdog_s(environ) == expected


def passed(count: str, pid: int | None = None) -> dict[str, str]:
    return {"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid() if pid is None else pid)}


@unix_only
def test_sockets_of_the_service_manager_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(systemd, "FIRST_SOCKET", os.dup(listener.fileno()))
        (sock,) = systemd.sockets(passed("1"))
        with sock:
            assert sock.getsockname() == listener.getsockname()
            assert not sock.get_inheritable()
            assert sock.proto == socket.IPPROTO_TCP, "Nagle's algorithm stays on otherwise"


@pytest.mark.parametrize("environ", [{}, passed("1", 1), passed(""), passed("-1"), passed("0"), passed("one")])
def test_without_sockets_for_this_process_there_are_none(environ: dict[str, str]) -> None:
    assert systemd.sockets(environ) == []


@unix_only
@pytest.mark.parametrize("kind", ["file", "datagram", "not listening", "closed"])
def test_a_descriptor_that_is_no_listening_socket_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        (tmp_path / "file").open("w") as file,
        socket.socket(type=socket.SOCK_DGRAM) as datagram,
        socket.socket() as idle,
    ):
        numbers = {"file": file.fileno(), "datagram": datagram.fileno()}
        number = os.dup(numbers.get(kind, idle.fileno()))
        if kind == "closed":
            os.close(number)
        monkeypatch.setattr(systemd, "FIRST_SOCKET", number)
        with pytest.raises(ConfigError):
            systemd.sockets(passed("1"))
