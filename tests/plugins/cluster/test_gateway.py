"""A gateway: what it admits and refuses, sessions whose clients leave, and clients over sockets."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from streamer.client.stream import stream as stream_of
from streamer.constants import SAMPLE_RATE
from streamer.errors import BusyError, ConfigError
from streamer.events import Event, Ready
from streamer.plugins.cluster import neighbours
from streamer.plugins.cluster.messages import GATEWAYS, SessionCommand
from streamer.protocols.native import StreamStart
from streamer.server.context import Services
from streamer.server.front import Server
from streamer.settings.table import ServerSettings
from tests.daemon import free_port, started
from tests.plugins.cluster.stage import SPEECH, Gateway, Stage
from tests.plugins.cluster.support import update
from tests.waiting import WAIT_S, until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "SETTLE_S", 0.1)


async def test_a_session_is_transcribed_by_a_worker(stage: Stage) -> None:
    _, client = await stage.session()
    worker = stage.owner(client)
    await client.speak(4.0)
    await client.stream.command("flush")
    await client.stream.change(msgspec.structs.replace(client.stream.options, language="de"))
    await client.finish()
    assert isinstance(client.events[0], Ready)
    assert [event.time for event in client.of_type("flushed")] == [4.0]
    assert client.stream.options.language == "de"
    commands = [(each.what, each.position) for each in stage.wire.sent(SessionCommand)]
    assert commands == [("flush", 4 * SAMPLE_RATE), ("set", 4 * SAMPLE_RATE), ("end", 12 * SAMPLE_RATE)]
    assert worker.engine.n_sessions == worker.alive.sessions == 0


async def test_without_a_worker_no_client_is_admitted_and_health_says_what_works(stage: Stage) -> None:
    gateway = await stage.gateway()
    with pytest.raises(BusyError):
        await gateway.open(StreamStart())
    health = gateway.backend.health()
    assert (health["status"], health["workers"], health["streams"], health["load"]) == ("failing", 0, 0, 0.0)
    for identity in ("model 1", "other 2"):
        await stage.worker(identity[:5], identity=identity)
    await gateway.knows("model", "other")
    await stage.client(gateway)
    health = gateway.backend.health()
    assert (health["status"], health["model"], health["workers"]) == ("ok", "model, other", 2)
    assert (health["streams"], health["gateway"], health["nats"]) == (1, "g1", "connected")
    gateway.backend.draining = True
    assert gateway.backend.health()["status"] == "stopping"
    assert gateway.backend.alive.draining


async def test_if_one_worker_refuses_the_next_is_asked_and_the_last_refusal_raised(stage: Stage) -> None:
    full, free = await stage.worker("full"), await stage.worker("free")
    gateway = await stage.gateway()
    full.stopping.set()
    full.port.becomes = lambda message: ()  # gateways do not know that yet
    for _ in range(3):
        await stage.client(gateway)
    assert (full.alive.sessions, free.alive.sessions, gateway.backend.alive.sessions) == (0, 3, 3)
    for start in (StreamStart(beam_size=16), StreamStart(keep=True)):
        with pytest.raises(ConfigError):
            await gateway.open(start)
    free.port.end()
    with pytest.raises(BusyError):
        await gateway.open(StreamStart())
    assert gateway.backend.alive.sessions == 3


async def test_a_session_whose_client_has_left_ends(stage: Stage) -> None:
    gateway, client = await stage.session()
    worker = stage.owner(client)
    gateway.abandon(client.stream)
    await until(lambda: worker.alive.sessions == 0)
    assert gateway.backend.alive.sessions == 0
    assert stage.wire.events(client.name)[-1].type == "end"


async def test_a_session_that_was_being_opened_as_its_client_left_ends_at_its_owner(stage: Stage) -> None:
    worker, gateway = await stage.worker(), await stage.gateway()
    stage.wire.storing.clear()
    opening = asyncio.create_task(gateway.open(StreamStart()))
    await until(lambda: gateway.backend.alive.sessions == 1)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    stage.wire.storing.set()
    await until(lambda: any(stage.wire.records.values()))
    (name,) = (name for name, records in stage.wire.records.items() if records)
    # An update of a former owner does not count for the session as a whole.
    await worker.port.publish(f"{GATEWAYS}.g1", update(session=name, epoch=0))
    await until(lambda: worker.alive.sessions == 0)
    assert stage.wire.events(name)[-1].type == "end"


@contextlib.asynccontextmanager
async def front(gateway: Gateway, port: int) -> AsyncIterator[Server]:
    services = Services(streams=gateway, health=gateway.backend.health)
    server = Server(ServerSettings(port=port), services, CollectorRegistry())
    await server.start()
    yield server
    await server.stop(5.0)


async def test_a_client_goes_on_where_its_gateway_is_no_more(stage: Stage) -> None:
    worker, port, second_half = await stage.worker(), free_port(), asyncio.Event()
    events: list[Event] = []

    async def audio() -> AsyncIterator[object]:
        for first in range(0, len(SPEECH.audio), 1600):
            if first == 4 * SAMPLE_RATE:
                await second_half.wait()
            yield SPEECH.audio[first : first + 1600]

    async def read() -> None:
        async for event in stream_of(audio(), f"127.0.0.1:{port}"):  # type: ignore[arg-type]
            events.append(event)

    async with front(await stage.gateway("g1"), port):
        reading = asyncio.create_task(read())
        await until(lambda: any(event.type == "final" for event in events))
    async with front(await stage.gateway("g2"), port):
        second_half.set()
        await asyncio.wait_for(reading, WAIT_S)
    said = " ".join(event.text for event in events if event.type == "final")  # type: ignore[attr-defined]
    assert said.split() == SPEECH.texts
    assert [event.type for event in events].count("ready") == 1
    assert worker.alive.counters["taken_over"] == 1


@pytest.mark.slow
def test_a_first_try_needs_no_nats() -> None:
    with started("gateway", "--port", str(free_port())) as gateway:
        gateway.wait_ready()
        assert gateway.get("/healthz")[0] == 503
        assert "streamer_cluster_gateways" in gateway.get("/metrics")[1]
        outcome = gateway.stop()
    assert outcome.exit_code == 0 or sys.platform == "win32"
    assert "streamer worker --nats nats://127.0.0.1:" in outcome.stderr
