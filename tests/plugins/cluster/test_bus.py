"""A machine's connection to NATS."""

import asyncio
import logging
import re
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamer.errors import ClusterError, ClusterMessageError, ConfigError
from streamer.plugins.cluster.bus import BUFFER_BYTES, Bus, Reply, machine_name
from streamer.plugins.cluster.messages import Leave, Opened, Refused, decoded
from tests.daemon import free_port
from tests.plugins.cluster.support import Line, NatsCluster, NatsServer, bus_on, running, settings_for
from tests.waiting import WAIT_S, until


async def test_messages_arrive_in_order_and_a_handler_that_fails_ends_nothing(
    nats: str, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[int] = []

    async def handle(data: bytes, reply: Reply) -> None:
        received.append(decoded(data, Leave).epoch)
        if received[-1] == 2:
            raise RuntimeError("a fault of the handler")

    async with bus_on(nats) as bus:
        await bus.subscribe("streamer.worker.a", handle)
        for epoch in range(100):
            await bus.publish("streamer.worker.a", Leave(session="s", epoch=epoch))
        await until(lambda: len(received) == 100)
    assert received == list(range(100))
    assert "a fault of the handler" in caplog.text


async def test_what_is_published_right_after_a_subscription_arrives(nats: str) -> None:
    subjects = [f"streamer.worker.{i}" for i in range(200)]
    received: list[str] = []
    absent: list[str] = []
    async with bus_on(nats) as bus, bus_on(nats, name="m2") as other:
        await bus.notice_absence(absent.append)
        for subject in subjects:

            async def handle(data: bytes, reply: Reply) -> None:
                received.append(decoded(data, Leave).session)

            await other.subscribe(subject, handle)
            await bus.publish(subject, Leave(session=subject, epoch=1))
        await until(lambda: len(received) + len(absent) == len(subjects))
    assert (received, absent) == (subjects, [])


async def test_a_subject_without_a_subscriber_is_reported_at_once(nats: str) -> None:
    received: list[int] = []
    absent: list[str] = []

    async def handle(data: bytes, reply: Reply) -> None:
        received.append(decoded(data, Leave).epoch)

    async with bus_on(nats) as bus, bus_on(nats, name="m2") as other:
        await other.subscribe("streamer.worker.a", handle)
        await bus.notice_absence(absent.append)
        await bus.publish("streamer.worker.absent", Leave(session="s", epoch=1))
        await bus.publish("streamer.worker.a", Leave(session="s", epoch=2))
        await until(lambda: bool(received and absent))
    assert (received, absent) == ([2], ["streamer.worker.absent"])


async def test_requests_are_answered_or_fail_in_one_line(nats: str) -> None:
    async def handle(data: bytes, reply: Reply) -> None:
        if decoded(data, Leave).epoch:
            await reply(Refused(code="busy", message="full"))

    async with bus_on(nats, name="a") as asks, bus_on(nats, name="b") as answers:
        await answers.subscribe("streamer.worker.b", handle)
        leave = Leave(session="s", epoch=1)
        refused = await asks.request("streamer.worker.b", leave, Opened | Refused, timeout_s=WAIT_S)
        assert refused == Refused(code="busy", message="full")
        with pytest.raises(ClusterMessageError):
            await asks.request("streamer.worker.b", leave, Opened, timeout_s=WAIT_S)
        with pytest.raises(ClusterError, match=r"streamer\.worker\.c cannot be asked: it has no subscriber"):
            await asks.request("streamer.worker.c", leave, Opened, timeout_s=WAIT_S)
        with pytest.raises(ClusterError, match=r"did not answer within 0\.1 s"):
            await asks.request("streamer.worker.b", Leave(session="s", epoch=0), Opened, timeout_s=0.1)


@pytest.mark.parametrize("subject", ["streamer.worker.b", "streamer.worker.absent"])
async def test_a_request_that_is_cancelled_is_cancelled_whenever_that_is(nats: str, subject: str) -> None:
    async def handle(data: bytes, reply: Reply) -> None:
        await reply(Refused(code="busy", message="full"))

    async with bus_on(nats) as bus:
        await bus.subscribe("streamer.worker.b", handle)
        for n_steps in range(40):  # among these moments is that when the answer comes
            asking = asyncio.create_task(bus.request(subject, Leave(session="s", epoch=1), Refused, timeout_s=WAIT_S))
            for _ in range(n_steps):
                await asyncio.sleep(0)
            was_done = asking.done() or not asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled() or was_done


async def test_publishing_is_cancelled_while_it_waits_for_the_line(nats: str) -> None:
    async def publish() -> None:
        for _ in range(2 * BUFFER_BYTES // 500_000):
            await bus.publish("streamer.worker.x", Refused(code="busy", message="x" * 500_000))

    async with bus_on(nats) as bus:
        publishing = asyncio.create_task(publish())
        await asyncio.sleep(0)  # it goes on until the buffer is full
        publishing.cancel()
        await asyncio.wait({publishing})
    assert publishing.cancelled()


async def test_a_lost_connection_comes_back_with_its_subscriptions_and_is_logged_once_each(
    nats: str, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[int] = []
    back: list[bool] = []

    async def handle(data: bytes, reply: Reply) -> None:
        received.append(decoded(data, Leave).epoch)

    async with Line(nats) as line, bus_on(line.url) as bus:
        bus.on_reconnected = lambda: back.append(bus.connected)
        await bus.subscribe("streamer.worker.lost", handle)
        line.cut()
        await until(lambda: not bus.connected)
        await bus.publish("streamer.worker.lost", Leave(session="s", epoch=1))
        await until(lambda: back == [True])
        await bus.publish("streamer.worker.lost", Leave(session="s", epoch=2))
        await until(lambda: 2 in received)
    lines = [record.getMessage() for record in caplog.records if record.name == "streamer.plugins.cluster.bus"]
    assert lines[0] == "the connection to NATS is lost: trying until it is back"
    assert lines[1].startswith("connected to NATS again, to 127.0.0.1:")
    assert len(lines) == 2


async def test_what_is_subscribed_to_while_nats_is_away_is_there_when_it_is_back(nats: str) -> None:
    received: list[int] = []
    absent: list[str] = []

    async def handle(data: bytes, reply: Reply) -> None:
        received.append(decoded(data, Leave).epoch)

    async with Line(nats) as line, bus_on(line.url) as bus:
        line.dead = True
        line.cut()
        await until(lambda: not bus.connected)
        await bus.subscribe("streamer.worker.away", handle)
        await bus.notice_absence(absent.append)
        line.dead = False
        line.cut()
        await until(lambda: bus.connected)
        await bus.publish("streamer.worker.away", Leave(session="s", epoch=1))
        await bus.publish("streamer.worker.absent", Leave(session="s", epoch=2))
        await until(lambda: bool(received and absent))
    assert (received, absent) == ([1], ["streamer.worker.absent"])


async def test_a_dead_line_is_noticed_and_does_not_hold_up_another_or_the_end(nats: str) -> None:
    async with Line(nats) as line:
        bus = await Bus.connect(settings_for(line.url), "a")
        line.dead = True
        for epoch in range(40):  # more than sockets hold
            await bus.publish("streamer.worker.x", Refused(code=str(epoch), message="x" * 500_000))
        await until(lambda: line.n_connections > 1)
        line.dead = False
        await until(lambda: bus.connected)
        line.dead = True
        async with asyncio.timeout(WAIT_S):
            await bus.close()
        await bus.publish("streamer.worker.x", Leave(session="s", epoch=1))


async def test_what_the_server_says_of_an_end_is_no_end(nats: str) -> None:
    async with Line(nats) as line, bus_on(line.url) as bus:
        line.say(b"-ERR 'User Authentication Expired'\r\n")
        await until(lambda: line.n_connections == 2 and bus.connected)
        line.say(b"-ERR 'maximum connections exceeded'\r\n")
        await until(lambda: line.n_connections == 3 and bus.connected)
        line.say(b'INFO {"ldm": true}\r\n')
        await until(lambda: line.n_connections == 4 and bus.connected)
        line.say(b"nonsense\r\n")
        await until(lambda: line.n_connections == 5 and bus.connected)


@pytest.mark.parametrize(
    ("said", "instead", "reason"),
    [
        (b'"version":"2.15.1"', b'"version":"2.11.9"', "it is <nats server v2.11.9>, too old"),
        (b'"version":"2.15.1"', b'"version":"newest"', "it is <nats server vnewest>, too old"),
        (b'"version":', b'"revision":', "it is <nats server v0.0.0-unknown>, too old"),
        (b"INFO {", b"INFO [", "json parse error"),
        (b"INFO {", b"HELLO {", "empty response from server"),
        (b"INFO ", b"INFO", "not enough values to unpack"),
    ],
)
async def test_servers_that_will_not_do_are_refused(nats: str, said: bytes, instead: bytes, reason: str) -> None:
    async with Line(nats) as line:
        line.replaced = (said, instead)
        with pytest.raises(ClusterError) as raised:
            await Bus.connect(settings_for(line.url.replace("://", "://secret@")), "a")
        assert reason in str(raised.value)
        assert "expected nats-server 2.12 or later" in str(raised.value)
        assert "\n" not in str(raised.value)
        assert line.sent == b""  # a password least of all


async def test_an_older_server_among_others_is_not_used(nats: str) -> None:
    async with Line(nats) as old, Line(nats) as new:
        old.replaced = (b'"version":"2.15.1"', b'"version":"2.9.10"')
        async with bus_on(old.url, new.url) as bus:
            for _ in range(3):
                n_before = new.n_connections
                new.cut()
                await until(lambda: new.n_connections > n_before and bus.connected)  # noqa: B023
        assert old.sent == b""


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
    assert all(re.fullmatch("[A-Za-z0-9-]{8,64}", name) for name in names)
    assert machine_name(settings_for(name="w1")) == "w1"


async def test_without_a_server_it_ends_with_one_line() -> None:
    port = free_port()
    with pytest.raises(ClusterError, match=f"NATS at 127.0.0.1:{port} cannot be used: .+; expected nats-server"):
        await Bus.connect(settings_for(f"nats://me:secret@127.0.0.1:{port}"), "a")


async def test_without_jetstream_it_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.bus.PATIENCE_S", 0.3)
    with (
        running(NatsServer(tmp_path, store=None)) as server,
        pytest.raises(ClusterError, match=r"does not answer about JetStream.*expected `jetstream` in its"),
    ):
        await Bus.connect(settings_for(server.url), "a")


async def test_passwords_are_used_and_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(NatsServer(tmp_path, more='authorization { user: me, password: "p@ss/word" }')) as server:
        async with Line(server.url) as line:
            async with bus_on(line.url.replace("://", "://me:p%40ss%2Fword@")) as bus:
                line.cut()
                await until(lambda: line.n_connections == 2 and bus.connected)
            with pytest.raises(ClusterError, match="Authorization Violation"):
                await Bus.connect(settings_for(line.url.replace("://", "://me:wrong-one@")), "a")
        assert "p@ss" not in caplog.text
        assert "p%40ss" not in caplog.text
        assert "wrong-one" not in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"nats": ()},
        {"nats": ("http://me:secret@host",)},
        {"nats": ("nats://me:secret@host:port",)},
        {"nats": ("nats://",)},
        {"name": "a.b"},
        {"nkey_file": "not-there"},
        {"ca": "not-there"},
        {"ca": __file__},
        {"certificate": __file__},
        {"nkey_file": __file__},
        {"credentials": __file__},
        {"credentials": __file__, "nkey_file": __file__},
    ],
)
async def test_wrong_settings_are_refused_in_one_line(nats: str, given: dict[str, Any]) -> None:
    settings = msgspec.structs.replace(settings_for(nats), **given)
    with pytest.raises(ConfigError) as raised:
        await Bus.connect(settings, settings.name or "a")
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)
