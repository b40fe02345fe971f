"""The TCP sockets that the server listens on."""

import asyncio
import errno
import ipaddress
import logging
import socket
import sys

import psutil

from streamer.errors import ConfigError, PortInUseError
from streamer.server.access import is_wildcard

logger = logging.getLogger(__name__)

BACKLOG = 100  # connections that wait to be accepted


async def listen(host: str, port: int, settings: str = "server.") -> list[socket.socket]:
    """Listen on every address of `host` at one port; the first decides which if `port` is 0.

    settings : how the names of the settings for the two begin

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
            absent = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # such as ::1 where there is no IPv6
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
    # With the protocol named: asyncio switches Nagle's algorithm off only where it sees that it is TCP.
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
    name = host
    if is_wildcard(host):
        name = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://[{name}]:{port}/" if ":" in name else f"{scheme}://{name}:{port}/"


def own_addresses() -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of this machine, IPv4 first, without those of one link, which no URL has (RFC 9844)."""
    entries = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    texts = {entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)}
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
    usable = [address for address in addresses if address.version == 4 or not address.is_link_local]
    return sorted(usable, key=lambda address: (address.version, int(address)))
