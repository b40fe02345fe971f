"""What is sent to the service manager, and the sockets and times that it gives."""

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
def test_assignments_arrive_in_one_datagram_and_a_reader_is_not_waited_for(tmp_path: Path, abstract: bool) -> None:
    if abstract and sys.platform != "linux":
        pytest.skip("only Linux has abstract sockets")
    name = f"@streamer-test-{os.getpid()}" if abstract else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0") if abstract else name)
        notify("READY=1", "STATUS=all is\nwell\x1b", environ={"NOTIFY_SOCKET": name})
        assert manager.recv(1000) == b"READY=1\nSTATUS=all is well"
        notify_reloading(environ={"NOTIFY_SOCKET": name})
        first, second = manager.recv(1000).decode().split("\n")
        assert (first, second.removeprefix("MONOTONIC_USEC=").isdigit()) == ("RELOADING=1", True)
        for _ in range(1000):
            notify("WATCHDOG=1", environ={"NOTIFY_SOCKET": name})


@pytest.mark.parametrize("address", ["", "/nowhere/s", "a\0b", "x" * 200])
def test_a_manager_that_is_not_there_harms_nobody(address: str) -> None:
    notify("READY=1", environ={"NOTIFY_SOCKET": address})


PID = str(os.getpid())


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [
        *[(None, "ours", None), ("30000000", None, 15.0), ("30000000", "ours", 15.0), ("30000000", "1", None)],
        *[("0", None, None), ("1", None, 5e-7), ("soon", None, None), ("²", None, None)],
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_asked(usec: str | None, pid: str | None, expected: float | None) -> None:
    environ = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": PID if pid == "ours" else pid}
    assert watchdog_s({name: value for name, value in environ.items() if value is not None}) == expected


@unix_only
def test_sockets_of_the_service_manager_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(systemd, "FIRST_SOCKET", os.dup(listener.fileno()))
        (sock,) = systemd.sockets({"LISTEN_FDS": "1", "LISTEN_PID": PID})
        with sock:
            assert (sock.getsockname(), sock.get_inheritable(), sock.getblocking()) == (
                *(listener.getsockname(), False, False),
            )
            assert sock.proto == socket.IPPROTO_TCP, "Nagle's algorithm stays on otherwise"


@pytest.mark.parametrize(("count", "pid"), [("1", "1"), ("1", ""), *((n, "ours") for n in ("", "-1", "0", "one", "²"))])
def test_without_sockets_for_this_process_there_are_none(count: str, pid: str) -> None:
    assert systemd.sockets({"LISTEN_FDS": count, "LISTEN_PID": PID if pid == "ours" else pid}) == []


@unix_only
@pytest.mark.parametrize("kind", ["file", "datagram", "not listening", "closed"])
def test_a_descriptor_that_is_not_a_listening_socket_is_refused(
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
            systemd.sockets({"LISTEN_FDS": "1", "LISTEN_PID": PID})
