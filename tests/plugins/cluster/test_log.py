"""A session's log: who may store, what a lost answer means, and what survives."""

import asyncio
import uuid
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from nats.js.errors import BadRequestError

from streamer.errors import ClusterError, ClusterMessageError, FencedError, UnknownSessionError
from streamer.plugins.cluster import log as log_module
from streamer.plugins.cluster.log import SessionLog, log_subject
from tests.plugins.cluster.support import Line, NatsCluster, NatsServer, log_on, record, running, settings_for
from tests.waiting import until


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


async def numbers(log: SessionLog, session: str, *, seq: int = 0) -> list[int]:
    return [stored.record.checkpoint.seq for stored in await log.read(session, seq=seq)]


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
        assert await numbers(log, session) == [1, 2, 3, 4]
        assert await numbers(log, session, seq=3) == [4]


async def one_wins(session: str, epoch: int, after: int, *logs: SessionLog) -> int:
    """Let writers that saw the same record store at once, hold that one of them does, and return its sequence."""
    tries = [
        log.store(session, record(epoch, epoch=epoch, worker=f"w{i}"), after=after) for i, log in enumerate(logs * 3)
    ]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(outcome, FencedError) for outcome in outcomes) == len(tries) - 1
    return next(outcome for outcome in outcomes if isinstance(outcome, int))


async def test_of_writers_that_saw_the_same_record_exactly_one_wins(nats: str, session: str) -> None:
    async with log_on(nats, name="m1") as (_, first), log_on(nats, name="m2") as (_, second):
        after = 0
        for epoch in range(1, 21):
            after = await one_wins(session, epoch, after, first, second)
        assert await numbers(second, session) == list(range(1, 21))


@pytest.mark.parametrize("trouble", ["the line is cut", "NATS is full"])
async def test_storing_waits_until_it_is_possible_and_reports_that_once(
    tmp_path: Path, session: str, trouble: str
) -> None:
    troubles: list[str] = []
    with running(NatsServer(tmp_path, store="max_file_store: 100KB")) as server:
        async with Line(server.url) as line, log_on(line.url) as (bus, log):
            bus.on_trouble = troubles.append
            if trouble == "NATS is full":
                await bus.jetstream.add_stream(name="OTHER", subjects=["other"])
                await bus.jetstream.publish("other", b"x" * 110_000)
            else:
                line.dead = True
                line.cut()
                await until(lambda: not bus.connected)
            storing = asyncio.create_task(log.store(session, record(1), after=0))
            await until(lambda: bool(troubles))
            if trouble == "NATS is full":
                await bus.jetstream.delete_stream("OTHER")
            line.dead = False
            line.cut()
            assert await storing == 1
    assert len(troubles) == 1


@pytest.mark.slow
async def test_a_lost_answer_is_not_taken_for_another_writer(nats: str, session: str) -> None:
    async with Line(nats) as line, log_on(line.url) as (_, log), log_on(nats, name="m2") as (_, other):
        after = await log.store(session, record(1), after=0)
        for number, is_owned in ((2, True), (3, False)):
            line.deaf = True
            storing = asyncio.create_task(log.store(session, record(number), after=after))
            while (last := await other.last(session)) is None or last.record.checkpoint.seq < number:
                await asyncio.sleep(0.01)
            after = last.sequence
            if not is_owned:  # another has written behind it by the time that the line is back
                await other.store(session, record(4, epoch=2, worker="w2"), after=after)
            line.cut()
            line.deaf = False
            (outcome,) = await asyncio.gather(storing, return_exceptions=True)
            assert outcome == after if is_owned else isinstance(outcome, FencedError)
        assert await numbers(log, session) == [1, 2, 3, 4]


