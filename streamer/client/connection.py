"""A connection to a running daemon: its address, its errors, and its events."""

import asyncio
import hashlib
import logging
import math
import os
import random
import re
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any

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
from streamer.events import Error, Event, from_json
from streamer.outside import is_loopback, one_line

logger = logging.getLogger(__name__)

DEFAULT_PORT = 8765
CAPTIONS_PATH = "/v1/captions"
STREAM_PATH = "/v1/stream"
MAX_EVENT_BYTES = 1 << 20  # an event with the words of 30 seconds has some ten kilobytes
MAX_QUEUED_EVENTS = 16  # that the caller has not read; then the daemon is held back
CLOSE_TIMEOUT_S = 2.0  # for the close handshake with a daemon that still sends
FIRST_DELAY_S = 0.25  # before the first attempt to reconnect; doubled after each failure
MAX_DELAY_S = 10.0
KEEPALIVE_S = 20.0  # from one ping to the next

# Close codes of errors that a new connection would repeat (RFC 6455, 7.4.1).
_REFUSALS = (1002, 1003, 1007, 1008, 1009, 1010)


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """The address of a daemon's captions, or the one that audio is sent to."""

    # ws:// or wss:// address without a token, for messages too. Of a Unix socket: the address in the request.
    url: str

    # Bearer token; empty: none.
    token: str = field(default="", repr=False)

    # SHA-256 of the daemon's certificate, 64 hexadecimal digits; empty: one that this machine trusts.
    fingerprint: str = ""

    # Path of the daemon's Unix socket; empty: it is on the network.
    unix_socket: str = ""

    def __str__(self) -> str:
        """Return the address for messages."""
        return f"unix://{self.unix_socket}" if self.unix_socket else self.url


def parse_address(text: str, token: str = "", fingerprint: str = "", *, path: str = CAPTIONS_PATH) -> DaemonAddress:
    """Parse a daemon's address.

    text : HOST, HOST:PORT, an http(s):// or ws(s):// address, with or without a path, or unix:// and a path; a
        `?token=` is removed from it
    token : bearer token; it wins over the one in the address
    fingerprint : SHA-256 of the daemon's certificate, which replaces other checks; HOST:PORT then implies TLS
    path : CAPTIONS_PATH or STREAM_PATH

    Raises UsageError for an invalid address, token or fingerprint.
    """
    refusal = UsageError(
        f"{text.partition('?')[0]!r:.100} is not the address of a daemon: expected HOST:PORT, ws://HOST:PORT, wss://HOST:PORT"
        " or unix:///PATH"
    )
    digest = re.sub(r"^sha-?256[ :=]|[ :]", "", fingerprint.strip().lower())
    if fingerprint and not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise UsageError(
            f"fingerprint is {fingerprint!r:.100}: expected 64 hexadecimal digits, as the daemon prints at its start"
        )
    if any(not char.isprintable() for char in text):
        raise refusal
    if text.startswith("unix:///"):
        if digest:
            raise UsageError("fingerprint given for a Unix socket, which has no certificate: leave it out")
        return DaemonAddress(f"ws://localhost{path}", _checked(token), unix_socket=text.removeprefix("unix://"))
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"{'wss' if digest else 'ws'}://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise refusal from None
    scheme = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not host or any(char.isspace() for char in text):
        raise refusal
    if digest and scheme == "ws":
        raise UsageError(f"fingerprint given for {parts.scheme}://, which has no certificate: expected wss://")
    if port is None and "://" not in text:
        port = DEFAULT_PORT
    query = urllib.parse.parse_qsl(parts.query)
    token = _checked(token or dict(query).get("token", ""))
    prefix = parts.path.rstrip("/").removesuffix(CAPTIONS_PATH).removesuffix(STREAM_PATH)
    place = f"[{host}]" if ":" in host else host
    rest = urllib.parse.urlencode([(key, value) for key, value in query if key != "token"])
    address = urllib.parse.urlunsplit((scheme, place if port is None else f"{place}:{port}", prefix + path, rest, ""))
    return DaemonAddress(address, token, digest)


