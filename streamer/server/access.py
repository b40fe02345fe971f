"""Access control: checks the Host, Origin and token of a request, and finds its client's address. No I/O but `Tokens`.

Captions are what people say, so three things are checked. A foreign Host header, on a loopback address, is a web site
whose name resolves to this machine (DNS rebinding). A foreign Origin is another web site whose page tries to connect
from the user's browser. The token keeps other people out if the daemon listens beyond this machine.
"""

import base64
import binascii
import ipaddress
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from streamer.errors import ConfigError
from streamer.outside import is_loopback, parse_address, printable
from streamer.server.limits import Guesses, Refusal
from streamer.server.tokens import ANYBODY, AccessToken, Scope, Tokens
from streamer.settings.table import ServerSettings

DEFAULT_PORTS = {"http": 80, "https": 443}

# Schemes that no page has. Others, such as `app` and `tauri`, are those of desktop programs' windows (Electron, Tauri)
# and of browsers' extensions.
_NO_PAGES = ("", "ws", "wss", "file")

# WebSocket subprotocols that are accepted: ours, OpenAI's and Deepgram's. A browser closes the connection if the server
# accepts none of those it offers (RFC 6455, 4.1).
SUBPROTOCOL = "streamer.v1"
SUBPROTOCOLS = (SUBPROTOCOL, "realtime", "token", "bearer")

# Prefixes of subprotocols that carry a token, since a browser cannot send headers with a WebSocket: ours, followed by
# base64url without padding, as a subprotocol cannot have every character; OpenAI's, followed by the token.
TOKEN_SUBPROTOCOL = "streamer.token."  # noqa: S105
OPENAI_SUBPROTOCOL = "openai-insecure-api-key."

# Origins that browsers send for pages opened as a file. `null` is also sent by sandboxed frames of any web site, so
# `server.origins` may contain it only if a token is required.
NULL = "null"
_NULL_ORIGINS = (NULL, "file://")

# Proxies that connect through the Unix socket, in `server.proxies`.
UNIX = "unix"

