"""The example configuration of NATS (contrib/nats): who may do what, and who may not come in."""

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streamer.errors import ClusterError
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.job import JOBS, SUBMITTERS
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import Leave, Refused
from tests.daemon import REPOSITORY, free_port
from tests.plugins.cluster.support import Line, NatsServer, bus_on, record, running, settings_for
from tests.waiting import until

EXAMPLE = REPOSITORY / "contrib" / "nats" / "nats.conf"
ROLES = ("gateways", "workers", "submitters", "administrators")
LEAVE, BUSY = Leave(session="s", epoch=1), Refused(code="busy", message="full")


@dataclass
class SecureCluster:
    """Three servers as the example has them, and what machines need to come in."""

    servers: list[NatsServer]
    folder: Path

    @property
    def urls(self) -> list[str]:
        return [server.url.replace("nats://", "tls://") for server in self.servers]

    @asynccontextmanager
    async def bus(self, role: str, name: str) -> AsyncIterator[Bus]:
        files = {"nkey_file": str(self.folder / f"{role}.nk"), "ca": str(self.folder / "ca.pem")}
        async with bus_on(*self.urls, name=name, **files) as bus:
            yield bus


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    folder = tmp_path_factory.mktemp("secure")
    make_certificate(folder)
    changes = {"/etc/nats/": f"{folder.as_posix()}/"}
    for role in (*ROLES, "unknown"):
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        (folder / f"{role}.nk").write_bytes(seed)
        changes[f"U_OF_{role.upper()}"] = nkeys.from_seed(bytearray(seed)).public_key.decode()
    del changes["U_OF_UNKNOWN"]
    servers = {NatsServer(folder, f"nats-{i}"): free_port() for i in (1, 2, 3)}
    changes |= {f"//{server.name}:6222": f"//127.0.0.1:{port}" for server, port in servers.items()}
    with contextlib.ExitStack() as stack:
        for server, port in servers.items():
            text = EXAMPLE.read_text(encoding="utf-8")
            own = {"server_name: nats-1": f"server_name: {server.name}", "0.0.0.0:4222": f"127.0.0.1:{server.port}"}
            own |= {"0.0.0.0:6222": f"127.0.0.1:{port}", "/var/lib/nats": (folder / server.name).as_posix()}
            for old, new in {**changes, **own}.items():
                assert old in text, f"{old} is not in the example any more"
                text = text.replace(old, new)
            server.config.write_text(text, encoding="utf-8")
            stack.enter_context(running(server))
        yield SecureCluster([*servers], folder)


def make_certificate(folder: Path) -> None:
    """Write a server's certificate, which is its own authority."""
    now, day, key = (
        datetime.datetime.now(datetime.UTC),
        datetime.timedelta(days=1),
        ec.generate_private_key(ec.SECP256R1()),
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "streamer test")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    pem = serialization.Encoding.PEM
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    for file in ("ca.pem", "server.pem"):
        (folder / file).write_bytes(certificate)
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(private)


async def answers(asking: Bus, answering: Bus, subject: str) -> None:
    """Hold that one machine can answer another's request."""

    async def answer(data: bytes, reply: Reply) -> None:
        await reply(BUSY)

    async def answered() -> bool:
        try:
            return bool(await asking.request(subject, LEAVE, Refused, timeout_s=5) == BUSY)
        except ClusterError:  # servers exchange subscriptions a moment later
            return False

    await answering.subscribe(subject, answer)
    await until(answered)


async def test_each_role_can_do_its_part(secure: SecureCluster, caplog: pytest.LogCaptureFixture) -> None:
    received: list[bytes] = []

    async def note(data: bytes, reply: Reply) -> None:
        received.append(data)

    async with secure.bus("gateways", "g1") as gateway, secure.bus("workers", "w1") as worker:
        reads, stores = [SessionLog(bus, settings_for(*secure.urls)) for bus in (gateway, worker)]
        for log in (reads, stores):
            await log.prepare()
        assert (await gateway.jetstream.stream_info("SESSIONS")).config.num_replicas == 3
        await stores.store("s1", record(2), after=await stores.store("s1", record(1), after=0))
        assert [stored.record.checkpoint.seq for stored in await reads.read("s1")] == [1, 2]
        await gateway.subscribe("streamer.gateway.g1", note)
        for bus in (gateway, worker):
            await bus.subscribe("streamer.alive.worker.*", note)
            await bus.subscribe("streamer.alive.gateway.*", note)
        await answers(gateway, worker, "streamer.worker.w1")
        for bus, subject in ((worker, "gateway.g1"), (gateway, "alive.gateway.g1"), (worker, "alive.worker.w1")):
            await bus.publish(f"streamer.{subject}", LEAVE)
        await until(lambda: len(received) == 5)
    assert "contrib/nats" not in caplog.text


