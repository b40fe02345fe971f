"""A room: what is said in the streams that name it is read by others, one stream after another."""
# ruff: noqa: ANN401 - settings are passed on

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from streamer.daemon.backend import Backend
from streamer.daemon.clients import ClientStreams
from streamer.daemon.streams import ClientStream
from streamer.events import Error, Event
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings
from tests.waiting import until
from tests.wire.harness import (
    SAMPLES_A_FINAL,
    TOKEN,
    ListeningStream,
    Running,
    added,
    bearer,
    closing,
    events_until,
    next_event,
    serving,
    within,
)

SENTENCE = bytes(2 * SAMPLES_A_FINAL)


class Stages(Backend):
    """Opens streams that publish `1`, `2`, ... for each sentence; their sessions are named in their order."""

    def __init__(self) -> None:
        self.streams: list[ListeningStream] = []

    async def open(self, name: str, start: StreamStart, *, tenant: str) -> ClientStream:
        stream = ListeningStream(options=start, name=f"talk-{len(self.streams) + 1}")
        stream.start()
        self.streams.append(stream)
        return stream

    async def knows(self, name: str, *, tenant: str) -> bool:
        return False


@contextlib.asynccontextmanager
async def stages(*, resume_s: float = 30.0, **settings: Any) -> AsyncIterator[tuple[Running, Stages]]:
    backend = Stages()
    streams = ClientStreams(ServerSettings(resume_s=resume_s), backend)
    async with serving(streams=streams, input=None, **settings) as running:
        yield running, backend


@contextlib.asynccontextmanager
async def speaking(running: Running, room: str, token: str = "") -> AsyncIterator[ClientConnection]:
    async with running.socket("/v1/stream", additional_headers=bearer(token)) as client:
        await client.send(json.dumps({"type": "start", "room": room}))
        yield client


async def said(client: ClientConnection, n_sentences: int = 1) -> list[str]:
    """Say sentences, and return the texts of their finals."""
    await client.send(SENTENCE * n_sentences)
    return texts([(await events_until(client, "final"))[-1] for _ in range(n_sentences)])


def texts(events: Sequence[Event]) -> list[str]:
    return [f"{event.session} {getattr(event, 'text', event.type)}" for event in events]


