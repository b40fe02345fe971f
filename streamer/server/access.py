"""Who may ask: the Host, Origin and token of a request, and where it came from. Decisions; only `Tokens` reads a file.

Captions are what a microphone hears, so three things are checked. A Host header that is not ours, on a loopback
address, is a web site that had its name resolve to this machine (DNS rebinding). An Origin that is not ours is another
web site whose page tries to connect from the user's browser. The token keeps out everybody else where the daemon
listens beyond this machine.
"""

import base64
import binascii
import ipaddress
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from streamer.errors import ConfigError
from streamer.outside import is_loopback, parse_address, printable
from streamer.server.guesses import Guesses
from streamer.server.tokens import ANYBODY, Scope, Token, Tokens
from streamer.settings.table import ServerSettings

DEFAULT_PORTS = {"http": 80, "https": 443}

# WebSocket subprotocols that are answered: ours, OpenAI's and Deepgram's. A browser that offers some and is answered
# none closes the connection (RFC 6455, 4.1).
SUBPROTOCOL = "streamer.v1"
SUBPROTOCOLS = (SUBPROTOCOL, "realtime", "token", "bearer")

# Subprotocols that carry a token, since a browser can send no header with a WebSocket: ours, in base64url without
# padding, as a subprotocol cannot have every character; OpenAI's, as it is.
TOKEN_SUBPROTOCOL = "streamer.token."  # noqa: S105
OPENAI_SUBPROTOCOL = "openai-insecure-api-key."

# In `server.origins`: pages opened as a file, by the names that browsers send. One of these is also that of any
# web site's sandboxed frames, so it can be listed only where a token is asked for.
NULL = "null"
_NULL_ORIGINS = (NULL, "file://")

# The proxies that connect through the Unix socket, in `server.proxies`.
UNIX = "unix"

# How much later a wrong token is answered once too many came from its address. Each connection then tries one a second,
# and an address has `server.max_connections_per_address` of them at most.
GUESS_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned away."""

    status: int
    message: str

    # For the metrics, in a word.
    reason: str

    # Of the response.
    headers: Mapping[str, str] = field(default_factory=dict)

    # How long the response is held back.
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Proxies:
    """The reverse proxies whose X-Forwarded-For, -Host and -Proto are believed."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    # Whether those are that connect through the Unix socket.
    unix: bool = False

    @classmethod
    def parse(cls, entries: Collection[str]) -> "Proxies":
        """Read `server.proxies`. Raises ConfigError where an entry is no address, no network and not `unix`."""
        try:
            networks = tuple(ipaddress.ip_network(entry.strip("[]")) for entry in entries if entry != UNIX)
        except ValueError as error:
            raise ConfigError(
                f"server.proxies cannot be used ({error}): expected addresses such as 10.0.0.7, networks such as"
                f" 10.0.0.0/8, or {UNIX} for the Unix socket"
            ) from None
        return cls(networks, UNIX in entries)

    def trust(self, peer: str) -> bool:
        """Return whether a peer is one of them; `peer` is an IP address, or empty for the Unix socket."""
        address = parse_address(peer)
        if address is None:
            return self.unix and not peer
        return any(address in network for network in self.networks if network.version == address.version)


def client_address(peer: str, x_forwarded_for: str | None, proxies: Proxies) -> str:
    """Return whose request it is: the IP address of the client, or `unix`.

    peer : address of the other end of the connection; empty for the Unix socket
    x_forwarded_for : the header's value, several joined by commas; None where there is none

    Each proxy appends the address it was asked from, and what stands left of that may be anybody's invention. So the
    client is the rightmost address that is not one of our proxies (RFC 7239, 5.2 and 8.1). Where that is no address,
    it is the peer.
    """
    client = peer
    if x_forwarded_for is not None and proxies.trust(peer):
        for hop in reversed(x_forwarded_for.split(",")):
            address = parse_address(hop.strip())
            if address is None:
                client = peer
                break
            client = str(address)
            if not proxies.trust(client):
                break
    address = parse_address(client)
    return str(address) if address is not None else client or UNIX


