"""The sockets that the server listens on: TCP and Unix."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import stat
import sys
from pathlib import Path

import psutil

from streamer.errors import ConfigError, PortInUseError
from streamer.outside import host_port, is_wildcard, own_host

logger = logging.getLogger(__name__)

BACKLOG = 100  # connections that wait to be accepted
PROBE_TIMEOUT_S = 1.0  # for another daemon to accept a connection


async def listen(host: str, port: int, settings: str = "server.") -> list[socket.socket]:
    """Listen at one port on every address of `host`; 0: at a free one.

    settings : prefix of the names of the settings for both

    Raises PortInUseError if the port is taken, ConfigError if the host cannot be listened on.
    """
    if not host:
        raise ConfigError(f"{settings}host is empty: expected an address such as 127.0.0.1; 0.0.0.0 means all")
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{settings}host {host!r:.100} cannot be resolved ({error}): expected a name or address of this machine,"
            " such as 127.0.0.1"
        ) from None
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in infos):
        wanted = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(bind(family, (address[0], wanted, *address[2:])))
        except OSError as error:
            logger.debug("not listening on %s: %s", address[0], error)
            refused = error
            absent = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # such as ::1 on a machine without IPv6
            if absent or (sockets and port == 0):
                continue
            for sock in sockets:
                sock.close()
            sockets.clear()
            break
    if sockets:
        return sockets
    if refused is not None and refused.errno == errno.EADDRINUSE:
        raise PortInUseError(host, port)
    reason = refused.strerror if refused is not None else "it has no address"
    raise ConfigError(
        f"cannot listen on {host} port {port} ({reason}): expected an address of this machine in {settings}host"
        f" and a port that programs may use, 1024 or above, in {settings}port"
    )


def bind(family: int, address: tuple[object, ...]) -> socket.socket:
    # With the protocol: asyncio disables Nagle's algorithm only for sockets that name TCP.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform == "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def url(scheme: str, host: str, port: int) -> str:
    """Return the address of a page on this machine, such as `http://127.0.0.1:8765/`."""
    return f"{scheme}://{host_port(own_host(host), port)}/"


def own_addresses() -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of this machine, IPv4 first, without link-local IPv6, which no URL has (RFC 9844)."""
    entries = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    texts = {entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)}
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
    usable = [address for address in addresses if address.version == 4 or not address.is_link_local]
    return sorted(usable, key=lambda address: (address.version, int(address)))


def reachable(host: str) -> list[str]:
    """Return the addresses at which other machines reach a server that listens on `host`."""
    if not is_wildcard(host):
        return [host.strip("[]")]
    version = 6 if ":" in host else 4
    return [str(address) for address in own_addresses() if address.version == version and not address.is_loopback]


class UnixSocket:
    """A Unix socket that listens at a path, and its file, which only its user may connect to.

    In a directory with the setgid bit the file belongs to the directory's group (inode(7)), which may connect as well.
    """

    def __init__(self, path: Path) -> None:
        """Listen at `path`. A file that a dead daemon left there is replaced.

        Raises ConfigError if that is not possible, or a program listens there already.
        """
        if sys.platform == "win32":
            raise ConfigError("server.unix_socket is set, which is not supported on Windows: leave it empty")
        self._path = path
        with contextlib.ExitStack() as stack:
            self.sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                _remove_stale(path)
                self.sock.bind(str(path))
                # Before it listens, so that no other user can ever connect.
                path.chmod(0o660 if path.parent.stat().st_mode & stat.S_ISGID else 0o600)
                self.sock.listen(BACKLOG)
                self.sock.setblocking(False)
                self._identity = _identity(path)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                reason = (isinstance(error, OSError) and error.strerror) or error
                raise ConfigError(
                    f"server.unix_socket {path} cannot be listened on ({reason}): expected a path of at most 100 bytes"
                    " in a directory that this user may write to"
                ) from None
            stack.pop_all()

    def close(self) -> None:
        """Stop listening, and remove the file unless another daemon has replaced it."""
        self.sock.close()
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._identity:
                self._path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns  # the number alone is used again once a file is deleted


def _remove_stale(path: Path) -> None:
    """Remove the file of a dead daemon. Raises ConfigError if a program listens there, or it is not a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"server.unix_socket {path} exists and is not a socket: choose an unused path")
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