async def refusal(running: Running, path: str, **headers: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused:
        await running.socket(path, additional_headers=headers).__aenter__()
    return refused.value.response.status_code, json.loads(refused.value.response.body or b"")["error"]


async def test_a_reader_who_comes_early_reads_one_talk_after_another_and_no_other_room() -> None:
    async with (
        stages() as (running, _),
        running.socket("/v1/captions?room=main") as reader,
        speaking(running, "side") as side,
        speaking(running, "") as nowhere,
    ):
        await said(side)
        await said(nowhere)
        async with speaking(running, "main") as first:
            await said(first)
            assert texts(await events_until(reader, "final")) == ["talk-3 ready", "talk-3 1"]
            await first.send('{"type":"finish"}')
            assert (await closing(first))[0] == 1000
        async with speaking(running, "main") as second:
            await said(second)
            assert texts(await events_until(reader, "final")) == ["talk-4 ready", "talk-4 1"]
        assert running.count("subscribers") == 1


async def test_who_comes_back_misses_nothing_of_a_talk_that_has_ended_and_of_the_next() -> None:
    async with stages() as (running, backend):
        async with speaking(running, "main") as first:
            await said(first, 3)
            await first.send('{"type":"finish"}')
            await closing(first)
        await until(lambda: backend.streams[0].log.closed)
        async with running.socket("/v1/captions?room=main&after=2&session=talk-1") as reader:
            assert texts([await next_event(reader) for _ in range(2)]) == ["talk-1 2", "talk-1 3"]
            # Who has just come wants nothing of what is over.
            async with running.socket("/v1/captions?room=main") as late, speaking(running, "main") as second:
                await said(second)
                for client in (reader, late):
                    assert texts(await events_until(client, "final")) == ["talk-2 ready", "talk-2 1"]


async def test_a_stream_ends_that_is_read_where_another_begins() -> None:
    async with (
        stages() as (running, _),
        speaking(running, "main") as first,
        running.socket("/v1/captions?room=main&after=0") as reader,
    ):
        await said(first)
        first.transport.abort()  # its machine was switched off, and on again
        async with speaking(running, "main") as second:
            await said(second)
            expected = ["talk-1 ready", "talk-1 1", "talk-2 ready", "talk-2 1"]
            assert texts([await next_event(reader) for _ in expected]) == expected
            async with speaking(running, "main") as third:
                events = await events_until(second, "end")
                assert [event.code for event in events if isinstance(event, Error)] == ["room_taken"]
                assert await closing(second) == (1008, "room_taken")
                assert await said(third) == ["talk-3 1"]


@pytest.mark.parametrize("code", [1000, 1006])
async def test_what_was_said_is_read_to_its_end_though_who_said_it_is_gone(code: int) -> None:
    async with stages(resume_s=0.1) as (running, backend), running.socket("/v1/captions?room=main") as reader:
        async with speaking(running, "main") as speaker:
            await said(speaker)
            (stream,) = backend.streams
            stream.takes.clear()
            await speaker.send(SENTENCE)
            await until(lambda: stream.ring.head == 2 * SAMPLES_A_FINAL)
            if code == 1006:
                speaker.transport.abort()
            else:
                await speaker.close(code)
        await until(lambda: stream.complete)
        if code == 1006:  # a client that comes back sends the rest as a new stream
            async with running.resuming(2, "talk-1") as back:
                error = (await events_until(back, "error"))[-1]
                assert isinstance(error, Error)
                assert (error.code, error.fatal, error.heard_samples) == ("stopping", False, 2 * SAMPLES_A_FINAL)
        stream.takes.set()
        assert texts(await events_until(reader, "final"))[-1] == "talk-1 1"
        assert texts(await events_until(reader, "final")) == ["talk-1 2"]
        await until(lambda: stream.log.closed)


async def test_readers_are_told_where_to_go_on_when_the_daemon_stops() -> None:
    async with stages() as (running, _), running.socket("/v1/captions?room=later") as early:
        async with running.socket("/v1/captions?room=main") as reader, speaking(running, "main") as speaker:
            await said(speaker, 2)
            await events_until(reader, "final")
            await within(running.server.stop(timeout_s=5.0))
            assert await closing(reader) == (
                1001,
                "the daemon stops: reconnect with ?after=3&session=talk-1",
            )
        assert (await closing(early))[0] == 1001


async def test_a_token_speaks_in_the_room_of_its_name_only(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    main = added(path, "main", scopes=("stream",))
    reader = added(path, "audience", scopes=("read",))
    async with stages(token_file=str(path)) as (running, _):
        async with speaking(running, "side", main) as client:
            error = await next_event(client)
            assert isinstance(error, Error)
            assert error.code == "config"
            assert "room is side, which is not the name of this token: expected main" in error.message
            assert (await closing(client))[0] == 1008
        async with (
            speaking(running, "main", main) as client,
            running.socket("/v1/captions?room=main", additional_headers=bearer(reader)) as listening,
        ):
            await said(client)
            assert texts(await events_until(listening, "final"))[-1] == "talk-1 1"
        assert (await refusal(running, "/v1/captions?room=main", **bearer(main)))[0] == 403
    # The token of the settings is everybody's.
    async with stages(token=TOKEN) as (running, _), speaking(running, "anywhere", TOKEN) as client:
        assert await said(client) == ["talk-1 1"]


async def test_an_address_leads_to_the_page_of_a_room_and_is_drawn() -> None:
    async with stages() as (running, _):
        answer = await running.ask("GET /room/main-hall.2")
        assert (answer.status_code, answer.headers["location"]) == (307, "../?room=main-hall.2")
        assert (
            (await running.ask("GET /room/-x")).json()["error"].startswith("'-x' is not the name of a room: expected")
        )
        drawn = [await running.ask("POST /v1/qr", n * b"x") for n in (1, 300, 301, 0)]
        assert [answer.status_code for answer in drawn] == [200, 200, 413, 400]
        assert drawn[0].headers["content-type"] == "image/svg+xml"
        # Versions 1 and 13 of the standard, with a quiet zone of 4 modules on each side.
        assert [ElementTree.fromstring(each.content).get("viewBox") for each in drawn[:2]] == ["0 0 29 29", "0 0 77 77"]


@pytest.mark.parametrize("room", ["a%20room", "-x", "x" * 65, "../x", "%0Ax"])
async def test_what_is_no_name_of_a_room_is_refused(room: str) -> None:
    async with stages() as (running, _):
        status, message = await refusal(running, f"/v1/captions?room={room}")
        assert status == 400
        assert message.startswith("room is ")
        assert "\n" not in message
