"""Certificates: made, loaded, and exchanged while they are in use; wire/test_refusals.py has what is refused."""

import asyncio
import datetime
import hashlib
import logging
import os
import socket
import ssl
import threading
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
from tests.waiting import until
from tests.wire.harness import serving

SELF_SIGNED = ServerSettings(tls="self-signed")


def pair(directory: Path) -> tuple[Path, Path]:
    """Write a new certificate and its key into two files, and both into one."""
    directory.mkdir(exist_ok=True)
    renew_self_signed(directory / "both.pem", {"one.example"})
    data = (directory / "both.pem").read_bytes()
    certificate, key = directory / "cert.pem", directory / "key.pem"
    certificate.write_bytes(data[: data.index(b"-----BEGIN PRIVATE")])
    key.write_bytes(data[data.index(b"-----BEGIN PRIVATE") :])
    return certificate, key


def own_names(path: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def interface(*addresses: str) -> list[object]:
    """Return what psutil says of an interface with these addresses."""
    families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
    return [
        psutil._ntuples.snicaddr(family, a, None, None, None) for family, a in zip(families, addresses, strict=True)
    ]


async def connected(port: int, context: ssl.SSLContext, name: str = "localhost") -> tuple[str, str]:
    """Connect over TLS; return the cipher, its protocol, and the fingerprint of the certificate."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    cipher, version, _ = writer.get_extra_info("cipher")
    writer.close()
    return f"{version} {cipher}", hashlib.sha256(shown).digest().hex(":").upper()


async def test_a_certificate_of_this_machine_is_accepted_by_clients_that_trust_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: tmp_path)
    path = certificate_path(SELF_SIGNED)
    async with serving(tls="self-signed") as running:
        assert {"localhost", "127.0.0.1", "::1", socket.gethostname().lower()} <= own_names(path)
        context = ssl.create_default_context(cafile=path)
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN  # the default since Python 3.13
        for name in ("localhost", "127.0.0.1"):
            cipher, fingerprint = await connected(running.port, context, name)
            assert (cipher[:7], fingerprint) == ("TLSv1.3", fingerprint_of(path))
        with pytest.raises(ssl.SSLCertVerificationError):
            await connected(running.port, context, "elsewhere.example")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert "ECDHE" in (await connected(running.port, context))[0]
    found = make_tls(SELF_SIGNED)
    assert found is not None
    assert found.context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_its_user_reads_the_key_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = certificate_path(SELF_SIGNED, tmp_path / "tls")
    make_tls(SELF_SIGNED, path.parent)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError):
        make_tls(SELF_SIGNED, path.parent)
    assert list(path.parent.iterdir()) == [path]


def test_a_certificate_is_kept_as_long_as_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.pem"
    assert renew_self_signed(path, {"a.example", "-b", "0:0::1"})
    first, before = path.read_bytes(), own_names(path)
    assert not renew_self_signed(path, {"a.example", "-b", "0:0::1"})
    assert path.read_bytes() == first
    # Another address: it keeps the ones it had.
    addresses = psutil.net_if_addrs()
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {**addresses, "vpn0": interface("192.0.2.77")})
    assert renew_self_signed(path)
    assert own_names(path) == before | {"192.0.2.77"}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    assert not renew_self_signed(path)
    # It ends soon; the file is damaged.
    monkeypatch.setattr(self_signed, "RENEWAL_DAYS", self_signed.VALID_DAYS)
    assert renew_self_signed(path)
    monkeypatch.setattr(self_signed, "RENEWAL_DAYS", 30)
    assert not renew_self_signed(path)
    path.write_bytes(b"broken")
    assert renew_self_signed(path)
    Tls(path, path)
    assert caplog.records == []
    end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    assert 820 < (end - datetime.datetime.now(datetime.UTC)).days < 825
    monkeypatch.setattr(self_signed, "VALID_DAYS", 0.5)
    path.unlink()
    assert renew_self_signed(path)
    Tls(path, path)  # an outdated one is reported
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_names_that_no_certificate_can_hold_are_left_out_and_others_up_to_a_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Küche_" + "x" * 80)
    path = tmp_path / "x.pem"
    for names in (range(80), range(79, 120)):
        assert renew_self_signed(path, {f"{n}.example" for n in names})
        assert all(name.isascii() for name in own_names(path))
    assert {f"{n}.example" for n in range(120)} & own_names(path) == {f"{n}.example" for n in range(79, 120)}


async def test_files_are_reloaded_once_both_have_been_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "POLL_S", 0.01)
    certificate, key = pair(tmp_path)
    new_certificate, new_key = pair(tmp_path / "other")
    old, new = fingerprint_of(certificate), fingerprint_of(new_certificate)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async with serving(tls_certificate=str(certificate), tls_key=str(key)) as running:

        async def shows(fingerprint: str) -> bool:
            return {(await connected(running.port, context, name))[1] for name in ("localhost", "")} == {fingerprint}

        # The certificate first: the old pair stays for as long as the key is missing.
        certificate.write_bytes(new_certificate.read_bytes())
        await until(lambda: len(caplog.records) == 1)
        assert await shows(old)
        key.write_bytes(new_key.read_bytes())
        await until(lambda: shows(new))
        key.unlink()
        await until(lambda: len(caplog.records) == 2)
        assert await shows(new)
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_files_that_are_replaced_one_after_the_other_are_loaded_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = Tls(*pair(tmp_path))
    new_certificate, new_key = pair(tmp_path / "other")
    for name, new in (("cert.pem", new_certificate), ("key.pem", new_key)):
        (tmp_path / name).write_bytes(new.read_bytes())
        found.refresh()
    found.refresh()
    assert found.fingerprint == fingerprint_of(new_certificate)
    assert caplog.records == []


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


@pytest.mark.parametrize(("begin", "end"), [(1999, 2049), (2026, 2050), (2051, 9999)])
def test_dates_are_read_as_cryptography_reads_them(begin: int, end: int) -> None:
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    dates = tuple(datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC) for year in (begin, end))
    builder = x509.CertificateBuilder(issuer_name=subject, subject_name=subject, public_key=key.public_key())
    builder = builder.serial_number(1).not_valid_before(dates[0]).not_valid_after(dates[1])
    assert validity(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)) == dates
    assert validity(b"0\x1e\x17\x0d991399000000Z\x17\x0d991399000000Z") is None
    assert validity(b"a text") is None


def test_the_addresses_for_a_phone(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = interface("2001:db8::5", "fe80::1%eth0", "::1", "192.0.2.5", "127.0.0.1")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": entries})
    assert network_urls("0.0.0.0", 1) == ["https://192.0.2.5:1/"]
    assert network_urls("::", 1) == ["https://[2001:db8::5]:1/"]
    assert network_urls("captions.example", 1) == ["https://captions.example:1/"]
    assert network_urls("127.0.0.1", 1) == []
