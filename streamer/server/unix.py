"""A Unix socket to listen on: a file that only its user may connect to.

In a directory with the setgid bit the file is of the directory's group (inode(7)), and that group may connect as well.
"""

import contextlib
import socket
import stat
import sys
from pathlib import Path

from streamer.errors import ConfigError

PROBE_TIMEOUT_S = 1.0  # for a daemon that may live to take a connection
BACKLOG = 100


class UnixSocket:
    """A socket that listens at a path, and the file there."""

    def __init__(self, path: Path) -> None:
        """Listen at `path`. The file that a dead daemon left there is replaced.

        Raises ConfigError where that is not possible, or a program listens there already.
        """
        if sys.platform == "win32":
            raise ConfigError("server.unix_socket is set, and asyncio has no Unix sockets on Windows: leave it out")
        self._path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(path)
            self.sock.bind(str(path))
            # Before it listens, so that nobody else was ever let in.
            path.chmod(0o660 if path.parent.stat().st_mode & stat.S_ISGID else 0o600)
            self.sock.listen(BACKLOG)
            self.sock.setblocking(False)
            # Of the file, to tell it from one that took its place.
            self._identity = _identity(path)
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
            self.sock.close()
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise ConfigError(
                f"server.unix_socket {path} cannot be listened on ({reason}): expected a path of at most 100 bytes in a"
                " directory that this user may write to"
            ) from None
        except ConfigError:
            self.sock.close()
            raise

    def close(self) -> None:
        """Stop to listen, and remove the file where it is still ours."""
        self.sock.close()
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._identity:
                self._path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns  # a number is given again once its file is gone


def _remove_stale(path: Path) -> None:
    """Remove what a dead daemon left. Raises ConfigError where it lives, or the file is something else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"server.unix_socket {path} is a file that is no socket: choose a path where nothing is")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except (TimeoutError, BlockingIOError):  # its queue is full
            pass
    raise ConfigError(
        f"server.unix_socket {path} is already in use: stop the program that listens there, or choose another path"
    )