# Delay of the answer to a wrong token after too many from its address. So a connection tries one a second, and an
# address has at most `server.max_connections_per_address` connections.
GUESS_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class Proxies:
    """The reverse proxies whose X-Forwarded-For, -Host and -Proto are believed."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    unix: bool = False  # whether they include those that connect through the Unix socket

    @classmethod
    def parse(cls, entries: Collection[str]) -> "Proxies":
        """Read `server.proxies`. Raises ConfigError if an entry is not an address, a network or `unix`."""
        try:
            networks = tuple(ipaddress.ip_network(entry.strip("[]")) for entry in entries if entry != UNIX)
        except ValueError as error:
            raise ConfigError(
                f"server.proxies is not valid ({error}): expected addresses such as 10.0.0.7, networks such as"
                f" 10.0.0.0/8, or {UNIX} for the Unix socket"
            ) from None
        return cls(networks, UNIX in entries)

    def trust(self, peer: str) -> bool:
        """Return whether they include a peer: an IP address, or empty for the Unix socket."""
        address = parse_address(peer)
        if address is None:
            return self.unix and not peer
        return any(address in network for network in self.networks if network.version == address.version)


def client_address(peer: str, x_forwarded_for: str | None, proxies: Proxies) -> str:
    """Return the IP address of a request's client, or `unix`.

    peer : address of the other end of the connection; empty for the Unix socket
    x_forwarded_for : the header's value, several joined by commas; None if missing

    Each proxy appends the address of its client; everything left of that may be forged. So the client is the rightmost
    address that is not one of our proxies (RFC 7239, 5.2 and 8.1), or the peer if that is not an address.
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
    """Return the token of a request, None if it has none.

    authorizations : its Authorization headers
    subprotocols : what it offers in Sec-WebSocket-Protocol
    query : the values of `token` in its URL

    The first place that has one counts: `Authorization: Bearer T` or `Token T` (Deepgram's), then a subprotocol, then
    `?token=T`. Two in one place count as the empty token, which is always wrong.
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
    """Return the subprotocol to accept, None if no known one is offered."""
    return next((protocol for protocol in offered if protocol in SUBPROTOCOLS), None)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server."""

    host: str  # name or IP address that the server listens on
    tokens: Tokens
    origins: Collection[str] = ()  # that may connect besides our own page, as in `server.origins`
    proxies: Proxies = Proxies()
    guesses: Guesses = field(default_factory=Guesses)

    @classmethod
    def of(
        cls, settings: ServerSettings, default_token_file: Path | None = None, guesses: Guesses | None = None
    ) -> "Access":
        """Return the rules of the settings. Raises ConfigError as `check_settings` does, or if an entry is wrong.

        default_token_file : read if the settings name none, and it exists
        guesses : of the previous rules
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
        """Raise ConfigError if the rules leave the daemon open to a network, or make no sense."""
        if not self.host:
            raise ConfigError("server.host is empty: expected an address such as 127.0.0.1; 0.0.0.0 means all")
        if not is_loopback(self.host) and not self.tokens:
            raise ConfigError(
                f"server.host is {printable(self.host):.100}, which other machines can reach, and no token is required:"
                " make one with `streamer token new NAME`, set server.token, or listen on 127.0.0.1"
            )
        for origin in self.origins:
            if origin == NULL and not self.tokens.required:
                raise ConfigError(
                    "server.origins has null, which pages of any web site can send, and no token is required: make one"
                    " with `streamer token new NAME`, or serve the page over HTTP and add its address instead"
                )
            if origin != NULL and _parse_allowed(origin) is None:
                raise ConfigError(
                    f"server.origins has {origin!r:.100}: expected scheme and host, and the port unless it is the usual"
                    " one, such as https://example.org:8443; http://localhost:* for all ports of this machine; or null"
                )

    def check_peer(
        self, host: str | None, origin: str | None, *, forwarded_host: str | None = None, scheme: str | None = None
    ) -> Refusal | None:
        """Check the Host and Origin headers (None: missing) of any request.

        forwarded_host : X-Forwarded-Host of a trusted proxy; a page's own origin is compared with it
        scheme : `http` or `https` as the browser sees it; None if unknown, as behind a proxy that is not trusted
        """
        for name in (host, forwarded_host) if forwarded_host is not None else (host,):
            if is_loopback(self.host) and not self._is_own_name(name):
                text = "use http://127.0.0.1 or http://localhost, or add a proxy's address to server.origins"
                return Refusal(403, f"host {name!r:.100} is not a name of this daemon: {text}", "host")
        own = forwarded_host if forwarded_host is not None else host
        if origin is not None and not self._is_allowed_origin(origin, own, scheme):
            remedy = "add it to server.origins"
            if origin in _NULL_ORIGINS:
                remedy = "the page is a file; serve it over HTTP and add that address to server.origins"
            return Refusal(403, f"origin {origin!r:.100} is not allowed: {remedy}", "origin")
        return None

    def check_site(self, origin: str | None, fetch_site: str | None) -> Refusal | None:
        """Refuse images and frames of other web sites, which have no Origin header and could guess tokens.

        fetch_site : the header Sec-Fetch-Site, which browsers send to this machine and over TLS (W3C, Fetch Metadata)
        """
        if origin is None and fetch_site in ("cross-site", "same-site"):
            return Refusal(403, "the request comes from a page of another web site: open the address itself", "origin")
        return None

    def check_token(self, shown: str | None, scope: Scope, address: str, now: float) -> AccessToken | Refusal:
        """Check a request's token (see `shown_token`); return it, or `ANYBODY` if none is required.

        scope : that the request needs
        address : of the client (see `client_address`)
        now : seconds since 1970
        """
        if not self.tokens.required:
            return ANYBODY
        if shown is None:
            text = "a token is required: send 'Authorization: Bearer TOKEN'"
            return Refusal(401, text, "token", {"WWW-Authenticate": "Bearer"})
        # Before the limit: a client that guesses from the owner's address or proxy must not lock the owner out.
        token = self.tokens.find(shown, now)
        if token is None:
            wait_s = math.ceil(self.guesses.count_wrong(address, now))
            if wait_s:
                text = "the token is wrong, and this address has sent too many wrong ones: try again in"
                headers = {"Retry-After": str(wait_s)}
                return Refusal(429, f"{text} {wait_s} s", "guessing", headers, delay_s=GUESS_DELAY_S)
            text = "the token is wrong, revoked or expired: make another with `streamer token new NAME`"
            return Refusal(401, text, "token", {"WWW-Authenticate": 'Bearer error="invalid_token"'})  # RFC 6750, 3.1
        if scope not in token.scopes:
            text = f"token {token.name} lacks the scope {scope}: it has {', '.join(token.scopes)}; use another token"
            challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
            return Refusal(403, text, "scope", {"WWW-Authenticate": challenge})
        return token

    def _is_own_name(self, host: str | None) -> bool:
        name = _split_host(host or "")[0]
        # The name in a program's `app://NAME` is no machine's.
        origins = (_parse_allowed(origin) for origin in self.origins)
        return name in {self.host.lower().strip("[]"), "localhost", "127.0.0.1", "::1"} or any(
            origin is not None and origin[0] in DEFAULT_PORTS and name == origin[1] for origin in origins
        )

    def _is_allowed_origin(self, origin: str, host: str | None, own_scheme: str | None) -> bool:
        if origin in _NULL_ORIGINS:
            return NULL in self.origins
        parsed = _parse_origin(origin)
        if parsed is None:
            return False
        scheme, name, port = parsed
        own_name, own_port = _split_host(host or "")
        usual = DEFAULT_PORTS.get(scheme)
        if usual and own_scheme in (None, scheme) and (name, port) == (own_name, own_port or usual):
            return True
        allowed = (_parse_allowed(entry) for entry in self.origins)
        return any(entry in (parsed, (scheme, name, None)) for entry in allowed)


def _subprotocol_tokens(offered: Sequence[str]) -> list[str]:
    ours = [each.removeprefix(TOKEN_SUBPROTOCOL) for each in offered if each.startswith(TOKEN_SUBPROTOCOL)]
    openai = [each.removeprefix(OPENAI_SUBPROTOCOL) for each in offered if each.startswith(OPENAI_SUBPROTOCOL)]
    deepgram = offered[1:] if len(offered) == 2 and offered[0].lower() in ("token", "bearer") else ()
    return [*map(_decoded, ours), *openai, *deepgram]


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""


def _split_host(host: str) -> tuple[str, int | None]:
    """Split a Host header into its lower-case name and port; the name is empty if the header is malformed."""
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
    if parts.scheme in _NO_PAGES or not parts.hostname or parts.path or parts.query or parts.username:
        return None
    return parts.scheme, parts.hostname, port or DEFAULT_PORTS.get(parts.scheme, 0)


def _parse_allowed(entry: str) -> tuple[str, str, int | None] | None:
    """Parse an entry of `server.origins`; None if malformed. Its port is None for all ports of this machine."""
    if entry.endswith(":*"):
        parsed = _parse_origin(entry[:-1] + "0")
        return (*parsed[:2], None) if parsed is not None and is_loopback(parsed[1]) else None
    return _parse_origin(entry) if "*" not in entry else None
