"""A client of a running daemon: its captions as events, across interruptions."""

from collections.abc import AsyncGenerator, Callable

from streamer.client.connection import (
    DaemonAddress,
    Events,
    GoneError,
    Place,
    Reconnection,
    connected,
    events_of,
    log_notice,
    parse_address,
)
from streamer.events import End, Event


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
    return Events(lambda: captions(address, on_notice=on_notice))


async def captions(address: DaemonAddress, *, on_notice: Callable[[str], None]) -> AsyncGenerator[Event, None]:
    """Yield a daemon's events; see `listen`."""
    place = Place()
    reconnection = Reconnection(address, on_notice)
    while True:
        try:
            async with await connected(address, place) as connection:
                reconnection.connected()
                async for event in events_of(address, connection):
                    reconnection.works()
                    if place.moved(event):
                        yield event
                    if isinstance(event, End):
                        return
                return  # closed with 1000
        except GoneError as gone:
            await reconnection.wait(gone)
