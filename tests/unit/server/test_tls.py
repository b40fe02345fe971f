"""Certificates: made, loaded, refused in one line, and exchanged while they are in use."""

import asyncio
import contextlib
import datetime
import hashlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from streamer.errors import ConfigError
from streamer.server import self_signed, tls
from streamer.server.certificates import fingerprint_of, validity
from streamer.server.self_signed import renew_self_signed
from streamer.server.tls import Tls, certificate_path, make_tls, network_urls
from streamer.settings.table import ServerSettings


def made(path: Path, name: str = "one.example") -> bytes:
    """Write a new certificate with its key; return both."""
    path.unlink(missing_ok=True)
    renew_self_signed(path, {name})
    return path.read_bytes()


def self_signed_path(directory: Path) -> Path:
    return certificate_path(ServerSettings(tls="self-signed"), directory)


def pair(directory: Path) -> tuple[Path, Path]:
    """Write a certificate and its key into two files."""
    data = made(directory / "both.pem")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    certificate.write_bytes(data[: data.index(b"-----BEGIN PRIVATE")])
    key.write_bytes(data[data.index(b"-----BEGIN PRIVATE") :])
    return certificate, key


def own_names(path: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def shown(port: int, name: str | None = "localhost") -> str:
    """Return the fingerprint that a client sees."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name or "")
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return hashlib.sha256(certificate).digest().hex(":").upper()


async def test_a_certificate_of_this_machine_is_accepted_by_who_trusts_it(tmp_path: Path) -> None:
    found = make_tls(ServerSettings(tls="self-signed"), tmp_path)
    assert found is not None
    path = self_signed_path(tmp_path)
    assert found.fingerprint == fingerprint_of(path)
    assert {"localhost", "127.0.0.1", "::1", socket.gethostname().lower()} <= own_names(path)
    context = ssl.create_default_context(cafile=path)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN  # the default from Python 3.13 on
    async with listening(found.context) as port:
        for name in ("localhost", "127.0.0.1"):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
            assert writer.get_extra_info("cipher")[1] == "TLSv1.3"
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="elsewhere.example")


async def test_old_tls_is_refused(tmp_path: Path) -> None:
    found = make_tls(ServerSettings(tls="self-signed"), tmp_path)
    assert found is not None
    assert found.context.minimum_version == ssl.TLSVersion.TLSv1_2
    context = ssl.create_default_context(cafile=self_signed_path(tmp_path))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(found.context) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        assert "ECDHE" in writer.get_extra_info("cipher")[0]
        writer.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_its_user_reads_the_key(tmp_path: Path) -> None:
    path = self_signed_path(tmp_path / "tls")
    make_tls(ServerSettings(tls="self-signed"), path.parent)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_a_certificate_is_kept_as_long_as_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pem"
    assert renew_self_signed(path)
    first = path.read_bytes()
    assert not renew_self_signed(path)
    assert path.read_bytes() == first

    # Another address, and it keeps the ones it had.
    before = own_names(path)
    addresses = psutil.net_if_addrs()
    entry = psutil._ntuples.snicaddr(socket.AF_INET, "192.0.2.77", None, None, None)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {**addresses, "vpn0": [entry]})
    assert renew_self_signed(path)
    assert own_names(path) == before | {"192.0.2.77"}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    assert not renew_self_signed(path)

    # It ends soon, and what lies there is no certificate.
    assert not renew_self_signed(path)
    monkeypatch.setattr(self_signed, "RENEWAL_DAYS", self_signed.VALID_DAYS)
    assert renew_self_signed(path)
    monkeypatch.setattr(self_signed, "RENEWAL_DAYS", 30)
    path.write_bytes(b"broken")
    assert renew_self_signed(path)
    end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    assert 820 < (end - datetime.datetime.now(datetime.UTC)).days < 825


def test_names_that_no_certificate_can_hold_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Küche_" + "x" * 80)
    path = tmp_path / "x.pem"
    assert renew_self_signed(path, {"a.example", "-b", "0:0::1"})
    assert not renew_self_signed(path, {"a.example", "-b", "0:0::1"})
    assert "a.example" in own_names(path)
    assert all(name.isascii() for name in own_names(path))


async def test_files_are_reloaded_once_both_have_been_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = pair(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    new_certificate, new_key = pair(other)
    found = Tls(certificate, key)
    old = found.fingerprint
    async with listening(found.context) as port:
        assert await shown(port) == old
        assert await shown(port, name=None) == old

        # The certificate first: the old pair stays for as long as the key is missing.
        certificate.write_bytes(new_certificate.read_bytes())
        found.refresh()
        assert caplog.text == ""
        for _ in range(3):
            found.refresh()
        assert await shown(port) == old
        assert len(caplog.records) == 1
        assert "the certificate in use is kept: server.tls_key" in caplog.text

        caplog.set_level(logging.INFO)
        key.write_bytes(new_key.read_bytes())
        found.refresh()
        found.refresh()
        assert found.fingerprint == fingerprint_of(new_certificate) != old
        assert await shown(port) == await shown(port, name=None) == found.fingerprint
        assert caplog.records[-1].message == f"new certificate, SHA-256 fingerprint {found.fingerprint}"

        # And gone altogether.
        key.unlink()
        for _ in range(3):
            found.refresh()
        assert await shown(port) == fingerprint_of(new_certificate)
        assert "No such file" in caplog.records[-1].message


async def test_files_are_reloaded_where_handshakes_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To change a context in another thread meanwhile breaks OpenSSL's memory."""
    monkeypatch.setattr(tls, "POLL_S", 0.0)
    found = Tls(*pair(tmp_path))
    threads: list[int] = []
    monkeypatch.setattr(found, "refresh", lambda: threads.append(threading.get_ident()))
    watching = asyncio.create_task(found.watch("127.0.0.1", 1))
    while not threads:
        await asyncio.sleep(0)
    watching.cancel()
    assert set(threads) == {threading.get_ident()}


def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path: Path) -> None:
    certificate, key = pair(tmp_path)
    other = made(tmp_path / "other.pem")
    (tmp_path / "mixed.pem").write_bytes(other)
    encrypted = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "encrypted.pem").write_bytes(encrypted)
    (tmp_path / "empty.pem").write_bytes(b"")

    def refusal(**settings: str) -> str:
        with pytest.raises(ConfigError) as caught:
            make_tls(ServerSettings(**settings), tmp_path)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    cert, absent = str(certificate), str(tmp_path / "absent.pem")
    assert "absent.pem cannot be read" in refusal(tls_certificate=absent, tls_key=str(key))
    assert "server.tls_key" in refusal(tls_certificate=cert, tls_key=absent)
    assert "without a password" in refusal(tls_certificate=cert, tls_key=str(tmp_path / "encrypted.pem"))
    assert "(KEY_VALUES_MISMATCH)" in refusal(tls_certificate=cert, tls_key=str(tmp_path / "mixed.pem"))
    assert "has no certificate" in refusal(tls_certificate=str(tmp_path / "empty.pem"), tls_key=str(key))
    assert f"server.tls_key {cert} cannot be used" in refusal(tls_certificate=cert)
    assert "server.tls_certificate is empty" in refusal(tls="on")
    assert "server.tls_certificate is not" in refusal(tls_key=str(key))
    assert "leave out the file" in refusal(tls="self-signed", tls_certificate=cert)
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be written"):
        make_tls(ServerSettings(tls="self-signed"), blocked)