@pytest.mark.parametrize("code", [10071, 10164, 10158])
async def test_a_refusal_while_nothing_newer_is_stored_is_tried_again(nats: str, session: str, code: int) -> None:
    """So JetStream answers where an earlier try is still on its way through its servers."""
    async with log_on(nats) as (bus, log):
        first = await log.store(session, record(1), after=0)
        publish, refusal = (
            bus.jetstream.publish,
            BadRequestError(code=400, err_code=code, description="wrong last sequence"),
        )
        second = await publish(log_subject(uuid.uuid4().hex), b"")
        bus.jetstream.publish = AsyncMock(side_effect=[refusal, refusal, second])  # type: ignore[method-assign]
        assert await log.store(session, record(2), after=first) == second.seq
        assert bus.jetstream.publish.call_count == 3


async def test_what_can_never_be_stored_is_no_reason_to_try_for_ever(nats: str, session: str) -> None:
    async with log_on(nats) as (bus, log):
        with pytest.raises(ClusterError):
            await log.store(session, record(1, events=["x" * 2_000_000]), after=0)
        for name in ("", "*", ">", "a.b", "a b", "ä", "a\r\nPUB x 0"):
            for asking in (log.store(name, record(1), after=0), log.last(name)):
                with pytest.raises(UnknownSessionError):
                    await asking

        refusal = BadRequestError(code=400, err_code=10060, description="expected stream does not match")
        bus.jetstream.publish = AsyncMock(side_effect=refusal)  # type: ignore[method-assign]
        with pytest.raises(ClusterError):
            await log.store(session, record(1), after=0)


async def test_malformed_records_fence_and_are_left_out_and_those_of_another_version_are_none(
    nats: str, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log_on(nats) as (bus, log):
        with monkeypatch.context() as patch:
            patch.setattr(log_module, "VERSION", 99)
            await log.store(session, record(1), after=0)
        assert await log.last(session) is None
        for data in (b"nonsense", b""):
            sequence = (await bus.jetstream.publish(log_subject(session), data)).seq
            with pytest.raises(ClusterMessageError):
                await log.last(session)
            assert await log.read(session) == []
            with pytest.raises(FencedError):
                await log.store(session, record(2), after=sequence - 1)
        assert await log.store(session, record(8, epoch=4), after=sequence) == sequence + 1
        assert await numbers(log, session) == [8]


async def test_a_stream_that_is_there_is_taken_as_it_is_and_that_is_reported(nats: str) -> None:
    troubles: list[str] = []
    async with log_on(nats) as (bus, _):
        bus.on_trouble = troubles.append
        for keep_s in (3600.0, 60.0):
            await SessionLog(bus, settings_for(nats, keep_s=keep_s)).prepare()
        assert (await bus.jetstream.stream_info("SESSIONS")).config.max_age == 3600
    assert len(troubles) == 1


async def test_where_nats_has_lost_all_the_owner_stores_on(tmp_path: Path, session: str) -> None:
    with running(NatsServer(tmp_path)) as server:
        async with log_on(server.url) as (bus, log):
            after = await log.store(session, record(1), after=0)
            after = await log.store(session, record(2), after=after)
            await bus.jetstream.delete_stream("SESSIONS")
            assert await log.store(session, record(3), after=after) == 1
            assert await numbers(log, session) == [3]
            with pytest.raises(FencedError):
                await log.store(session, record(4, worker="w2"), after=0)


@pytest.mark.slow
async def test_of_three_servers_the_one_that_leads_may_die(nats_cluster: NatsCluster, session: str) -> None:
    urls = nats_cluster.urls
    async with log_on(*urls, name="m1") as (bus, first), log_on(*urls, name="m2") as (_, second):
        info = await bus.jetstream.stream_info("SESSIONS")
        assert info.config.num_replicas == 3
        assert info.cluster
        after = await first.store(session, record(1), after=0)
        nats_cluster.named(str(info.cluster.leader)).kill()
        await one_wins(session, 2, after, first, second)
        for log in (first, second):
            assert await numbers(log, session) == [1, 2]
