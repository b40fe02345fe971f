"""A client of a running daemon: its captions as events, across interruptions."""

import asyncio
import logging
import os
import urllib.parse
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
)

from streamer.errors import PeerError, ProtocolError, UnknownEventError, UsageError
from streamer.events import End, Event, from_json
from streamer.outside import is_loopback, one_line

logger = logging.getLogger(__name__)

DEFAULT_PORT = 8765
CAPTIONS_PATH = "/v1/captions"
MAX_EVENT_BYTES = 1 << 20  # an event with the words of 30 seconds is some ten kilobytes
FIRST_DELAY_S = 0.5  # before the first attempt to reach the daemon again; doubled after each that fails
MAX_DELAY_S = 10.0

# Close codes after which coming back is of no use: the daemon did not understand or does not want us (RFC 6455, 7.4.1).
_REFUSALS = (1002, 1003, 1007, 1008, 1009, 1010)


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """Where a daemon's captions are."""

    # ws:// or wss:// address without a token, fit for messages.
    url: str

    # What the daemon asks for; empty: nothing.
    token: str = field(default="", repr=False)


def parse_address(text: str, token: str = "") -> DaemonAddress:
    """Read a daemon's address: HOST, HOST:PORT, or an http(s):// or ws(s):// address, with a path or without.

    A `?token=` in it is taken out; `token` wins over it. Raises UsageError where it is no address.
    """
    refusal = UsageError(
        f"{text.partition('?')[0]!r:.100} is no daemon's address: expected HOST:PORT or ws://HOST:PORT"
    )
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"ws://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise refusal from None
    scheme = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not host or any(char.isspace() or not char.isprintable() for char in text):
        raise refusal
    if port is None and "://" not in text:
        port = DEFAULT_PORT
    query = urllib.parse.parse_qsl(parts.query)
    token = token or dict(query).get("token", "")
    if not (token.isascii() and token.isprintable()):
        raise UsageError("the token has characters that no token has: expected printable ASCII; copy it again")
    path = parts.path.rstrip("/")
    if not path.endswith(CAPTIONS_PATH):
        path += CAPTIONS_PATH
    place = f"[{host}]" if ":" in host else host
    rest = urllib.parse.urlencode([(key, value) for key, value in query if key != "token"])
    address = urllib.parse.urlunsplit((scheme, place if port is None else f"{place}:{port}", path, rest, ""))
    return DaemonAddress(address, token)


async def captions(
    address: DaemonAddress,
    *,
    on_notice: Callable[[str], None],
    first_delay_s: float = FIRST_DELAY_S,
    max_delay_s: float = MAX_DELAY_S,
) -> AsyncGenerator[Event, None]:
    """Yield a daemon's events until it says that nothing follows.

    When the daemon goes away after having been there, `on_notice` is told once, and it is asked again, ever more
    slowly, for what was missed. No event is yielded twice. Raises PeerError where the daemon was never there, refuses
    us, or sends what is no event.
    """
    place = _Place()
    known = False  # whether the daemon has been there
    away = False  # whether it is not there now, and on_notice knows
    delay_s = first_delay_s
    while True:
        try:
            async with await _connected(address, place) as connection:
                if away:
                    on_notice(f"{address.url} is back")
                known, away = True, False
                async for event in _events(address, connection):
                    delay_s = first_delay_s  # only now: it may accept us just to close again
                    if place.moved(event):
                        yield event
                    if isinstance(event, End):
                        return
                return  # closed with 1000
        except _GoneError as gone:
            if not known:
                raise PeerError(
                    f"no daemon at {address.url} ({gone}): start one with `streamer run`, or name another address"
                ) from None
            if not away:
                away = True
                on_notice(f"{address.url} went away ({gone}): waiting for it to come back")
            logger.debug("trying again in %.1f s: %s", delay_s, gone)
        await asyncio.sleep(delay_s)
        delay_s = min(max_delay_s, 2 * delay_s)


