"""A session's log: who may store, what a lost answer means, and what survives."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import BadRequestError

from streamer.errors import ClusterError, ClusterMessageError, FencedError, UnknownSessionError
from streamer.plugins.cluster.log import SessionLog, log_subject
from tests.plugins.cluster.support import (
    Line,
    NatsCluster,
    NatsServer,
    bus_on,
    log_on,
    record,
    running,
    settings_for,
)
from tests.waiting import until


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


async def test_records_come_back_in_order_and_from_where_asked(nats: str, session: str) -> None:
    async with log_on(nats) as (_bus, log):
        assert await log.last(session) is None
        assert await log.read(session) == []
        sequences = [0]
        for number in range(1, 5):
            sequences.append(await log.store(session, record(number, events=[f"e{number}"]), after=sequences[-1]))
            await log.store(uuid.uuid4().hex, record(), after=0)
        newest = await log.last(session)
        assert newest is not None
        assert (newest.sequence, newest.record.previous) == tuple(sequences[:2:-1])
        assert (newest.record.checkpoint.seq, newest.record.events) == (4, ("e4",))
        assert [stored.record.checkpoint.seq for stored in await log.read(session)] == [1, 2, 3, 4]
        assert [stored.record.checkpoint.seq for stored in await log.read(session, seq=3)] == [4]


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


async def test_a_lost_answer_is_not_taken_for_another_writer(nats: str, session: str) -> None:
    async with Line(nats) as line, bus_on(line.url) as bus, bus_on(nats, name="m2") as other:
        log, second = SessionLog(bus, settings_for(nats)), SessionLog(other, settings_for(nats))
        await log.prepare()
        first = await log.store(session, record(1), after=0)
        line.deaf = True
        storing = asyncio.create_task(log.store(session, record(2), after=first))
        await until(lambda: _number(second, session, 2))
        line.cut()
        line.deaf = False
        stored = await second.last(session)
        assert stored is not None
        assert await storing == stored.sequence
        assert [found.record.checkpoint.seq for found in await log.read(session)] == [1, 2]
        # The same once more, with the answer lost and another writer behind it, which owns the session.
        line.deaf = True
        storing = asyncio.create_task(log.store(session, record(3), after=stored.sequence))
        await until(lambda: _number(second, session, 3))
        stored = await second.last(session)
        assert stored is not None
        await second.store(session, record(4, epoch=2, worker="w2"), after=stored.sequence)
        line.cut()
        line.deaf = False
        with pytest.raises(FencedError, match="w2 owns the session, with epoch 2"):
            await storing


async def test_storing_goes_on_when_the_connection_is_back(nats: str, session: str) -> None:
    troubles: list[str] = []
    async with Line(nats) as line, log_on(line.url) as (bus, log):
        bus.on_trouble = troubles.append
        after = 0
        for number in range(1, 4):
            line.dead = True
            line.cut()
            await until(lambda: not bus.connected)
            storing = asyncio.create_task(log.store(session, record(number), after=after))
            await until(lambda number=number: len(troubles) == number)  # type: ignore[misc]
            line.dead = False
            line.cut()
            after = await storing
        assert [stored.record.checkpoint.seq for stored in await log.read(session)] == [1, 2, 3]
    assert len(troubles) == 3
    assert all(trouble.startswith("NATS stores nothing, and is asked again until it does") for trouble in troubles)


@pytest.mark.parametrize("code", [10071, 10164, 10158])
async def test_a_refusal_while_nothing_newer_is_stored_is_tried_again(nats: str, session: str, code: int) -> None:
    """So JetStream answers where an earlier try is still on its way through its servers."""
    async with log_on(nats) as (bus, log):
        first = await log.store(session, record(1), after=0)
        publish, n_refused = bus.jetstream.publish, 0

        async def refuse_twice(*arguments: Any, **others: Any) -> Any:  # noqa: ANN401
            nonlocal n_refused
            n_refused += 1
            if n_refused < 3:
                raise BadRequestError(code=400, err_code=code, description="wrong last sequence")
            return await publish(*arguments, **others)

        bus.jetstream.publish = refuse_twice  # type: ignore[method-assign]
        assert await log.store(session, record(2), after=first) > first
        assert n_refused == 3


async def test_what_can_never_be_stored_is_no_reason_to_try_for_ever(nats: str, session: str) -> None:
    async with log_on(nats) as (_bus, log):
        with pytest.raises(ClusterError, match="too large for NATS"):
            await log.store(session, record(1, events=["x" * 2_000_000]), after=0)
        for name in ("", "*", ">", "a.b", "a b", "ä", "a\r\nPUB x 0"):
            with pytest.raises(UnknownSessionError):
                await log.store(name, record(1), after=0)
            with pytest.raises(UnknownSessionError):
                await log.last(name)


async def test_malformed_records_fence_and_are_left_out(nats: str, session: str) -> None:
    async with log_on(nats) as (bus, log):
        for data in (b"nonsense", b""):
            sequence = (await bus.jetstream.publish(log_subject(session), data)).seq
            with pytest.raises(ClusterMessageError):
                await log.last(session)
            assert await log.read(session) == []
            with pytest.raises(FencedError):
                await log.store(session, record(2), after=sequence - 1)
        assert await log.store(session, record(8, epoch=4), after=sequence) == sequence + 1
        assert [stored.record.checkpoint.seq for stored in await log.read(session)] == [8]


async def test_records_of_another_version_are_none(nats: str, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with log_on(nats) as (_bus, log):
        with monkeypatch.context() as patch:
            patch.setattr("streamer.plugins.cluster.log.VERSION", 99)
            await log.store(session, record(1), after=0)
        assert await log.last(session) is None
        assert await log.store(session, record(1), after=0)


async def test_a_stream_that_is_there_is_taken_as_it_is(nats: str) -> None:
    troubles: list[str] = []
    async with bus_on(nats) as bus:
        await SessionLog(bus, settings_for(nats)).prepare()
        bus.on_trouble = troubles.append
        log = SessionLog(bus, settings_for(nats, keep_s=60.0))
        await log.prepare()
        assert (await bus.jetstream.stream_info("SESSIONS")).config.max_age == 3600
    assert troubles == [
        "NATS keeps sessions for 3600 s in 1 copies, as it was set up before: expected 60 s in 1;"
        " change it with `nats stream edit SESSIONS`"
    ]


async def test_where_nats_has_lost_all_the_owner_stores_on(tmp_path: Path, session: str) -> None:
    with running(NatsServer(tmp_path)) as server:
        async with log_on(server.url) as (bus, log):
            after = await log.store(session, record(1), after=0)
            after = await log.store(session, record(2), after=after)
            await bus.jetstream.delete_stream("SESSIONS")
            assert await log.store(session, record(3), after=after) == 1
            assert [stored.record.checkpoint.seq for stored in await log.read(session)] == [3]
            with pytest.raises(FencedError):
                await log.store(session, record(4, worker="w2"), after=0)


async def test_when_nats_is_full_storing_waits_for_room_and_reports_it_once(tmp_path: Path, session: str) -> None:
    troubles: list[str] = []
    with running(NatsServer(tmp_path, store="max_file_store: 100KB")) as server:
        async with log_on(server.url) as (bus, log):
            bus.on_trouble = troubles.append
            await bus.jetstream.add_stream(name="OTHER", subjects=["other"])
            await bus.jetstream.publish("other", b"x" * 110_000)
            storing = asyncio.create_task(log.store(session, record(1, events=["e1"]), after=0))
            await until(lambda: bool(troubles))
            await asyncio.sleep(0.3)
            assert not storing.done()
            await bus.jetstream.delete_stream("OTHER")
            assert await storing == 1
    assert len(troubles) == 1


async def test_of_three_servers_the_one_that_leads_may_die(nats_cluster: NatsCluster, session: str) -> None:
    urls = nats_cluster.urls
    async with bus_on(*urls, name="m1") as bus, bus_on(*urls, name="m2") as other:
        logs = [SessionLog(bus, settings_for(*urls)), SessionLog(other, settings_for(*urls))]
        await asyncio.gather(*(log.prepare() for log in logs))
        info = await bus.jetstream.stream_info("SESSIONS")
        assert info.config.num_replicas == 3
        after = await logs[0].store(session, record(1), after=0)
        assert info.cluster is not None
        assert info.cluster.leader is not None
        nats_cluster.named(info.cluster.leader).kill()
        outcomes = await asyncio.gather(
            *(log.store(session, record(2, worker=f"w{i}"), after=after) for i, log in enumerate(logs * 3)),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, FencedError) for outcome in outcomes) == 5
        assert len({outcome for outcome in outcomes if isinstance(outcome, int)}) == 1
        for log in logs:
            assert [stored.record.checkpoint.seq for stored in await log.read(session)] == [1, 2]


async def _number(log: SessionLog, session: str, number: int) -> bool:
    """Whether this is the number of a session's last record."""
    stored = await log.last(session)
    return stored is not None and stored.record.checkpoint.seq == number
