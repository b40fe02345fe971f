"""TLS: the server's certificate, from files that are exchanged while it serves, or made here for this machine."""

import asyncio
import contextlib
import datetime
import hashlib
import ipaddress
import logging
import os
import re
import socket
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path

import platformdirs
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from streamer.errors import ConfigError
from streamer.outside import is_loopback, one_line
from streamer.server.access import is_wildcard
from streamer.server.sockets import own_addresses, url
from streamer.server.watched import Stamp, read_file, stamp
from streamer.settings.table import ServerSettings

logger = logging.getLogger(__name__)

POLL_S = 2.0  # from one look at the files to the next

VALID_DAYS = 825  # the most that browsers of Apple accept of a certificate (support.apple.com/103769)
RENEWAL_DAYS = 30  # before it ends
CLOCK_DAYS = 1  # by which another machine's clock may be slow
MAX_NAMES = 100  # of a certificate made here

# A name that a certificate can hold (RFC 1123, 2.1).
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")


class Tls:
    """The server's certificate, the newest that could be loaded."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load a certificate with its chain, and its private key, from PEM files.

        Raises ConfigError if there is no valid pair.
        """
        self._certificate = certificate
        self._key = key
        # The files as they were when they were loaded last, with success or without; and when they were last checked.
        self._tried = self._seen = self._stamps()
        # What the server listens with; and SHA-256 of its certificate, as browsers show it: pairs of hexadecimal digits
        # with colons between.
        self.context, self.fingerprint = _load(certificate, key)

    async def watch(self, host: str, port: int) -> None:
        """Log the addresses of the page, and exchange the certificate whenever the files change."""
        logger.info("certificate, SHA-256 fingerprint %s", self.fingerprint)
        urls = network_urls(host, port)
        if urls:
            logger.info("in this network: %s", ", ".join(urls))
        while True:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Load the files if they have changed, and not again since the last time."""
        stamps = self._stamps()
        before, self._seen = self._seen, stamps
        # Certificate and key are replaced one after the other: only what stays is a pair.
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
    """Return the certificate of the settings, None where the server has none.

    directory : of the certificate made here; None: the user's own

    It may ask the network for this machine's name, and wait. Raises ConfigError.
    """
    mode, certificate, key = settings.tls, settings.tls_certificate, settings.tls_key
    if key and not certificate:
        raise ConfigError("server.tls_key is set and server.tls_certificate is not: expected both")
    if mode == "self-signed":
        if certificate:
            raise ConfigError(
                "server.tls is self-signed and server.tls_certificate is set: leave out the file, or set server.tls"
                " to on"
            )
        path = certificate_path(settings, directory)
        extra = set() if is_wildcard(settings.host) else {settings.host.strip("[]").lower()}
        try:
            renew_self_signed(path, extra)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error.strerror}): expected a place for the certificate that server.tls"
                " self-signed makes; name your own in server.tls_certificate and server.tls_key"
            ) from None
        return Tls(path, path)
    if mode == "on" and not certificate:
        raise ConfigError(
            "server.tls is on and server.tls_certificate is empty: name the PEM files in server.tls_certificate and"
            " server.tls_key, or set server.tls to self-signed"
        )
    if mode == "off" or not certificate:
        return None
    return Tls(certificate_path(settings), Path(key or certificate).expanduser())


def certificate_path(settings: ServerSettings, directory: Path | None = None) -> Path:
    """Return the file of the certificate; of one that is made here it has the key too, and only its user reads it.

    directory : of the certificate made here; None: the user's own
    """
    if settings.tls != "self-signed":
        return Path(settings.tls_certificate).expanduser()
    return (directory or platformdirs.user_data_path("streamer", appauthor=False) / "tls") / "self-signed.pem"


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of the first certificate in a PEM file. Raises ConfigError where there is none."""
    return _fingerprint(_certificates(path)[0])


