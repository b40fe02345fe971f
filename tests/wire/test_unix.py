"""The Unix socket's file: made, guarded, replaced and removed."""

import os
import socket
import sys
from pathlib import Path

import pytest

from streamer.errors import ConfigError
from streamer.server.sockets import UnixSocket

POSIX = pytest.mark.skipif(os.name == "nt", reason="asyncio has no Unix sockets there")


@POSIX
def test_only_its_user_may_connect_and_the_file_goes_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listening = UnixSocket(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listening.close()
    assert not path.exists()


@POSIX
def test_in_a_directory_with_the_setgid_bit_its_group_may_connect_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    listening = UnixSocket(tmp_path / "socket")
    status = (tmp_path / "socket").stat()
    listening.close()
    assert status.st_mode & 0o777 == 0o660
    assert status.st_gid == tmp_path.stat().st_gid


@POSIX
def test_the_file_of_a_dead_daemon_is_replaced_and_that_of_another_left(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    dead = UnixSocket(path)
    dead.sock.close()
    alive = UnixSocket(path)
    dead.close()
    assert path.exists()
    with pytest.raises(ConfigError, match="already in use"):
        UnixSocket(path)
    alive.close()
    assert not path.exists()


@POSIX
def test_what_cannot_be_listened_on_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="is no socket"):
        UnixSocket(file)
    assert file.read_bytes() == b"mine"
    for path in (tmp_path / "absent" / "socket", tmp_path / ("x" * 200), file / "socket"):
        with pytest.raises(ConfigError, match=r"cannot be listened on .*: expected a path"):
            UnixSocket(path)


def test_windows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="leave it out"):
        UnixSocket(tmp_path / "socket")
