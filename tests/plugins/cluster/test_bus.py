"""A machine's connection to NATS."""

import asyncio
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from streamer.errors import ClusterError, ClusterMessageError, ConfigError
from streamer.plugins.cluster import bus as bus_module
from streamer.plugins.cluster.bus import BUFFER_BYTES, Bus, Reply, machine_name
from streamer.plugins.cluster.messages import Leave, Opened, Refused, decoded
from tests.daemon import free_port
from tests.plugins.cluster.support import Line, NatsCluster, NatsServer, bus_on, running, settings_for
from tests.waiting import WAIT_S, until

FULL = Refused(code="busy", message="full")
LARGE = Refused(code="busy", message="x" * 500_000)


def leave(epoch: int = 1) -> Leave:
    return Leave(session="s", epoch=epoch)


class Inbox:
    """What a machine has received, by epoch, and subjects of its own messages that nobody subscribes to."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.absent: list[str] = []

    async def take(self, data: bytes, reply: Reply) -> None:
        """Note a message, and answer it if its epoch is 1."""
        self.epochs.append(decoded(data, Leave).epoch)
        assert self.epochs[-1] != 2  # a fault of the handler
        if self.epochs[-1] == 1:
            await reply(FULL)


async def test_messages_arrive_in_order_and_a_handler_that_fails_ends_nothing(nats: str) -> None:
    inbox = Inbox()
    async with bus_on(nats) as bus:
        await bus.subscribe("streamer.worker.a", inbox.take)
        for epoch in range(100):
            await bus.publish("streamer.worker.a", leave(epoch))
        await until(lambda: len(inbox.epochs) == 100)
    assert inbox.epochs == list(range(100))


async def test_what_is_published_right_after_a_subscription_arrives_and_what_nobody_reads_is_reported(
    nats: str,
) -> None:
    inbox, subjects = Inbox(), [f"streamer.worker.{i}" for i in range(3, 200)]
    async with bus_on(nats) as bus, bus_on(nats, name="m2") as other:
        await bus.notice_absence(inbox.absent.append)
        for epoch, subject in enumerate(subjects, 3):
            await other.subscribe(subject, inbox.take)
            await bus.publish(subject, leave(epoch))
        await bus.publish("streamer.worker.absent", leave())
        await until(lambda: len(inbox.epochs) + len(inbox.absent) == len(subjects) + 1)
    assert (inbox.epochs, inbox.absent) == (list(range(3, 200)), ["streamer.worker.absent"])


async def test_requests_are_answered_or_fail(nats: str) -> None:
    async with bus_on(nats, name="a") as asks, bus_on(nats, name="b") as answers:
        await answers.subscribe("streamer.worker.b", Inbox().take)
        assert await asks.request("streamer.worker.b", leave(), Opened | Refused, timeout_s=WAIT_S) == FULL
        with pytest.raises(ClusterMessageError):
            await asks.request("streamer.worker.b", leave(), Opened, timeout_s=WAIT_S)
        for subject, epoch, timeout_s in (("streamer.worker.c", 1, WAIT_S), ("streamer.worker.b", 0, 0.1)):
            with pytest.raises(ClusterError):
                await asks.request(subject, leave(epoch), Opened, timeout_s=timeout_s)


@pytest.mark.parametrize("subject", ["streamer.worker.b", "streamer.worker.absent"])
async def test_a_request_that_is_cancelled_is_cancelled_whenever_that_is(nats: str, subject: str) -> None:
    async with bus_on(nats) as bus:
        await bus.subscribe("streamer.worker.b", Inbox().take)
        for n_steps in range(40):  # among these moments is that when the answer comes
            asking = asyncio.create_task(bus.request(subject, leave(), Refused, timeout_s=WAIT_S))
            for _ in range(n_steps):
                await asyncio.sleep(0)
            was_done = asking.done() or not asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled() or was_done


async def test_publishing_is_cancelled_while_it_waits_for_the_line(nats: str) -> None:
    async def publish() -> None:
        for _ in range(2 * BUFFER_BYTES // len(LARGE.message)):
            await bus.publish("streamer.worker.x", LARGE)

    async with bus_on(nats) as bus:
        publishing = asyncio.create_task(publish())
        await asyncio.sleep(0)  # it goes on until the buffer is full
        publishing.cancel()
        await asyncio.wait({publishing})
    assert publishing.cancelled()


async def test_a_lost_connection_comes_back_with_all_subscriptions_and_is_logged_once_each(
    nats: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, back = Inbox(), list[bool]()
    async with Line(nats) as line, bus_on(line.url) as bus:
        bus.on_reconnected = lambda: back.append(bus.connected)
        await bus.subscribe("streamer.worker.before", inbox.take)
        line.dead = True
        line.cut()
        await until(lambda: not bus.connected)
        await bus.subscribe("streamer.worker.while", inbox.take)
        await bus.notice_absence(inbox.absent.append)
        await bus.publish("streamer.worker.before", leave(5))
        with pytest.raises(ClusterError):
            await bus.request("streamer.worker.before", leave(5), Refused, timeout_s=WAIT_S)
        line.dead = False
        line.cut()
        await until(lambda: back == [True])
        for epoch, name in enumerate(("before", "while", "absent"), 6):
            await bus.publish(f"streamer.worker.{name}", leave(epoch))
        await until(lambda: len(inbox.epochs) == 2 and bool(inbox.absent))
    assert (sorted(inbox.epochs), inbox.absent) == ([6, 7], ["streamer.worker.absent"])
    assert [record.levelname for record in caplog.records if record.name == bus_module.__name__] == ["WARNING"] * 2


@pytest.mark.slow
async def test_a_dead_line_is_noticed_and_does_not_hold_up_another_or_the_end(nats: str) -> None:
    async with Line(nats) as line:
        bus = await Bus.connect(settings_for(line.url), "a")
        line.dead = True
        for _ in range(40):  # more than sockets hold
            await bus.publish("streamer.worker.x", LARGE)
        await until(lambda: line.n_connections > 1)
        line.dead = False
        await until(lambda: bus.connected)
        line.dead = True
        async with asyncio.timeout(WAIT_S):
            await bus.close()
        await bus.publish("streamer.worker.x", leave())


async def test_what_the_server_says_of_an_end_is_no_end(nats: str) -> None:
    async with Line(nats) as line, bus_on(line.url) as bus:
        errors = ("-ERR 'User Authentication Expired'", "-ERR 'maximum connections exceeded'")
        for said in (*errors, 'INFO {"ldm": true}', "nonsense"):
            before = line.n_connections
            line.say(f"{said}\r\n".encode())
            await until(lambda n=before: line.n_connections == n + 1 and bus.connected)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        (b'"version":"2.15.1"', b'"version":"2.11.9"'),
        (b'"version":"2.15.1"', b'"version":"newest"'),
        (b'"version":', b'"revision":'),
        (b"INFO {", b"INFO ["),
        (b"INFO {", b"HELLO {"),
        (b"INFO ", b"INFO"),
    ],
)
async def test_servers_that_will_not_do_are_refused_and_get_no_password(nats: str, said: bytes, instead: bytes) -> None:
    async with Line(nats) as line:
        line.replaced = (said, instead)
        with pytest.raises(ClusterError) as raised:
            await Bus.connect(settings_for(line.url.replace("://", "://secret@")), "a")
        assert not re.search(r"secret|\n", str(raised.value))
        assert line.sent == b""


async def test_servers_that_were_not_given_are_used(nats_cluster: NatsCluster) -> None:
    async with bus_on(nats_cluster.urls[0]) as bus:
        back: list[bool] = []
        bus.on_reconnected = lambda: back.append(bus.connected)
        nats_cluster.servers[0].kill()
        await until(lambda: back == [True])


def test_a_machine_without_a_name_gets_one_that_subjects_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: f"büro nr.1{'x' * 100}.example.org")
    names = {machine_name(settings_for()) for _ in range(10)}
    assert len(names) == 10
    assert all(re.fullmatch("b-ro-nr-[A-Za-z0-9-]{1,40}", name) for name in names)
    assert machine_name(settings_for(name="w1")) == "w1"


async def test_without_a_server_or_jetstream_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "PATIENCE_S", 0.3)
    with running(NatsServer(tmp_path, store=None)) as server:
        for url in (f"nats://me:secret@127.0.0.1:{free_port()}", server.url):
            with pytest.raises(ClusterError) as raised:
                await Bus.connect(settings_for(url), "a")
            assert not re.search(r"secret|\n", str(raised.value))


@pytest.mark.parametrize(
    ("authorization", "user", "wrong"),
    [('user: me, password: "p@ss/word"', "me:p%40ss%2Fword", "me:wrong-one"), ("token: t@ken", "t%40ken", "wrong-one")],
)
async def test_passwords_and_tokens_are_used_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, authorization: str, user: str, wrong: str
) -> None:
    caplog.set_level(logging.DEBUG)
    with running(NatsServer(tmp_path, more=f"authorization {{ {authorization} }}")) as server:
        async with Line(server.url) as line:
            async with bus_on(line.url.replace("://", f"://{user}@")) as bus:
                line.cut()
                await until(lambda: line.n_connections == 2 and bus.connected)
            with pytest.raises(ClusterError):
                await Bus.connect(settings_for(line.url.replace("://", f"://{wrong}@")), "a")
    assert not re.search("p@ss|p%40ss|wrong-one|t@ken|t%40ken", caplog.text)


@pytest.mark.parametrize("given", [{"ca": __file__}, {"certificate": __file__}])
async def test_certificates_that_are_none_are_refused(nats: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        await Bus.connect(settings_for(nats, **given), "a")