def test_what_the_settings_switch_on(tmp_path: Path) -> None:
    certificate, key = map(str, pair(tmp_path))
    assert make_tls(ServerSettings()) is None
    assert make_tls(ServerSettings(tls="off", tls_certificate=certificate, tls_key=key)) is None
    for settings in (
        ServerSettings(tls_certificate=certificate, tls_key=key),
        ServerSettings(tls="on", tls_certificate=certificate, tls_key=key),
        ServerSettings(tls_certificate=str(tmp_path / "both.pem")),
    ):
        found = make_tls(settings)
        assert found is not None
        assert found.fingerprint == fingerprint_of(Path(certificate))


def test_an_outdated_certificate_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(self_signed, "VALID_DAYS", 0.5)
    path = tmp_path / "x.pem"
    made(path)
    Tls(path, path)
    assert "clients will refuse it now" in caplog.text


@pytest.mark.parametrize(("begin", "end"), [(1999, 2049), (2026, 2050), (2051, 9999)])
def test_dates_are_read_as_cryptography_reads_them(begin: int, end: int) -> None:
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    dates = tuple(datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC) for year in (begin, end))
    builder = x509.CertificateBuilder(issuer_name=subject, subject_name=subject, public_key=key.public_key())
    builder = builder.serial_number(1).not_valid_before(dates[0]).not_valid_after(dates[1])
    assert validity(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)) == dates
    assert validity(b"0\x1e\x17\x0d991399000000Z\x17\x0d991399000000Z") is None
    assert validity(b"no certificate") is None


def test_the_addresses_for_a_phone(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        psutil._ntuples.snicaddr(family, address, None, None, None)
        for family, address in (
            (socket.AF_INET6, "2001:db8::5"),
            (socket.AF_INET6, "fe80::1%eth0"),
            (socket.AF_INET6, "::1"),
            (socket.AF_INET, "192.0.2.5"),
            (socket.AF_INET, "127.0.0.1"),
        )
    ]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": entries})
    assert network_urls("0.0.0.0", 1) == ["https://192.0.2.5:1/"]
    assert network_urls("::", 1) == ["https://[2001:db8::5]:1/"]
    assert network_urls("captions.example", 1) == ["https://captions.example:1/"]
    assert network_urls("127.0.0.1", 1) == []