def _checked(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise UsageError("invalid characters in the token: expected printable ASCII; copy it again")
    return token


def log_notice(text: str) -> None:
    logger.warning("%s", text)


class Events:
    """A daemon's events: `for event in events`, or `async for`. Each loop has a connection of its own."""

    def __init__(self, begin: Callable[[], AsyncGenerator[Event, None]]) -> None:
        """Iterate over `begin()` in each loop."""
        self._begin = begin

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        return self._begin()

    def __iter__(self) -> Generator[Event, None, None]:
        return _in_thread(self._begin())


def _in_thread(events: AsyncGenerator[Event, None]) -> Generator[Event, None, None]:
    """Yield the items of an asynchronous generator, which a thread runs, so that this works within a running loop."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    lock = asyncio.Lock()  # a generator must not be closed while it runs

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(stop.wait())

    async def locked(step: Callable[[], Awaitable[Event | None]]) -> Event | None:
        async with lock:
            return await step()

    def result(step: Callable[[], Awaitable[Event | None]]) -> Event | None:
        future = asyncio.run_coroutine_threadsafe(locked(step), loop)
        try:
            while not future.done():
                wait([future], timeout=0.2)  # in steps, so that Ctrl-C gets through on every system
            return future.result()
        finally:
            future.cancel()

    thread = threading.Thread(target=work, name="streamer-client", daemon=True)
    thread.start()
    try:
        while (event := result(lambda: anext(events, None))) is not None:
            yield event
    finally:
        if not sys.is_finalizing():  # otherwise the thread no longer runs, and the wait for it would not end
            try:
                result(events.aclose)
            finally:
                loop.call_soon_threadsafe(stop.set)
                thread.join()


class GoneError(Exception):
    """The daemon cannot be reached now; it may come back."""


class Reconnection:
    """Waits for a daemon that went away, longer after each attempt."""

    def __init__(self, address: DaemonAddress, on_notice: Callable[[str], None], wait_s: float | None = None) -> None:
        """Call `on_notice` once when the daemon goes away, and when it is back.

        wait_s : how long it may be away, at the start as well; None: not at all at the start, later without limit
        """
        self._address = address
        self._on_notice = on_notice
        self._wait_s = wait_s
        self._delay_s = FIRST_DELAY_S
        # Whether it was ever connected; when it was lost (monotonic), as reported, None while it is connected.
        self._known = False
        self._away_since_s: float | None = None

    def connected(self) -> None:
        """Note a new connection."""
        if self._away_since_s is not None:
            self._on_notice(f"{self._address} is back")
        self._known, self._away_since_s = True, None

    def works(self) -> None:
        """Note that an event arrived, which resets the delay; a connection alone may still be refused."""
        self.connected()
        self._delay_s = FIRST_DELAY_S

    async def wait(self, gone: GoneError) -> None:
        """Wait before the next attempt. Raises PeerError if the daemon is away for too long."""
        now_s = time.monotonic()
        reported = self._away_since_s is not None
        self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        default_s = math.inf if self._known else 0.0
        if now_s - self._away_since_s >= (default_s if self._wait_s is None else self._wait_s):
            raise PeerError(
                f"no daemon at {self._address} ({gone}): start one with `streamer run`, or name another address"
            ) from None
        if not reported:
            state = "went away" if self._known else "is not there"
            self._on_notice(f"{self._address} {state} ({gone}): waiting for it to come back")
        # Jitter, so that clients of one daemon do not all reconnect at the same moment.
        delay_s = self._delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        logger.debug("trying again in %.1f s: %s", delay_s, gone)
        await asyncio.sleep(delay_s)
        self._delay_s = min(MAX_DELAY_S, 2 * self._delay_s)


class Place:
    """Session and number of the newest event."""

    def __init__(self) -> None:
        self.session = ""
        self.seq = 0

    def moved(self, event: Event) -> bool:
        """Advance to an event; return whether it is new."""
        # A gateway's errors about a session have no number of their own.
        between = isinstance(event, Error) and not event.fatal and event.seq == self.seq
        if event.session == self.session and event.seq <= self.seq and not between:
            return False
        self.session, self.seq = event.session, event.seq
        return True


async def connected(
    address: DaemonAddress, place: Place | None = None, *, answer_s: float | None = KEEPALIVE_S
) -> ClientConnection:
    """Connect; with a place, to the captions after it. A daemon that answers no ping for `answer_s` is gone.

    Raises GoneError if the daemon cannot be reached now, PeerError or UsageError if a retry is useless.
    """
    url, host = address.url, urllib.parse.urlsplit(address.url).hostname or ""
    how: dict[str, Any] = {}
    if address.fingerprint:
        how = {"ssl": tls_context(address), "create_connection": _pinned(address.fingerprint)}
    elif address.unix_socket:
        how = {"unix": True, "path": address.unix_socket}
    if place is not None and place.seq:
        query = urllib.parse.urlencode({"after": place.seq, "session": place.session})
        url += ("&" if "?" in url else "?") + query
    try:
        return await connect(
            url,
            additional_headers={"Authorization": f"Bearer {address.token}"} if address.token else None,
            compression=None,  # small messages, and soon rather than small
            max_size=MAX_EVENT_BYTES,
            max_queue=MAX_QUEUED_EVENTS,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=KEEPALIVE_S,
            ping_timeout=answer_s,
            proxy=None if is_loopback(host) else True,  # a proxy cannot reach this machine's own ports
            **how,
        )
    except (OSError, EOFError, InvalidHandshake, InvalidURI, ValueError) as error:
        raise _failure(error, address, url) from None


def _failure(error: Exception, address: DaemonAddress, url: str) -> Exception:
    """Return a GoneError, PeerError or UsageError for an error of `connect`."""
    match error:
        case InvalidURI() if error.uri == url:
            return UsageError(f"{address} is not the address of a daemon: expected HOST:PORT or ws://HOST:PORT")
        case InvalidURI():
            return PeerError(f"{address} redirects to {one_line(error.uri):.200}: give that address instead")
        case InvalidStatus():
            status = error.response.status_code
            said = one_line(bytes(error.response.body or b"")[:300].decode("utf-8", "replace"))
            if status >= 500:
                return GoneError(f"HTTP status {status}{f', {said}' if said else ''}")
            remedy = ": give its token with --token-file FILE" if status in (401, 403) else ""
            return PeerError(f"{address} answered HTTP status {status}{f' ({said})' if said else ''}{remedy}")
        case InvalidHandshake() if isinstance(error.__cause__, EOFError | OSError):
            hint = ": does it speak TLS, at wss://?" if str(address).startswith("ws://") else ""
            return GoneError(f"it closed the connection{hint}")
        case InvalidHandshake():
            return PeerError(f"{address} does not speak WebSocket ({one_line(error):.300}): is a daemon there?")
        case TimeoutError():
            return GoneError("no answer")
        case ssl.SSLCertVerificationError():
            return PeerError(
                f"{address} has a certificate that is not trusted ({one_line(error.verify_message)}): give its"
                " fingerprint, which the daemon prints at its start, with --fingerprint"
            )
        case ssl.SSLEOFError():
            return GoneError("it closed the connection")
        case ssl.SSLError():
            return PeerError(f"{address} does not speak TLS ({one_line(error.reason)}): is it a ws:// address?")
        case OSError(errno=int(number)) if number:
            # asyncio writes the address into strerror of positive numbers.
            return GoneError(error.strerror if number < 0 and error.strerror else os.strerror(number))
        case OSError() | EOFError():  # asyncio names no reason if it tried several addresses
            return GoneError(one_line(error) or "it closed the connection")
        case _:  # a redirect to a malformed address
            return PeerError(f"{address} answered with a wrong address ({one_line(error):.300}): is a daemon there?")


def tls_context(address: DaemonAddress) -> ssl.SSLContext:
    """Return a context which verifies the certificate, unless `check_certificate` is to do that by its fingerprint."""
    context = ssl.create_default_context()
    if address.fingerprint:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def check_certificate(connection: ssl.SSLObject, fingerprint: str) -> None:
    """Raise PeerError unless the peer has this certificate."""
    found = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    if found != fingerprint:
        raise PeerError(
            f"the daemon shows another certificate, SHA-256 {found}: expected {fingerprint}; if the daemon made a new"
            " one, it prints the fingerprint at its start"
        )


def _pinned(fingerprint: str) -> type[ClientConnection]:
    """Return a connection class that sends nothing, in particular no token, unless the peer has this certificate."""

    class PinnedConnection(ClientConnection):
        async def handshake(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
            check_certificate(self.transport.get_extra_info("ssl_object"), fingerprint)
            await super().handshake(*arguments, **options)

    return PinnedConnection


async def events_of(address: DaemonAddress, connection: ClientConnection) -> AsyncGenerator[Event, None]:
    """Yield the events of one connection until it is closed with 1000. Raises GoneError if it ends otherwise."""
    while True:
        try:
            message = await connection.recv()
        except ConnectionClosedOK as closed:
            if _code(closed) == 1000:
                return
            raise GoneError(_farewell(closed)) from None
        except ConnectionClosedError as closed:
            if _code(closed) in _REFUSALS:
                raise PeerError(f"{address} closed the connection ({_farewell(closed)})") from None
            raise GoneError(_farewell(closed)) from None
        try:
            if isinstance(message, bytes):
                raise ProtocolError("a binary message: expected events as text")
            event = from_json(message)
        except UnknownEventError as error:  # a newer daemon may have more types
            logger.debug("%s sent an event of an unknown type: %s", address, error)
            continue
        except ProtocolError as error:
            raise PeerError(
                f"{address} sent an invalid event: {one_line(error):.300}; do both have the same version?"
            ) from None
        yield event


def _code(closed: ConnectionClosed) -> int:
    """Return the close code: the daemon's, or our own after a violation of the protocol."""
    frame = closed.rcvd or closed.sent
    return frame.code if frame else 1006


def _farewell(closed: ConnectionClosed) -> str:
    frame = closed.rcvd or closed.sent
    if frame is None:
        return "the connection broke"
    return f"close code {frame.code}{f', {one_line(frame.reason)}' if frame.reason else ''}"
