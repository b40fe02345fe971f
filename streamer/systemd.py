"""Notifications to systemd: sd_notify(3) and sd_watchdog_enabled(3). On other systems nothing happens."""

import logging
import os
import socket
import time
from collections.abc import Mapping

from streamer.errors import ConfigError
from streamer.outside import one_line

logger = logging.getLogger(__name__)

# Number of the first socket that the service manager passes.
FIRST_SOCKET = 3


def notify(*assignments: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send assignments such as `READY=1` to the service manager, if there is one. Never waits."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    if address.startswith("@"):  # in the abstract namespace of Linux
        address = "\0" + address[1:]
    message = "\n".join(one_line(assignment) for assignment in assignments)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(message.encode("utf-8"), address)
    except (OSError, ValueError) as error:  # ValueError: an address with a NUL in it
        logger.debug("%s cannot be sent to the service manager: %s", assignments[0], error)


def notify_reloading(environ: Mapping[str, str] = os.environ) -> None:
    """Notify that settings are read again, as Type=notify-reload expects; `READY=1` follows when they are."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", environ=environ)


def sockets(environ: Mapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the sockets that the service manager listens on for this process (sd_listen_fds(3)); empty without any.

    Raises ConfigError for one that is not a listening stream socket.
    """
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return []
    found: list[socket.socket] = []
    for number in range(FIRST_SOCKET, FIRST_SOCKET + int(count[:3])):
        try:
            sock = socket.socket(fileno=number)
            if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                sock.close()
                raise OSError
        except OSError:
            raise ConfigError(
                f"the service manager passed descriptor {number}, which is not a listening stream socket: expected"
                " ListenStream= and Accept=no in the socket unit"
            ) from None
        sock.set_inheritable(False)
        sock.setblocking(False)
        found.append(sock)
    return found


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return how often `WATCHDOG=1` is to be sent, in seconds: twice as often as asked for. None: it need not be."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
    if not (usec.isascii() and usec.isdigit()) or int(usec) == 0 or pid != str(os.getpid()):
        return None
    return int(usec) / 2e6
