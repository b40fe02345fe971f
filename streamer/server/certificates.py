"""Certificates in PEM files: loaded with their keys, fingerprints, dates; all without a package of cryptography."""

import base64
import datetime
import hashlib
import logging
import re
import ssl
from pathlib import Path

from streamer.errors import ConfigError
from streamer.outside import one_line
from streamer.server.watched import read_file

logger = logging.getLogger(__name__)

_PEM = re.compile(rb"-----BEGIN (?:X509 )?CERTIFICATE-----([^-]+)-----END")

# A certificate's `Validity` in DER: a sequence of two times, of which years up to 2049 have two digits (RFC 5280,
# 4.1.2.5). Before it are only numbers, identifiers and the issuer's name.
_VALIDITY = re.compile(rb"\x30[\x1e-\x22](?:\x17\x0d|\x18\x0f)(\d{12,14})Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z")


def load_pair(certificate: Path, key: Path) -> tuple[ssl.SSLContext, str]:
    """Load a pair; return its context and fingerprint. Raises ConfigError."""
    first = first_certificate(certificate)
    # Its defaults are good: ciphers with forward secrecy only, no compression.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: it costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        if isinstance(error, ssl.SSLError) and not error.reason:
            reason = "no key without a password"
        raise ConfigError(
            f"server.tls_key {key} cannot be used with server.tls_certificate {certificate} ({one_line(reason)}):"
            " expected PEM files of a certificate with its chain and of its private key without a password, which"
            " `openssl pkey -in FILE -out FILE` removes"
        ) from None
    dates = validity(first)
    if dates is not None and not dates[0] <= datetime.datetime.now(datetime.UTC) <= dates[1]:
        text = "%s is valid from %s to %s: clients will refuse it now"
        logger.warning(text, certificate, dates[0].date(), dates[1].date())
    return context, _fingerprint(first)


def first_certificate(path: Path) -> bytes:
    """Return the first certificate in a PEM file, in DER. Raises ConfigError if it has none."""
    data = read_file(path, f"server.tls_certificate {path}", "a PEM file that this user may read")
    found = _PEM.search(data)
    try:
        if found is None:
            raise ValueError
        return base64.b64decode(found[1])
    except ValueError:
        raise ConfigError(
            f"server.tls_certificate {path} contains no certificate: expected PEM, -----BEGIN CERTIFICATE-----"
        ) from None


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of the first certificate in a PEM file. Raises ConfigError if it has none."""
    return _fingerprint(first_certificate(path))


def validity(certificate: bytes) -> tuple[datetime.datetime, datetime.datetime] | None:
    """Return from when to when a certificate in DER is valid; None if it does not say so as RFC 5280 demands."""
    found = _VALIDITY.search(certificate)
    try:
        return (_date(found[1].decode()), _date(found[2].decode())) if found is not None else None
    except ValueError:
        return None


def _date(digits: str) -> datetime.datetime:
    century = "" if len(digits) == 14 else "20" if digits < "5" else "19"
    return datetime.datetime.strptime(f"{century}{digits}+0000", "%Y%m%d%H%M%S%z")


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).digest().hex(":").upper()
