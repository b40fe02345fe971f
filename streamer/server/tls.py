"""TLS: the server's certificate, from files that may be replaced while it runs, or self-signed for this machine."""

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import os
import socket
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path

import platformdirs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from streamer.errors import ConfigError
from streamer.outside import is_loopback, is_wildcard, one_line
from streamer.server.sockets import own_addresses, reachable, url
from streamer.server.watched import Stamp, read_file, stamp
from streamer.settings.table import ServerSettings

logger = logging.getLogger(__name__)

POLL_S = 2.0  # between two checks of the files

VALID_DAYS = 825  # the most that browsers of Apple accept of a certificate (support.apple.com/103769)
RENEWAL_DAYS = 30  # before it ends
CLOCK_DAYS = 1  # by which another machine's clock may be slow
MAX_NAMES = 100  # of a self-signed certificate


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
        self.context, self.fingerprint = _load(certificate, key)

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
            _, self.fingerprint = _load(self._certificate, self._key)  # a broken pair must not touch the one in use
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


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of the first certificate in a PEM file. Raises ConfigError if it has none."""
    return _fingerprint(_first_certificate(path))


def network_urls(host: str, port: int) -> list[str]:
    """Return the addresses of the page that other machines can open."""
    if is_loopback(host):
        return []
    return [url("https", address, port) for address in reachable(host)]


def renew_self_signed(path: Path, extra: Iterable[str] = ()) -> bool:
    """Write a certificate if it is missing, expires soon, or it lacks a name of this machine; return whether.

    Its names are the host names and addresses that this machine has and had, and `extra`: a computer that moves between
    two networks keeps one certificate. New IPv6 addresses alone do not count, as they change by the day (RFC 8981).

    Raises OSError if it cannot be written.
    """
    host = socket.gethostname().lower()
    addresses = set(map(str, own_addresses()))
    wanted = {host, f"{host.partition('.')[0]}.local", "localhost", "127.0.0.1", "::1", *extra}
    wanted |= {address for address in addresses if ":" not in address}
    wanted = {str(found.value) for found in _general_names(wanted)}
    now = datetime.datetime.now(datetime.UTC)
    known: set[str] = set()
    with contextlib.suppress(ConfigError, x509.ExtensionNotFound):
        _load(path, path)
        old = _first_certificate(path)
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = {str(name.value) for name in names}
        if wanted <= known and now < old.not_valid_after_utc - datetime.timedelta(days=RENEWAL_DAYS):
            return False
    wanted |= addresses
    with contextlib.suppress(UnicodeError):  # a host name that is no domain's
        wanted.add(socket.getfqdn().lower())  # it asks the network, and so only now
    if len(wanted | known) <= MAX_NAMES:
        wanted |= known
    _write(path, _self_signed(sorted(wanted), now))
    return True


def _self_signed(names: Iterable[str], now: datetime.datetime) -> bytes:
    """Return a new certificate and its key as PEM (RFC 5280, RFC 9525). It is no authority for other certificates."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "streamer")])
    begin = now - datetime.timedelta(days=CLOCK_DAYS)
    certificate = (
        x509.CertificateBuilder(issuer_name=subject, subject_name=subject, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(True, *[False] * 8), critical=True)  # digital signatures alone
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem) + secret


def _write(path: Path, data: bytes) -> None:
    """Write a file in one step, readable by its user only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _load(certificate: Path, key: Path) -> tuple[ssl.SSLContext, str]:
    """Load a pair; return its context and fingerprint. Raises ConfigError."""
    first = _first_certificate(certificate)
    # Its defaults are good: ciphers with forward secrecy only, no compression.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: it costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"server.tls_key {key} cannot be used with server.tls_certificate {certificate} ({one_line(reason)}):"
            " expected PEM files of a certificate with its chain and of its private key without a password, which"
            " `openssl pkey -in FILE -out FILE` removes"
        ) from None
    begin, end = first.not_valid_before_utc, first.not_valid_after_utc
    if not begin <= datetime.datetime.now(datetime.UTC) <= end:
        text = "%s is valid from %s to %s: clients will refuse it now"
        logger.warning(text, certificate, begin.date(), end.date())
    return context, _fingerprint(first)


def _first_certificate(path: Path) -> x509.Certificate:
    data = read_file(path, f"server.tls_certificate {path}", "a PEM file that this user may read")
    try:
        return x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        raise ConfigError(
            f"server.tls_certificate {path} has no certificate: expected PEM, -----BEGIN CERTIFICATE-----"
        ) from None


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    """Return names and addresses as certificates contain them, without those that they cannot contain."""
    found: list[x509.GeneralName] = []
    for name in names:
        with contextlib.suppress(ValueError):  # not ASCII
            try:
                found.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                found.append(x509.DNSName(name))
    return found