def shown_token(authorizations: Sequence[str], subprotocols: Sequence[str], query: Sequence[str]) -> str | None:
    """Return the token that a request shows, None where it shows none.

    authorizations : its Authorization headers
    subprotocols : what it offers in Sec-WebSocket-Protocol
    query : the values of `token` in its address

    The first place that has one counts: `Authorization: Bearer T` or `Token T` (Deepgram's), then a subprotocol, then
    `?token=T`. Two in one place are the empty token, which nobody has.
    """
    schemes = [value.strip().partition(" ") for value in authorizations]
    found = [rest.strip() for scheme, _, rest in schemes if scheme.lower() in ("bearer", "token")]
    if found and len(authorizations) > 1:
        return ""
    for places in (found, _subprotocol_tokens(subprotocols), query):
        if places:
            return places[0] if len(places) == 1 else ""
    return None


def chosen_subprotocol(offered: Sequence[str]) -> str | None:
    """Return the subprotocol to answer, None where none is offered that we know."""
    return next((protocol for protocol in offered if protocol in SUBPROTOCOLS), None)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server."""

    # Address the server is bound to: a name or an IP address.
    host: str

    # What clients may show.
    tokens: Tokens

    # Web origins, such as `https://example.org`, `http://localhost:*` or `null`, that may connect besides our own page.
    origins: Collection[str] = ()

    # Who tells us of whom requests are.
    proxies: Proxies = Proxies()

    guesses: Guesses = field(default_factory=Guesses)

    @classmethod
    def of(
        cls, settings: ServerSettings, default_token_file: Path | None = None, guesses: Guesses | None = None
    ) -> "Access":
        """Return the rules that the settings say.

        default_token_file : read where the settings name none, and it is there
        guesses : those of the rules before

        Raises ConfigError where they leave the daemon open to a network, or make no sense.
        """
        named = bool(settings.token_file)
        access = cls(
            host=settings.host.strip("[]"),
            tokens=Tokens(settings.token, Path(settings.token_file) if named else default_token_file, must_exist=named),
            origins=settings.origins,
            proxies=Proxies.parse(settings.proxies),
            guesses=guesses or Guesses(),
        )
        access.check_settings()
        return access

    def check_settings(self) -> None:
        """Raise ConfigError where the rules leave the daemon open to a network, or closed to everybody."""
        if not self.host:
            raise ConfigError("server.host is empty: expected an address such as 127.0.0.1; 0.0.0.0 means all")
        if not is_loopback(self.host) and not self.tokens:
            raise ConfigError(
                f"server.host is {printable(self.host):.100}, which other machines can reach, and server.token is"
                " empty: anybody there could read along; make a token with `streamer token new NAME`, set server.token,"
                " or listen on 127.0.0.1"
            )
        for origin in self.origins:
            if origin == NULL and not self.tokens.required:
                raise ConfigError(
                    "server.origins has null, which pages of any web site can have, and no token is asked for: make one"
                    " with `streamer token new NAME`, or serve the page over HTTP and add its address instead"
                )
            if origin != NULL and _parse_allowed(origin) is None:
                raise ConfigError(
                    f"server.origins has {origin!r:.100}: expected scheme and host, such as https://example.org, with"
                    " another port than usual behind it; http://localhost:* for all ports of this machine; or null"
                )

    def check_peer(
        self, host: str | None, origin: str | None, *, forwarded_host: str | None = None, scheme: str | None = None
    ) -> Refusal | None:
        """Check the Host and Origin headers (None where there is none) of any request.

        forwarded_host : the name that a proxy we trust was asked for; a page's own origin is judged by it
        scheme : `http` or `https` as the browser sees it; None where that is not known, as behind a proxy not named
        """
        for name in (host, forwarded_host) if forwarded_host is not None else (host,):
            if is_loopback(self.host) and not self._is_own_name(name):
                return Refusal(
                    403,
                    f"host {name!r:.100} is not this daemon: use http://127.0.0.1 or http://localhost, or add the"
                    " address of a proxy to server.origins",
                    "host",
                )
        own = forwarded_host if forwarded_host is not None else host
        if origin is not None and not self._is_allowed_origin(origin, own, scheme):
            remedy = "add it to server.origins to allow it"
            if origin in _NULL_ORIGINS:
                remedy = "it stands for a file; serve the page over HTTP and add that address to server.origins"
            return Refusal(403, f"origin {origin!r:.100} may not connect: {remedy}", "origin")
        return None

    def check_site(self, origin: str | None, fetch_site: str | None) -> Refusal | None:
        """Check who asks for what needs a token: another web site's pictures and frames bring no Origin.

        They could guess tokens from the address of the browser's user. `fetch_site` is what browsers send as
        Sec-Fetch-Site to this machine and over TLS (W3C, Fetch Metadata Request Headers).
        """
        if origin is None and fetch_site in ("cross-site", "same-site"):
            return Refusal(403, "another web site asks for this: open it by its address", "origin")
        return None

    def check_token(self, shown: str | None, scope: Scope, address: str, now: float) -> Token | Refusal:
        """Check the token that a request shows (see `shown_token`); return it, or `ANYBODY` where none is asked for.

        scope : what the request needs
        address : whose it is (see `client_address`)
        now : seconds since 1970
        """
        if not self.tokens.required:
            return ANYBODY
        if shown is None:
            return Refusal(
                401, "a token is required: send 'Authorization: Bearer TOKEN'", "token", {"WWW-Authenticate": "Bearer"}
            )
        # Not after the limit: a client that guesses from the owner's address or proxy would lock the owner out.
        token = self.tokens.find(shown, now)
        if token is None:
            wait_s = self.guesses.count_wrong(address, now)
            if wait_s:
                return Refusal(
                    429,
                    "the token is wrong, and too many wrong ones came from this address: try again in"
                    f" {math.ceil(wait_s)} s",
                    "guessing",
                    {"Retry-After": str(math.ceil(wait_s))},
                    delay_s=GUESS_DELAY_S,
                )
            return Refusal(
                401,
                "the token is wrong, was revoked or has expired: `streamer token new` makes another",
                "token",
                {"WWW-Authenticate": 'Bearer error="invalid_token"'},  # RFC 6750, 3.1
            )
        if scope not in token.scopes:
            challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
            return Refusal(
                403,
                f"token {token.name} lacks the scope {scope}: it has {', '.join(token.scopes)}; use another token",
                "scope",
                {"WWW-Authenticate": challenge},
            )
        return token

    def _is_own_name(self, host: str | None) -> bool:
        name = _split_host(host or "")[0]
        origins = (_parse_allowed(origin) for origin in self.origins)
        return name in {self.host.lower().strip("[]"), "localhost", "127.0.0.1", "::1"} or any(
            origin is not None and name == origin[1] for origin in origins
        )

    def _is_allowed_origin(self, origin: str, host: str | None, own_scheme: str | None) -> bool:
        if origin in _NULL_ORIGINS:
            return NULL in self.origins
        parsed = _parse_origin(origin)
        if parsed is None:
            return False
        scheme, name, port = parsed
        own_name, own_port = _split_host(host or "")
        if own_scheme in (None, scheme) and (name, port) == (own_name, own_port or DEFAULT_PORTS[scheme]):
            return True
        allowed = (_parse_allowed(entry) for entry in self.origins)
        return any(entry in (parsed, (scheme, name, None)) for entry in allowed)


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for all addresses of the machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _subprotocol_tokens(offered: Sequence[str]) -> list[str]:
    found = [
        _decoded(protocol.removeprefix(TOKEN_SUBPROTOCOL))
        for protocol in offered
        if protocol.startswith(TOKEN_SUBPROTOCOL)
    ]
    found += [
        protocol.removeprefix(OPENAI_SUBPROTOCOL) for protocol in offered if protocol.startswith(OPENAI_SUBPROTOCOL)
    ]
    if len(offered) == 2 and offered[0].lower() in ("token", "bearer"):  # Deepgram's
        found.append(offered[1])
    return found


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""


def _split_host(host: str) -> tuple[str, int | None]:
    """Split a Host header into its lower-case name and port; the name is empty where the header makes no sense."""
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "", parts.port) if parts.netloc == host and "@" not in host else ("", None)
    except ValueError:
        return "", None


def _parse_origin(origin: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path or parts.query or parts.username:
        return None
    return parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme]


def _parse_allowed(entry: str) -> tuple[str, str, int | None] | None:
    """Read an entry of `server.origins`; None where it is none. Its port is None for all ports of this machine."""
    if entry.endswith(":*"):
        parsed = _parse_origin(entry[:-1] + "0")
        return (*parsed[:2], None) if parsed is not None and is_loopback(parsed[1]) else None
    return _parse_origin(entry) if "*" not in entry else None
