"""Subscribers of /v1/captions: each gets every event that still matters, and none delays another."""

import asyncio

import pytest

from streamer.events import Error, Final, Partial
from streamer.server.routes import CAPTIONS, SOCKETS
from tests.builders import final, partial
from tests.wire.harness import closing, deaf_socket, events_until, next_event, opened_log, serving, within


async def test_history_that_is_gone_is_told_to_the_client() -> None:
    async with serving(opened_log(limit=3)) as running:
        for n in range(1, 10):
            running.log.append(final("x", segment=n))
        async with running.socket("/v1/captions?after=2") as client:
            event = await next_event(client)
            assert isinstance(event, Error)
            assert (event.code, event.fatal) == ("history_lost", False)
            assert [(await next_event(client)).seq for _ in range(3)] == [8, 9, 10]


async def test_a_subscriber_that_does_not_read_delays_nobody_and_is_closed() -> None:
    long = "word " * 2000
    async with serving(queue_events=20) as running, running.socket("/v1/captions") as reader:
        assert (await next_event(reader)).type == "ready"
        deaf = await asyncio.to_thread(deaf_socket, running.port, "/v1/captions")
        await running.value("streamer_subscribers", {}, 2)
        for n in range(1, 200):
            sent = running.log.append(final(long, segment=n, words=()))
            assert await next_event(reader) == sent
            if running.registry.get_sample_value("streamer_subscribers_too_slow_total") == 1:
                break
        await running.value("streamer_subscribers_too_slow_total", {}, 1)
        sent = running.log.append(final("still here", segment=1000))
        assert await next_event(reader) == sent
        deaf.close()
        await running.value("streamer_subscribers", {}, 1)


async def test_overflow_closes_1013_and_names_the_event_to_come_back_to() -> None:
    async with serving(queue_events=10) as running, running.socket("/v1/captions") as client:
        assert (await next_event(client)).type == "ready"
        for n in range(2, 100):  # all before the server can send one
            running.log.append(final("x", segment=n))
        code, reason = await closing(client)
        assert code == 1013
        assert reason.endswith("?after=1")
        async with running.socket("/v1/captions?after=1&session=s1") as again:
            assert [(await next_event(again)).seq for _ in range(98)] == list(range(2, 100))


async def test_a_slow_subscriber_skips_partials_and_never_a_final() -> None:
    async with serving(queue_events=50) as running, running.socket("/v1/captions") as client:
        assert (await next_event(client)).type == "ready"
        for segment in range(1, 21):
            for _ in range(50):
                running.log.append(partial("so far", segment=segment))
            running.log.append(final(f"number {segment}", segment=segment))
        running.log.close()
        events = await events_until(client, "end")
        assert [e.segment for e in events if isinstance(e, Final)] == list(range(1, 21))
        assert len([e for e in events if isinstance(e, Partial)]) < 20
        assert [e.seq for e in events] == sorted(e.seq for e in events)
        assert (running.registry.get_sample_value("streamer_partials_superseded_total") or 0) > 900


async def test_there_is_room_for_a_number_of_subscribers_only() -> None:
    async with serving(max_subscribers=2) as running:
        async with running.socket("/v1/captions") as one, running.socket("/v1/captions") as two:
            for client in (one, two):
                await next_event(client)
            async with running.socket("/v1/captions") as three:
                code, reason = await closing(three)
                assert (code, "server.max_subscribers" in reason) == (1013, True)
        await running.value("streamer_subscribers", {}, 0)
        async with running.socket("/v1/captions") as client:
            assert (await next_event(client)).type == "ready"


@pytest.mark.parametrize("path", sorted(SOCKETS.keys() - {CAPTIONS}))
async def test_streams_do_not_count_as_subscribers(path: str) -> None:
    async with serving(max_subscribers=1) as running, running.socket(path), running.socket(path) as second:
        await within(await second.ping())


async def test_what_is_no_event_of_the_session_takes_no_number_and_is_not_repeated() -> None:
    async with serving() as running, running.socket("/v1/captions") as client:
        running.log.append(final("one", segment=1))
        assert [(await next_event(client)).seq for _ in range(2)] == [1, 2]
        running.log.notify(Error(code="waiting", message="wait", fatal=False))
        event = await next_event(client)
        assert (event.type, event.seq, event.session) == ("error", 2, "s1")
        running.log.append(final("two", segment=2))
        assert (await next_event(client)).seq == 3
        async with running.socket("/v1/captions?after=0") as late:
            assert [(await next_event(late)).type for _ in range(3)] == ["ready", "final", "final"]
