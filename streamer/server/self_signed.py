"""A certificate that the server makes itself, for the names and addresses of this machine."""

import contextlib
import datetime
import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from streamer.errors import ConfigError
from streamer.server.certificates import first_certificate, load_pair
from streamer.server.sockets import own_addresses

VALID_DAYS = 825  # the most that browsers of Apple accept of a certificate (support.apple.com/103769)
RENEWAL_DAYS = 30  # before it ends
CLOCK_DAYS = 1  # by which another machine's clock may be slow
MAX_NAMES = 100  # of a self-signed certificate


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
    with contextlib.suppress(ConfigError, ValueError, x509.ExtensionNotFound):
        load_pair(path, path)
        old = x509.load_der_x509_certificate(first_certificate(path))
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = {str(name.value) for name in names}
        if wanted <= known and now < old.not_valid_after_utc - datetime.timedelta(days=RENEWAL_DAYS):
            return False
    wanted |= addresses
    with contextlib.suppress(UnicodeError):  # a host name that cannot be a domain's
        wanted.add(socket.getfqdn().lower())  # it asks the network, and so only now
    if len(wanted | known) <= MAX_NAMES:
        wanted |= known
    _write(path, _self_signed(sorted(wanted), now))
    return True


def _self_signed(names: Iterable[str], now: datetime.datetime) -> bytes:
    """Return a new certificate and its key as PEM (RFC 5280, RFC 9525). It cannot sign other certificates."""
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
