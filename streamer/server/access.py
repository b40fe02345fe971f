"""Who may ask: the Host, Origin and token of a request. Pure decisions, no I/O.

Captions are what a microphone hears, so three things are checked. A Host header that is not ours, on a loopback
address, is a web site that had its name resolve to this machine (DNS rebinding). An Origin that is not ours is another
web site whose page tries to connect from the user's browser. The token keeps out everybody else where the daemon
listens beyond this machine.
"""

import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from streamer.errors import ConfigError
from streamer.outside import is_loopback

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned away."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server."""

    # Address the server is bound to: a name or an IP address.
    host: str

    # Required where not empty.
    token: str

    # Web origins, such as `https://example.org`, that may connect besides our own page.
    origins: Collection[str]

    def check_settings(self) -> None:
        """Raise ConfigError where the rules leave the daemon open to a network."""
        if not self.host:
            raise ConfigError("server.host is empty: expected an address such as 127.0.0.1; 0.0.0.0 means all")
        if not is_loopback(self.host) and not self.token:
            raise ConfigError(
                f"server.host is {self.host}, which other machines can reach, and server.token is empty: anybody there"
                " could read along; set server.token, or listen on 127.0.0.1"
            )
        for origin in self.origins:
            if _parse_origin(origin) is None:
                raise ConfigError(
                    f"server.origins has {origin!r}: expected scheme and host, such as https://example.org"
                )

    def check_peer(self, host: str | None, origin: str | None) -> Refusal | None:
        """Check the Host and Origin headers (None where there is none) of any request."""
        if is_loopback(self.host) and not self._is_local_name(host):
            return Refusal(403, f"host {host!r:.100} is not this daemon: use http://127.0.0.1 or http://localhost")
        if origin is not None and not self._is_allowed_origin(origin, host):
            return Refusal(403, f"origin {origin!r:.100} may not connect: add it to server.origins to allow it")
        return None

    def check_token(self, authorization: str | None, query_token: str | None) -> Refusal | None:
        """Check what a request brings as `Authorization: Bearer T` or `?token=T`."""
        if not self.token:
            return None
        scheme, _, bearer = (authorization or "").partition(" ")
        given = [bearer.strip()] if scheme.lower() == "bearer" else []
        given += [query_token] if query_token is not None else []
        wanted = self.token.encode("utf-8")
        if any(hmac.compare_digest(token.encode("utf-8", "replace"), wanted) for token in given):
            return None
        fact = "the token is wrong" if given else "a token is required"
        return Refusal(401, f"{fact}: send 'Authorization: Bearer TOKEN' or add ?token=TOKEN, as set in server.token")

    def _is_local_name(self, host: str | None) -> bool:
        name = _split_host(host or "")[0]
        return name in {self.host.lower().strip("[]"), "localhost", "127.0.0.1", "::1"}

    def _is_allowed_origin(self, origin: str, host: str | None) -> bool:
        parsed = _parse_origin(origin)
        if parsed is None:  # "null": a sandboxed frame or a local file
            return False
        scheme, name, port = parsed
        own_name, own_port = _split_host(host or "")
        if (name, port) == (own_name, own_port or DEFAULT_PORTS[scheme]):
            return True
        return any(parsed == _parse_origin(allowed) for allowed in self.origins)


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for all addresses of the machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


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
