"""Clients in front of gateways: they come back to another one, and notice no more than a pause."""

import asyncio
import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from websockets.asyncio.client import connect

from streamer.arrays import Float32Array
from streamer.client.stream import stream
from streamer.events import Event
from streamer.server.context import Services
from streamer.server.front import Server
from streamer.settings.table import ServerSettings
from tests.daemon import free_port
from tests.plugins.cluster.fake_worker import texts_of
from tests.plugins.cluster.test_gateway import Gateway, Places, finals, places, speech
from tests.waiting import WAIT_S, until

__all__ = ["places"]  # a fixture


@contextlib.asynccontextmanager
async def front(streams: Gateway, port: int) -> AsyncIterator[Server]:
    services = Services(streams=streams, health=streams.backend.health)
    server = Server(ServerSettings(port=port), services, CollectorRegistry())
    await server.start()
    try:
        yield server
    finally:
        await server.stop(5.0)


async def read(port: int, samples: Float32Array, pause: asyncio.Event, events: list[Event]) -> None:
    """Send audio, the second half when `pause` is set, and read what is said."""

    async def audio() -> AsyncIterator[object]:
        for first in range(0, len(samples), 1600):
            if first >= len(samples) // 2:
                await pause.wait()
            yield samples[first : first + 1600]

    async for event in stream(audio(), f"127.0.0.1:{port}"):  # type: ignore[arg-type]
        events.append(event)


@pytest.mark.parametrize("end", ["stops", "dies"])
async def test_a_client_goes_on_where_its_gateway_is_no_more(places: Places, end: str) -> None:
    await places.worker("w1")
    _, samples = speech(32_000)
    port, second_half = free_port(), asyncio.Event()
    events: list[Event] = []
    streams = await places.gateway("g1")
    async with front(streams, port) as server:
        reading = asyncio.create_task(read(port, samples, second_half, events))
        await until(lambda: len(finals(events)) >= 9)
        if end == "dies":
            for connection in server._state.connections:
                connection.transport.abort()
    await streams.backend.close()
    streams = await places.gateway("g2")
    second_half.set()
    async with front(streams, port):
        await reading
    assert finals(events) == texts_of(samples)
    assert [event.type for event in events].count("ready") == 1
    assert places.workers["w1"].left == []


async def test_other_protocols_are_served_unchanged(places: Places) -> None:
    await places.worker("w1")
    data, samples = speech(4800)
    async with (
        front(await places.gateway(), port := free_port()),
        connect(f"ws://127.0.0.1:{port}/v1/listen?encoding=linear16&sample_rate=16000") as client,
    ):
        for first in range(0, len(data), 3200):
            await client.send(data[first : first + 3200])
        await client.send('{"type":"CloseStream"}')
        said = "".join([str(message) async for message in client])
    assert all(text in said for text in texts_of(samples))


def test_a_first_try_needs_no_nats(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "streamer", "gateway", "--port", str(port)]
        gateway = subprocess.Popen(command, stderr=out, stdout=out)
    try:
        for _ in range(600):
            with contextlib.suppress(subprocess.TimeoutExpired):
                gateway.wait(0.1)
            if "listens on" in log.read_text(encoding="utf-8"):
                break
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=WAIT_S)
        assert refused.value.code == 503
        assert b"no worker is alive" in refused.value.read()
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S).read()
        assert b"streamer_cluster_gateways" in metrics
    finally:
        gateway.terminate()
        assert gateway.wait(WAIT_S) == (0 if sys.platform != "win32" else gateway.returncode)
    assert "a worker joins with: streamer worker --nats nats://127.0.0.1:" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("setting", ["history: kept.sqlite", "history_audio: all"])
def test_a_gateway_keeps_no_history(tmp_path: Path, setting: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"server: {{{setting}}}\n", encoding="utf-8")
    command = [sys.executable, "-m", "streamer", "gateway", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert f"server.{setting.partition(':')[0]} is set" in done.stderr
    assert "a gateway keeps no history: leave it out" in done.stderr
    assert len(done.stderr.splitlines()) == 1
