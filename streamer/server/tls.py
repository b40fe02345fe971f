"""TLS: the server's certificate, from files that may be replaced while it runs, or self-signed for this machine."""

import asyncio
import logging
from pathlib import Path

import platformdirs

from streamer.errors import ConfigError
from streamer.extras import requires
from streamer.outside import is_loopback, is_wildcard, one_line
from streamer.server.certificates import load_pair
from streamer.server.sockets import reachable, url
from streamer.server.watched import Stamp, stamp
from streamer.settings.table import ServerSettings

logger = logging.getLogger(__name__)

POLL_S = 2.0  # between two checks of the files


class Tls:
    """The server's certificate: the newest that could be loaded."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load a certificate with its chain, and its private key, from PEM files.

        Raises ConfigError if there is no valid pair.
        """
        self._certificate = certificate
        self._key = key
        # The files as they were at the last attempt to load them, and at the last check.
        self._tried = self._seen = self._stamps()
        # For the server; and the SHA-256 of its certificate as browsers show it, such as "0A:F3:...".
        self.context, self.fingerprint = load_pair(certificate, key)

    async def watch(self, host: str, port: int) -> None:
        """Log the addresses of the page, and load the files again whenever they change."""
        logger.info("certificate, SHA-256 fingerprint %s", self.fingerprint)
        urls = network_urls(host, port)
        if urls:
            logger.info("in this network: %s", ", ".join(urls))
        while True:
            await asyncio.sleep(POLL_S)
            self.refresh()  # not in a thread: a handshake meanwhile may end the program in OpenSSL

    def refresh(self) -> None:
        """Load the files if they have changed, but not since the last check: they are replaced one after the other."""
        stamps = self._stamps()
        before, self._seen = self._seen, stamps
        if stamps == self._tried or stamps != before:
            return
        self._tried = stamps
        try:
            _, self.fingerprint = load_pair(self._certificate, self._key)  # a broken pair must not touch the one in use
            self.context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ConfigError) as error:
            logger.warning("the certificate in use is kept: %s", one_line(error))
            return
        logger.info("new certificate, SHA-256 fingerprint %s", self.fingerprint)

    def _stamps(self) -> tuple[Stamp | None, Stamp | None]:
        return stamp(self._certificate), stamp(self._key)


def make_tls(settings: ServerSettings, directory: Path | None = None) -> Tls | None:
    """Return the certificate of the settings; None for plain HTTP.

    directory : of the self-signed certificate; None: in the user's data directory

    It may ask the network for this machine's name, and wait. Raises ConfigError.
    """
    certificate, key = settings.tls_certificate, settings.tls_key
    if key and not certificate:
        raise ConfigError("server.tls_key is set and server.tls_certificate is not: expected both")
    if settings.tls == "self-signed":
        if certificate:
            raise ConfigError(
                "server.tls is self-signed and server.tls_certificate is set: leave out the file, or set server.tls"
                " to on"
            )
        requires("cryptography", extra="tls", purpose="server.tls: self-signed")
        from streamer.server.self_signed import renew_self_signed  # late: it takes 9 MB

        path = certificate_path(settings, directory)
        try:
            renew_self_signed(path, set() if is_wildcard(settings.host) else {settings.host.strip("[]").lower()})
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error.strerror}): expected a writable place for the self-signed"
                " certificate; or name your own in server.tls_certificate and server.tls_key"
            ) from None
        return Tls(path, path)
    if settings.tls == "on" and not certificate:
        raise ConfigError(
            "server.tls is on and server.tls_certificate is empty: name the PEM files in server.tls_certificate and"
            " server.tls_key, or set server.tls to self-signed"
        )
    if settings.tls == "off" or not certificate:
        return None
    return Tls(certificate_path(settings), Path(key or certificate).expanduser())


def certificate_path(settings: ServerSettings, directory: Path | None = None) -> Path:
    """Return the certificate's file; a self-signed one contains the key too, and only its user may read it.

    directory : of the self-signed certificate; None: in the user's data directory
    """
    if settings.tls != "self-signed":
        return Path(settings.tls_certificate).expanduser()
    return (directory or platformdirs.user_data_path("streamer", appauthor=False) / "tls") / "self-signed.pem"


def network_urls(host: str, port: int) -> list[str]:
    """Return the addresses of the page that other machines can open."""
    if is_loopback(host):
        return []
    return [url("https", address, port) for address in reachable(host)]
