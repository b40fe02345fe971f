"""A client of a running daemon: its captions as events, across interruptions."""

from collections.abc import AsyncGenerator, Callable

from streamer.client.connection import (
    FIRST_DELAY_S,
    MAX_DELAY_S,
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
    """Follow the captions of a daemon's own input, until it says that nothing follows.

    address : HOST, HOST:PORT, an http(s):// or ws(s):// address, or unix:///PATH
    token : what the daemon asks for
    fingerprint : SHA-256 of the certificate that it must show; empty: one that this machine trusts
    on_notice : told when the daemon goes away after having been there, and when it is back

    Returns its events, to be read with `for` or `async for`. What is missed while the daemon is away comes when it is
    back; no event comes twice. Raises UsageError where the address is none; the loop raises PeerError where the daemon
    was never there, refuses us, or sends what is no event.

        for event in listen("localhost:8765"):
            if event.type == "final":
                print(event.text)
    """
    if isinstance(address, str):
        address = parse_address(address, token, fingerprint)
    return Events(lambda: captions(address, on_notice=on_notice))


async def captions(
    address: DaemonAddress,
    *,
    on_notice: Callable[[str], None],
    first_delay_s: float = FIRST_DELAY_S,
    max_delay_s: float = MAX_DELAY_S,
) -> AsyncGenerator[Event, None]:
    """Yield a daemon's events; see `listen`. When the daemon goes away it is asked again, ever more slowly."""
    place = Place()
    reconnection = Reconnection(address, on_notice, first_delay_s, max_delay_s)
    while True:
        try:
            async with await connected(address, place) as connection:
                reconnection.came()
                async for event in events_of(address, connection):
                    reconnection.works()
                    if place.moved(event):
                        yield event
                    if isinstance(event, End):
                        return
                return  # closed with 1000
        except GoneError as gone:
            await reconnection.wait(gone)
