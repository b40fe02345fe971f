"""Announces a port in the local network by multicast DNS (RFC 6762, RFC 6763)."""

import asyncio
import logging
import socket

from streamer.server.access import is_wildcard
from streamer.server.sockets import own_addresses

logger = logging.getLogger(__name__)


async def announce(kind: str, host: str, port: int) -> None:
    """Announce a service, such as `_wyoming._tcp.local.`, at a port of an address until cancelled."""
    # Late: it takes 10 MB, and is needed only if the port is open to a network.
    from zeroconf import Error
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    name = f"streamer-{socket.gethostname().partition('.')[0][:40]}"
    try:
        addresses = reachable(host)
        found = AsyncServiceInfo(kind, f"{name}.{kind}", port=port, parsed_addresses=addresses, server=f"{name}.local.")
        zeroconf = AsyncZeroconf(interfaces=addresses)
        try:
            await zeroconf.async_register_service(found, allow_name_change=True)
            await asyncio.Event().wait()
        finally:
            await zeroconf.async_close()
    except (OSError, RuntimeError, Error) as error:  # no network, for one
        logger.warning("port %d is not announced by mDNS (%s): give clients its address by hand", port, error)


def reachable(host: str) -> list[str]:
    """Return the addresses at which other machines reach a server that listens on `host`."""
    if not is_wildcard(host):
        return [host]
    version = 6 if ":" in host else 4
    return [str(address) for address in own_addresses() if address.version == version and not address.is_loopback]
