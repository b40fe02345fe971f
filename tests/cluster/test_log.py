"""A session's log: who may store, what a lost answer means, and what survives."""

import asyncio
import uuid

import pytest

from streamer.cluster.log import SessionLog
from streamer.errors import FencedError
from tests.cluster.support import NatsCluster, bus_on, record, settings_for


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


async def test_records_come_back_in_order_and_from_where_asked(nats: str, session: str) -> None:
    async with bus_on(nats) as bus:
        log = SessionLog(bus, settings_for(nats))
        await log.prepare()
        assert await log.last(session) is None
        assert await log.read(session) == []
        sequences = [0]
        for number in range(1, 5):
            sequences.append(await log.store(session, record(number, events=[f"e{number}"]), after=sequences[-1]))
            await log.store(uuid.uuid4().hex, record(), after=0)
        newest = await log.last(session)
        assert newest is not None
        assert newest == (record(4, events=["e4"]), sequences[4])
        assert [stored.record.number for stored in await log.read(session)] == [1, 2, 3, 4]
        assert [stored.record.number for stored in await log.read(session, after=sequences[2])] == [3, 4]


async def test_of_writers_that_saw_the_same_record_exactly_one_wins(nats: str, session: str) -> None:
    async with bus_on(nats, name="m1") as first, bus_on(nats, name="m2") as second:
        logs = [SessionLog(bus, settings_for(nats)) for bus in (first, second)]
        await logs[0].prepare()
        after = 0
        for epoch in range(1, 21):
            tries = [
                log.store(session, record(epoch, epoch=epoch, worker=f"w{i}"), after=after)
                for i, log in enumerate(logs * 3)
            ]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            assert sum(isinstance(outcome, FencedError) for outcome in outcomes) == 5
            after = next(outcome for outcome in outcomes if isinstance(outcome, int))
        assert len(await logs[1].read(session)) == 20


async def test_cluster(nats_cluster: NatsCluster, session: str) -> None:
    async with bus_on(*nats_cluster.urls) as bus:
        log = SessionLog(bus, settings_for(*nats_cluster.urls))
        await log.prepare()
        info = await bus.jetstream.stream_info("SESSIONS")
        assert info.config.num_replicas == 3
