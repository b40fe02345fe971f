"""Which machines are alive, and which only seem not to be."""

import asyncio
from typing import cast

import pytest

from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.messages import ALIVE_GATEWAYS, ALIVE_WORKERS, LOST_S, GatewayAlive
from streamer.plugins.cluster.neighbours import Neighbours
from tests.fakes import Clock
from tests.plugins.cluster.stage import Port, Wire
from tests.plugins.cluster.support import alive


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.advance(1000.0)
    monkeypatch.setattr("streamer.plugins.cluster.neighbours.time.monotonic", clock)
    return clock


async def machines(own: str = "") -> tuple[Port, Neighbours]:
    port = Port(Wire(), own)
    neighbours = Neighbours(cast(Bus, port), (lambda: GatewayAlive(gateway=own)) if own else None)
    await neighbours.start()
    return port, neighbours


async def gateway_reports(port: Port, name: str) -> None:
    await port.publish(f"{ALIVE_GATEWAYS}.{name}", GatewayAlive(gateway=name, sessions=1))
    await asyncio.sleep(0)


async def test_machines_are_alive_until_they_are_silent_for_too_long(clock: Clock) -> None:
    port, neighbours = await machines("g1")
    await port.publish(f"{ALIVE_WORKERS}.w1", alive("w1"))
    for gateway in ("g1", "g2"):  # its own sign comes back to it
        await gateway_reports(port, gateway)
    assert [gateway.gateway for gateway in neighbours.gateways()] == ["g1", "g2"]
    clock.advance(LOST_S - 0.01)
    assert len(neighbours.workers()) == 1
    clock.advance(0.02)
    assert neighbours.workers() == []
    assert [gateway.gateway for gateway in neighbours.gateways()] == ["g1"]


async def test_silence_says_nothing_while_this_machine_may_be_cut_off(clock: Clock) -> None:
    port, neighbours = await machines("g1")

    def after(seconds: float, *, worker: bool = True) -> tuple[bool, bool]:
        for _ in range(round(seconds / 0.2)):
            clock.advance(0.2)
            if worker:
                neighbours.known.take(alive("w1"), clock())
            found = neighbours.look(clock())
        return found

    assert after(LOST_S - 0.2) == (False, False)  # it has just begun
    assert after(0.6) == (True, False)
    port.connected = False
    assert after(0.4) == (False, False)
    port.connected = True
    assert after(LOST_S - 0.2) == (False, False)
    assert after(0.6) == (True, False)
    clock.advance(1.0)  # this process was stopped
    assert neighbours.look(clock()) == (False, True)
    assert after(2 * LOST_S) == (True, False)
    assert after(2 * LOST_S, worker=False) == (False, False)  # no machine has reported


async def test_a_gateway_is_silent_from_its_last_sign_on_or_from_when_it_was_first_asked_for(clock: Clock) -> None:
    port, neighbours = await machines()
    clock.advance(100.0)
    assert neighbours.silent_s("g1") == 0.0
    clock.advance(3.0)
    assert neighbours.silent_s("g1") == 3.0
    await gateway_reports(port, "g1")
    assert neighbours.silent_s("g1") == 0.0
    clock.advance(3.0)
    port.connected = False
    neighbours.look(clock())
    clock.advance(1.0)
    assert neighbours.silent_s("g1") == 1.0


async def test_workers_that_come_and_go_are_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "streamer.plugins.cluster.neighbours")
    _, neighbours = await machines("g1")
    for drains in (False, True, True):
        for _ in range(20):
            clock.advance(0.2)
            neighbours.known.take(alive("w1"), clock())
            if not drains:
                neighbours.known.take(alive("w2", draining=True), clock())
            neighbours.look(clock())
    for _ in range(10):
        clock.advance(0.2)
        neighbours.look(clock())
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "INFO", "INFO", "WARNING", "ERROR"]  # two come, one has left, one is lost, none is left
