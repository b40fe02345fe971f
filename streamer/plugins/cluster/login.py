"""How a machine logs in at NATS: addresses, keys and certificates, from the section `cluster` of the settings."""

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from streamer.errors import ConfigError, MissingExtraError
from streamer.outside import host_port, one_line
from streamer.plugins.cluster.settings import ClusterSettings

try:
    import nkeys
    from nats import errors
    from nats.aio.client import Client, RawCredentials
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "nats", "cluster", "machines that are joined by NATS") from error

# Older servers, in a cluster, let several writers succeed that expect the same last sequence: none would be fenced.
OLDEST_SERVER = (2, 12)


class Login:
    """A machine's login, and what a server must offer before it gets it."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Read keys and certificates. Raises ConfigError."""
        given = [_server(url) for url in settings.nats]
        if not given:
            raise ConfigError(
                "no NATS server is given: name at least one with --nats URL, such as nats://10.0.0.1:4222"
            )
        # Host of each server by its address, HOST:PORT: the name that its certificate must have.
        self.servers = {host_port(each.hostname or "", each.port or 0): each.hostname or "" for each in given}
        self._tls = _tls(settings, given)
        self._shown = _shown(settings, given)

    def options(self, client: Client) -> dict[str, Any]:
        """Return nats-py's options for the connection that `client` is about to make.

        nats-py calls for the password or token just before it sends the login: an unsuitable server gets nothing.
        """
        name, n_before = "password" if "password" in self._shown else "token", self._n_encrypted()

        def secret() -> str:
            self._check(client, n_before)
            return str(self._shown.get(name, ""))

        return {**self._shown, name: secret, "tls": self._tls}

    def _check(self, client: Client, n_before: int) -> None:
        """Raise nats-py's Error unless a server can fence, and encrypts if that is asked for."""
        version = client.connected_server_version
        try:
            is_old = (version.major, version.minor) < OLDEST_SERVER
        except ValueError:
            is_old = True
        if is_old:
            raise errors.Error(
                f"it is {one_line(repr(version)):.60}, which is too old: it cannot fence one machine from another"
            )
        if self._tls is not None and self._n_encrypted() == n_before:
            raise errors.Error("it offers no TLS, and the login is only sent over TLS")

    def _n_encrypted(self) -> int:
        """Return how many connections were encrypted so far."""
        return self._tls.session_stats()["connect_good"] if self._tls is not None else 0


def _server(url: str) -> SplitResult:
    """Read the address of a server. Raises ConfigError, without what may be a password."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        if parts.port is None:
            parts = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:4222")
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise ConfigError(
            "malformed address in cluster.nats: expected nats://HOST:PORT or tls://HOST:PORT, with USER:PASSWORD@ or"
            " TOKEN@ before HOST if the server requires a login"
        )
    return parts


def _shown(settings: ClusterSettings, servers: list[SplitResult]) -> dict[str, Any]:
    """Return nats-py's options for what is shown. Raises ConfigError."""
    if settings.nkey_file and settings.credentials:
        raise ConfigError(
            "cluster.nkey_file and cluster.credentials are both set: each is a complete login, remove one"
        )
    if settings.nkey_file:
        seed = _read(settings.nkey_file).strip()
        try:
            nkeys.from_seed(bytearray(seed.encode()))
        except (nkeys.NkeysError, ValueError, LookupError, TypeError):
            raise ConfigError(
                f"{settings.nkey_file} is not an NKey: expected a user's seed, which begins with SU"
            ) from None
        return {"nkeys_seed_str": seed}
    if settings.credentials:
        text = _read(settings.credentials)
        # nats-py looks for them until it finds them.
        if not all(f"BEGIN {part}" in text for part in ("NATS USER JWT", "USER NKEY SEED")):
            raise ConfigError(
                f"{settings.credentials} is not a credentials file: expected the output of `nsc generate creds`"
            )
        return {"user_credentials": RawCredentials(text)}
    # Addresses of servers that others report hold no user: the one of the settings holds for all.
    user, password = next(((server.username, server.password) for server in servers if server.username), ("", None))
    if password is None:
        return {"token": unquote(user)} if user else {}
    return {"user": unquote(user or ""), "password": unquote(password)}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}, which section `cluster` names: {one_line(error)}") from None


def _tls(settings: ClusterSettings, servers: list[SplitResult]) -> ssl.SSLContext | None:
    """Return the TLS context; None if neither addresses nor settings ask for TLS."""
    if not (settings.ca or settings.certificate or any(server.scheme == "tls" for server in servers)):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key or None)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"cannot load cluster.ca, certificate or key: {one_line(error)}; expected PEM files, and the key of the"
            " certificate"
        ) from error
    return context