@pytest.mark.parametrize("role", ["submitters", "gateways"])
async def test_recordings_pass_from_who_submits_them_to_workers_and_back(
    secure: SecureCluster, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with secure.bus(role, "s1") as submitter, secure.bus("workers", "w1") as worker:
        for subject in (f"{SUBMITTERS}.s1", JOBS):
            await answers(worker, submitter, subject)
    assert "contrib/nats" not in caplog.text


# What each role must not publish, and must not subscribe to.
FORBIDDEN = {
    "gateways": (
        "streamer.events.s1 streamer.gateway.g2 streamer.alive.worker.w1 streamer.jobs.1 _INBOX.w1.x"
        " $JS.API.STREAM.DELETE.SESSIONS $JS.API.STREAM.UPDATE.SESSIONS $JS.API.STREAM.PURGE.SESSIONS"
        " $JS.API.STREAM.MSG.DELETE.SESSIONS $JS.API.STREAM.CREATE.OTHER $JS.API.CONSUMER.CREATE.SESSIONS",
        "streamer.events.* streamer.worker.* $JS.> >",
    ),
    "workers": (
        "streamer.worker.w2 streamer.alive.gateway.g1 _INBOX.g1.x other $JS.API.STREAM.DELETE.SESSIONS"
        " $JS.API.STREAM.PURGE.SESSIONS $JS.API.CONSUMER.CREATE.SESSIONS $JS.ACK.SESSIONS.c",
        "streamer.events.* streamer.gateway.* streamer.submitter.* streamer.jobs.> $JS.> >",
    ),
    "submitters": (
        "streamer.events.s1 streamer.worker.w1 streamer.jobs.1 streamer.gateway.g1 streamer.alive.worker.w1"
        " $JS.API.STREAM.INFO.SESSIONS $JS.API.STREAM.MSG.GET.SESSIONS _INBOX.g1.x",
        "streamer.events.* streamer.worker.* streamer.gateway.* streamer.alive.gateway.* >",
    ),
}


@pytest.mark.parametrize("role", FORBIDDEN)
async def test_each_role_can_do_nothing_else(
    secure: SecureCluster, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ignore(data: bytes, reply: Reply) -> None:
        pass

    published, subscribed = (subjects.split() for subjects in FORBIDDEN[role])
    async with secure.bus(role, "m1") as bus:
        for subject in published:
            await bus.publish(subject, LEAVE)
        for subject in subscribed:
            await bus.subscribe(subject, ignore)
        refused = [f'Publish to "{subject}"' for subject in published]
        refused += [f'Subscription to "{subject}"' for subject in subscribed]
        # Names of sessions are not logged.
        refused = [re.sub(r"events\.(s1|\*)", "events....", text).lower() for text in refused]
        await until(lambda: all(text in caplog.text.lower() for text in refused))
        assert bus.connected


async def test_machines_without_a_known_key_or_authority_are_refused(secure: SecureCluster) -> None:
    ca, key = str(secure.folder / "ca.pem"), str(secure.folder / "gateways.nk")
    plain = [server.url for server in secure.servers]
    for settings in (
        settings_for(*secure.urls, ca=ca),
        settings_for(*secure.urls, ca=ca, nkey_file=str(secure.folder / "unknown.nk")),
        settings_for(*secure.urls, nkey_file=key),
        settings_for(*plain, nkey_file=key),
    ):
        with pytest.raises(ClusterError):
            await Bus.connect(settings, "unknown")


async def test_nothing_is_sent_to_a_server_without_tls_where_tls_is_asked_for(nats: str, secure: SecureCluster) -> None:
    async with Line(nats) as line:
        url = line.url.replace("nats://", "tls://me:secret@")
        for settings in (settings_for(url), settings_for(line.url, ca=str(secure.folder / "ca.pem"))):
            with pytest.raises(ClusterError):
                await Bus.connect(settings, "m1")
        assert line.sent == b""
