"""A connection to a running daemon: its address, how it is opened, and what arrives over it."""

import hashlib
import logging
import os
import re
import ssl
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from streamer.errors import PeerError, ProtocolError, StreamerError, UnknownEventError, UsageError
from streamer.events import Event, from_json
from streamer.outside import is_loopback, one_line

logger = logging.getLogger(__name__)

DEFAULT_PORT = 8765
CAPTIONS_PATH = "/v1/captions"
STREAM_PATH = "/v1/stream"
MAX_EVENT_BYTES = 1 << 20  # an event with the words of 30 seconds has some ten kilobytes
MAX_QUEUED_EVENTS = 16  # that the caller has not read; then the daemon is held back
CLOSE_TIMEOUT_S = 2.0  # for the close handshake with a daemon that still sends
KEEPALIVE_S = 20.0  # from one ping to the next

# Close codes of errors that a new connection would repeat (RFC 6455, 7.4.1); 4000: another client has the stream.
_REFUSALS = (1002, 1003, 1007, 1008, 1009, 1010, 4000)


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


class GoneError(PeerError):
    """There is no connection now, but there may be one later."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def gone(address: DaemonAddress, reason: str) -> GoneError:
    """Return the error that there is no daemon at an address."""
    return GoneError(
        f"no daemon at {address} ({reason}): start one with `streamer run`, or name another address", reason
    )


async def open_connection(
    address: DaemonAddress, query: dict[str, Any], answer_s: float
) -> ClientConnection | StreamerError:
    """Connect to an address with a query, and return the connection or why there is none.

    answer_s : within which a daemon must answer a ping
    """
    url, host = address.url, urllib.parse.urlsplit(address.url).hostname or ""
    how: dict[str, Any] = {}
    if address.fingerprint:
        how = {"ssl": tls_context(address), "create_connection": _pinned(address.fingerprint)}
    elif address.unix_socket:
        how = {"unix": True, "path": address.unix_socket}
    if query:
        url += ("&" if "?" in url else "?") + urllib.parse.urlencode(query)
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
    except PeerError as error:  # another certificate
        return error
    except (OSError, EOFError, InvalidHandshake, InvalidURI, ValueError) as error:
        return _failure(error, address, url)


def _failure(error: Exception, address: DaemonAddress, url: str) -> StreamerError:
    """Return what an error of `connect` means."""
    match error:
        case InvalidURI() if error.uri == url:
            return UsageError(f"{address} is not the address of a daemon: expected HOST:PORT or ws://HOST:PORT")
        case InvalidURI():
            return PeerError(f"{address} redirects to {one_line(error.uri):.200}: give that address instead")
        case InvalidStatus():
            status = error.response.status_code
            said = one_line(bytes(error.response.body or b"")[:300].decode("utf-8", "replace"))
            if status >= 500:
                return gone(address, f"HTTP status {status}{f', {said}' if said else ''}")
            answer = f"answered HTTP status {status}{f' ({said})' if said else ''}"
            if status in (401, 403):
                return PeerError(f"{address} {answer}: give its token with --token-file FILE")
            return GoneError(f"{address} {answer}", f"it {answer}")
        case InvalidHandshake() if isinstance(error.__cause__, EOFError | OSError):
            hint = ": does it speak TLS, at wss://?" if str(address).startswith("ws://") else ""
            return gone(address, f"it closed the connection{hint}")
        case InvalidHandshake():
            return PeerError(f"{address} does not speak WebSocket ({one_line(error):.300}): is a daemon there?")
        case TimeoutError():
            return gone(address, "no answer")
        case ssl.SSLCertVerificationError():
            return PeerError(
                f"{address} has a certificate that is not trusted ({one_line(error.verify_message)}): give its"
                " fingerprint, which the daemon prints at its start, with --fingerprint"
            )
        case ssl.SSLEOFError():
            return gone(address, "it closed the connection")
        case ssl.SSLError():
            return PeerError(f"{address} does not speak TLS ({one_line(error.reason)}): is it a ws:// address?")
        case OSError(errno=int(number)) if number:
            # asyncio writes the address into strerror of positive numbers.
            return gone(address, error.strerror if number < 0 and error.strerror else os.strerror(number))
        case OSError() | EOFError():  # asyncio names no reason if it tried several addresses
            return gone(address, one_line(error) or "it closed the connection")
        case _:  # a redirect to a malformed address
            return PeerError(f"{address} answered with a wrong address ({one_line(error):.300}): is a daemon there?")


def log_notice(text: str) -> None:
    logger.warning("%s", text)


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


async def receive(address: DaemonAddress, connection: ClientConnection) -> Event | StreamerError:
    """Return the next event of a type that this version knows, or what ends the connection."""
    while True:
        try:
            message = await connection.recv()
        except ConnectionClosed as closed:
            return _farewell(address, closed)
        try:
            if isinstance(message, bytes):
                raise ProtocolError("a binary message: expected events as text")
            return from_json(message)
        except UnknownEventError as error:  # a newer daemon may have more types
            logger.debug("%s sent an event of an unknown type: %s", address, error)
        except ProtocolError as error:
            said = f"{address} sent an invalid event: {one_line(error):.300}"
            return PeerError(f"{said}; do both have the same version?")


def _farewell(address: DaemonAddress, closed: ConnectionClosed) -> PeerError:
    """Return what the close code means: the daemon's, or our own after a violation of the protocol."""
    frame = closed.rcvd or closed.sent
    if frame is None:
        return gone(address, "the connection broke")
    reason = f"close code {frame.code}{f', {one_line(frame.reason)}' if frame.reason else ''}"
    if frame.code in _REFUSALS:
        return PeerError(f"{address} closed the connection ({reason})")
    return gone(address, reason)
