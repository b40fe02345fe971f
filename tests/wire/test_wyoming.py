import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from wyoming.asr import Transcript
from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.ping import Ping, Pong

from streamer.errors import ConfigError
from streamer.server import wyoming
from tests.daemon import free_port
from tests.waiting import until
from tests.wire.support import Running, serving, within


@contextlib.asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[tuple[Running, int]]:  # noqa: ANN401 - passed on
    port = free_port()
    async with serving(wyoming_port=port, **settings) as running:
        await running.server.serve_model("nano.en", ["en"])
        yield running, port


async def listening_at(port: int, host: str) -> None:
    async with serving(wyoming_port=port, wyoming_host=host):
        pass


async def read(client: AsyncTcpClient) -> Event | None:
    return await within(client.read_event())


async def read_transcript(client: AsyncTcpClient) -> str:
    while True:
        event = await read(client)
        assert event is not None
        if Transcript.is_type(event.type):
            return Transcript.from_event(event).text


async def events(reader: asyncio.StreamReader) -> AsyncIterator[Event]:
    while (event := await within(async_read_event(reader))) is not None:
        yield event


def chunk(n_bytes: int) -> Event:
    return AudioChunk(16_000, 2, 1, bytes(n_bytes)).event()


async def test_a_request_is_transcribed_and_the_next_one_too() -> None:
    async with listening() as (running, port), AsyncTcpClient("127.0.0.1", port) as client:
        for n_bytes in (2048, 64):
            await client.write_event(chunk(n_bytes))
            await client.write_event(AudioStop().event())
            assert await read_transcript(client) == f"{n_bytes} bytes"
        assert len(running.streams.opened) == 2
        for stream in running.streams.opened:
            await within(stream.abandoned.wait())


async def test_a_client_that_vanishes_is_given_up() -> None:
    async with listening() as (running, port):
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(chunk(2048))
            stream = await running.streams.first()
            await within(stream.written.wait())
        await within(stream.abandoned.wait())
        await running.value("streamer_streams", {}, 0.0)


async def test_a_client_that_shuts_down_its_sending_half_gets_its_transcripts() -> None:
    async with listening() as (running, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for n_bytes in (2048, 64):
            for event in (chunk(n_bytes), AudioStop().event()):
                await async_write_event(event, writer)
        writer.write_eof()
        received = [event async for event in events(reader)]
        assert [event.data["text"] for event in received if Transcript.is_type(event.type)] == [
            "2048 bytes",
            "64 bytes",
        ]
        writer.close()
        assert len(running.streams.opened) == 2
        await until(lambda: not running.server.n_connections)


@pytest.mark.parametrize("complete", [True, False])
async def test_nothing_is_left_of_a_client_that_is_gone(complete: bool) -> None:
    async with listening() as (running, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await async_write_event(chunk(2048), writer)
        if complete:
            await async_write_event(AudioStop().event(), writer)
            writer.close()
        else:
            writer.write_eof()
        await within((await running.streams.first()).abandoned.wait())
        await until(lambda: not running.server.n_connections)
        await running.value("streamer_streams", {}, 0.0)
        writer.close()


async def test_who_is_one_too_many_is_told_so_and_has_room_later() -> None:
    async with listening(max_connections_per_address=1) as (running, port):
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Ping("a").event())
            assert await read(client) is not None
            async with AsyncTcpClient("127.0.0.1", port) as other:
                event = await read(other)
                assert event is not None
                assert (event.type, event.data["code"]) == ("error", "connections_per_address")
                assert await read(other) is None, "the connection is closed"
        await running.value("streamer_refusals_total", {"reason": "connections_per_address"}, 1.0)
        await until(lambda: not running.server.n_connections)
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Ping("b").event())
            event = await read(client)
            assert event is not None
            assert Pong.is_type(event.type)


@pytest.mark.parametrize("setting", ["first_message_s", "idle_s"])
async def test_a_silent_client_is_told_why_its_connection_is_closed(setting: str) -> None:
    async with listening(**{setting: 0.05}) as (_, port), AsyncTcpClient("127.0.0.1", port) as client:
        if setting == "idle_s":
            await client.write_event(Ping("a").event())
            assert Pong.is_type((await read(client) or Event("")).type)
        error = await read(client)
        assert error is not None
        assert error.data["code"] == "idle"
        assert setting in error.data["text"]
        assert await read(client) is None


async def test_the_last_words_reach_who_goes_on_sending() -> None:
    async with listening() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(2**20))
        assert b'"error"' in await within(reader.readline())
        assert await within(reader.read()) == b""
        writer.close()


async def test_a_stop_brings_the_transcript_of_what_was_said() -> None:
    async with listening() as (running, port), AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(chunk(2048))
        await within((await running.streams.first()).written.wait())
        stopping = asyncio.create_task(running.server.stop())
        assert await read_transcript(client) == "2048 bytes"
        while await read(client) is not None:
            pass
        await client.disconnect()
        await within(stopping)


async def test_a_port_or_an_address_that_cannot_be_had_is_told_by_its_setting() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"in use \(server\.wyoming_port\)"),
    ):
        await listening_at(taken.getsockname()[1], "127.0.0.1")
    for host in ("", "no such host"):
        with pytest.raises(ConfigError, match=r"server\.wyoming_host"):
            await listening_at(free_port(), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_it_is_announced_where_others_reach_it_and_they_are_warned_of(
    host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    announced: list[tuple[str, str, int]] = []
    withdrawn = asyncio.Event()

    async def announce(kind: str, host: str, port: int) -> None:
        announced.append((kind, host, port))
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    monkeypatch.setattr(wyoming, "announce", announce)
    caplog.set_level(logging.WARNING)
    async with listening(wyoming_host=host) as (_, port):
        await asyncio.sleep(0)
        assert announced == ([("_wyoming._tcp.local.", host, port)] if host == "0.0.0.0" else [])
    assert withdrawn.is_set() == bool(announced)
    assert [record.getMessage() for record in caplog.records if "no tokens" in record.getMessage()] == (
        [f"Wyoming has no tokens: every client that reaches {host} port {port} is served"] if announced else []
    )
