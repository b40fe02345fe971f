"""A client of a daemon's own input: its captions as events, across interruptions."""

from collections.abc import Callable

from streamer.client.connection import DaemonAddress, log_notice, parse_address
from streamer.client.loops import Events
from streamer.client.machine import Client


def listen(
    address: str | DaemonAddress = "localhost",
    *,
    token: str = "",
    fingerprint: str = "",
    on_notice: Callable[[str], None] = log_notice,
) -> Events:
    """Follow the captions of a daemon's own input, until they end.

    address : HOST, HOST:PORT, an http(s):// or ws(s):// address, or unix:///PATH
    token : bearer token, if the daemon requires one
    fingerprint : SHA-256 of the daemon's certificate; empty: the certificate must be one that this machine trusts
    on_notice : called with a line when the daemon goes away, and when it is back

    Returns its events, to be read with `for` or `async for`. Events missed while the daemon was away are sent when it
    is back; no event comes twice. Raises UsageError for an invalid address; the loop raises PeerError if there is no
    daemon at the start, if it refuses the connection, or if it sends a malformed event.

        for event in listen("localhost:8765"):
            if event.type == "final":
                print(event.text)
    """
    if isinstance(address, str):
        address = parse_address(address, token, fingerprint)
    return Events(lambda: Client(address, on_notice).events())
