"""Who is alive, and who only seems not to be."""

from collections.abc import Iterator
from typing import cast

import pytest

from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.messages import ALIVE_GATEWAYS, ALIVE_WORKERS, LOST_S, VERSION, GatewayAlive, WorkerAlive
from streamer.plugins.cluster.neighbours import Neighbours
from tests.plugins.cluster.stand_ins import LocalBus
from tests.waiting import until


class Clock:
    """The monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr("streamer.plugins.cluster.neighbours.time", clock)
        yield clock


def alive(worker: str) -> WorkerAlive:
    return WorkerAlive(worker=worker, version=VERSION, model="m", load=0.1, capacity=5, sessions=0, room=True)


async def machines(own: str = "") -> tuple[LocalBus, Neighbours]:
    bus = LocalBus()
    neighbours = Neighbours(cast(Bus, bus), (lambda: GatewayAlive(gateway=own)) if own else None)
    await neighbours.start()
    return bus, neighbours


async def test_machines_are_alive_until_they_are_silent_for_too_long(clock: Clock) -> None:
    bus, neighbours = await machines("g1")
    await bus.publish(f"{ALIVE_WORKERS}.w1", alive("w1"))
    for gateway in ("g1", "g2"):  # its own sign comes back to it
        await bus.publish(f"{ALIVE_GATEWAYS}.{gateway}", GatewayAlive(gateway=gateway, sessions=1))
    await until(lambda: len(neighbours.workers()) == 1 and len(neighbours.gateways()) == 2)
    assert [gateway.gateway for gateway in neighbours.gateways()] == ["g1", "g2"]
    clock.now_s += LOST_S - 0.01
    assert len(neighbours.workers()) == 1
    clock.now_s += 0.02
    assert neighbours.workers() == []
    assert [gateway.gateway for gateway in neighbours.gateways()] == ["g1"]
    bus.close()


async def test_silence_says_nothing_while_this_machine_may_be_cut_off(clock: Clock) -> None:
    bus, neighbours = await machines("g1")

    async def looks(seconds: float, *, worker: bool = True) -> list[tuple[bool, bool]]:
        found = []
        for _ in range(round(seconds / 0.2)):
            clock.now_s += 0.2
            if worker:
                neighbours.known.take(alive("w1"), clock.now_s)
            found.append(neighbours.look(clock.now_s))
        return found

    assert (await looks(LOST_S - 0.2))[-1] == (False, False)  # it has just begun
    assert (await looks(0.6))[-1] == (True, False)
    bus.connected = False
    assert (await looks(0.4))[-1] == (False, False)
    bus.connected = True
    assert (await looks(LOST_S - 0.2))[-1] == (False, False)
    assert (await looks(0.6))[-1] == (True, False)
    clock.now_s += 1.0  # this process was stopped
    assert neighbours.look(clock.now_s) == (False, True)
    assert (await looks(2 * LOST_S))[-1] == (True, False)
    assert (await looks(2 * LOST_S, worker=False))[-1] == (False, False)  # no machine has reported
    bus.close()


async def test_a_gateway_is_silent_from_its_last_sign_on_or_from_when_it_was_first_asked_for(clock: Clock) -> None:
    bus, neighbours = await machines()
    clock.now_s += 100.0
    assert neighbours.silent_s("g1") == 0.0
    clock.now_s += 3.0
    assert neighbours.silent_s("g1") == 3.0
    await bus.publish(f"{ALIVE_GATEWAYS}.g1", GatewayAlive(gateway="g1"))
    await until(lambda: neighbours.silent_s("g1") == 0.0)
    clock.now_s += 3.0
    bus.connected = False
    neighbours.look(clock.now_s)
    clock.now_s += 1.0
    assert neighbours.silent_s("g1") == 1.0
    bus.close()