class _GoneError(Exception):
    """The daemon cannot be reached now; it may come back."""


class _Place:
    """How far into which session we are."""

    def __init__(self) -> None:
        # Session and number of the newest event; 0 before the first.
        self.session = ""
        self.seq = 0

    def moved(self, event: Event) -> bool:
        """Move on to an event, and say whether it is new."""
        if event.session == self.session and event.seq <= self.seq:
            return False
        self.session, self.seq = event.session, event.seq
        return True


async def _connected(address: DaemonAddress, place: _Place) -> ClientConnection:
    url, host = address.url, urllib.parse.urlsplit(address.url).hostname or ""
    if place.seq:
        query = urllib.parse.urlencode({"after": place.seq, "session": place.session})
        url += ("&" if "?" in url else "?") + query
    try:
        return await connect(
            url,
            additional_headers={"Authorization": f"Bearer {address.token}"} if address.token else None,
            compression=None,  # small messages, and soon rather than small
            max_size=MAX_EVENT_BYTES,
            proxy=None if is_loopback(host) else True,  # a proxy cannot reach this machine's own ports
        )
    except InvalidURI:
        raise UsageError(f"{address.url} is no daemon's address: expected HOST:PORT or ws://HOST:PORT") from None
    except InvalidStatus as error:
        status = error.response.status_code
        said = one_line(bytes(error.response.body or b"")[:300].decode("utf-8", "replace"))
        if status >= 500:
            raise _GoneError(f"HTTP status {status}{f', {said}' if said else ''}") from None
        remedy = ": give its token with --token" if status in (401, 403) else ""
        raise PeerError(f"{address.url} answered HTTP status {status}{f' ({said})' if said else ''}{remedy}") from None
    except TimeoutError:
        raise _GoneError("no answer") from None
    except (OSError, EOFError) as error:
        raise _GoneError(_why(error)) from None
    except InvalidHandshake as error:
        if isinstance(error.__cause__, EOFError | OSError):
            raise _GoneError("it closed the connection") from None
        said = one_line(error)
        raise PeerError(f"{address.url} does not speak WebSocket ({said:.300}): is a daemon there?") from None


async def _events(address: DaemonAddress, connection: ClientConnection) -> AsyncGenerator[Event, None]:
    """Yield the events of one connection until it is closed with 1000. Raises _GoneError where it ends otherwise."""
    while True:
        try:
            message = await connection.recv()
        except ConnectionClosedOK as closed:
            if _code(closed) == 1000:
                return
            raise _GoneError(_farewell(closed)) from None
        except ConnectionClosedError as closed:
            if _code(closed) in _REFUSALS:
                raise PeerError(f"{address.url} closed the connection ({_farewell(closed)})") from None
            raise _GoneError(_farewell(closed)) from None
        try:
            if isinstance(message, bytes):
                raise ProtocolError("a binary message: expected events as text")
            event = from_json(message)
        except UnknownEventError as error:  # a later daemon may say more than we understand
            logger.debug("%s sent an event that is left out: %s", address.url, error)
            continue
        except ProtocolError as error:
            said = one_line(error)
            raise PeerError(f"{address.url} sent what is no event: {said:.300}; are both of one version?") from None
        yield event


def _code(closed: ConnectionClosed) -> int:
    """Return the close code: the daemon's, or else our own, sent where its frames break the protocol."""
    frame = closed.rcvd or closed.sent
    return frame.code if frame else 1006


def _farewell(closed: ConnectionClosed) -> str:
    frame = closed.rcvd or closed.sent
    if frame is None:
        return "the connection broke"
    return f"close code {frame.code}{f', {one_line(frame.reason)}' if frame.reason else ''}"


def _why(error: OSError | EOFError) -> str:
    # asyncio writes the address into strerror, and names no reason where it tried several addresses.
    if isinstance(error, OSError) and error.errno:
        return error.strerror if error.errno < 0 and error.strerror else os.strerror(error.errno)
    return one_line(error) or "it closed the connection"