def network_urls(host: str, port: int) -> list[str]:
    """Return the addresses of the page that other machines can open, IPv4 first."""
    if not is_wildcard(host):
        return [] if is_loopback(host) else [url("https", host.strip("[]"), port)]
    wanted = [address for address in own_addresses() if ":" in host or address.version == 4]
    return [url("https", str(address), port) for address in wanted if not address.is_loopback]


def renew_self_signed(path: Path, extra: Iterable[str] = ()) -> bool:
    """Make a certificate where there is none, it ends soon, or it lacks a name of this machine; say whether.

    Its names are the host names and addresses that this machine has or had, and `extra`: a computer that moves between
    two networks keeps one certificate. IPv6 addresses do not decide, as they change by the day (RFC 8981).

    Raises OSError where it cannot be written.
    """
    host = socket.gethostname().lower()
    addresses = set(map(str, own_addresses()))
    wanted = {host, f"{host.partition('.')[0]}.local", "localhost", "127.0.0.1", "::1", *extra}
    wanted |= {address for address in addresses if ":" not in address}
    wanted = {str(found.value) for name in wanted if (found := _general_name(name)) is not None}
    now = datetime.datetime.now(datetime.UTC)
    known: set[str] = set()
    with contextlib.suppress(ConfigError):
        _load(path, path)
        old = _certificates(path)[0]
        known = _names(old)
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
    """Return a new key and its certificate as PEM (RFC 5280, RFC 9525). No authority: it vouches for nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "streamer")])
    begin = now - datetime.timedelta(days=CLOCK_DAYS)
    general_names = [found for name in names if (found := _general_name(name)) is not None]
    certificate = (
        x509.CertificateBuilder(issuer_name=subject, subject_name=subject, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(general_names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(True, *[False] * 8), critical=True)  # digital signatures alone
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem) + secret


def _write(path: Path, data: bytes) -> None:
    """Put a file into its place at once, readable by its user only."""
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
    """Load a pair, and return its fingerprint too. Raises ConfigError, which says precisely what is wrong with it."""
    first = _certificates(certificate)[0]
    if _private_key(key) != first.public_key():
        raise ConfigError(
            f"server.tls_key {key} does not belong to server.tls_certificate {certificate}: expected the key of its"
            " first certificate"
        )
    context = _context()
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"server.tls_certificate {certificate} cannot be used ({one_line(reason)}): expected a certificate for a"
            " server, with its chain, and its key"
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    if not first.not_valid_before_utc <= now <= first.not_valid_after_utc:
        logger.warning(
            "%s is valid from %s to %s: clients will refuse it now",
            certificate,
            first.not_valid_before_utc.date(),
            first.not_valid_after_utc.date(),
        )
    return context, _fingerprint(first)


def _context() -> ssl.SSLContext:
    # Its defaults are good: TLS 1.2 at least, ciphers with forward secrecy only, no compression.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: it costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])
    return context


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(path, "server.tls_certificate"))
    except ValueError:
        raise ConfigError(
            f"server.tls_certificate {path} has no certificate: expected PEM, -----BEGIN CERTIFICATE-----"
        ) from None


def _private_key(path: Path) -> object:
    """Return the public half of a private key."""
    try:
        return serialization.load_pem_private_key(_read(path, "server.tls_key"), None).public_key()
    except TypeError:
        raise ConfigError(
            f"server.tls_key {path} is encrypted: expected a key without password, which"
            " `openssl pkey -in FILE -out FILE` writes"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"server.tls_key {path} has no private key: expected PEM, -----BEGIN PRIVATE KEY-----"
        ) from None


def _read(path: Path, name: str) -> bytes:
    return read_file(path, f"{name} {path}", "a PEM file that this user may read")


def _fingerprint(certificate: x509.Certificate) -> str:
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).digest().hex(":").upper()


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _general_name(name: str) -> x509.GeneralName | None:
    """Return a name or address as certificates hold it, None where they cannot."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name) if _DNS_NAME.fullmatch(name) else None
