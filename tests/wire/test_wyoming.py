"""Wyoming's port: how connections begin and end."""

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
from tests.wire.harness import Running, serving, within

CHUNK = AudioChunk(16_000, 2, 1, bytes(2048)).event()
STOP = AudioStop().event()


@contextlib.asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[tuple[Running, int]]:  # noqa: ANN401 - passed on
    port = free_port()
    async with serving(wyoming_port=port, **settings) as running:
        await running.server.serve_model("nano.en", ["en"])
        yield running, port


async def read(client: AsyncTcpClient) -> Event:
    """Return the next event; of type "" if the connection is closed."""
    event: Event | None = await within(client.read_event())
    return event or Event("")


async def test_a_client_that_shuts_down_its_sending_half_gets_its_transcripts() -> None:
    async with listening() as (running, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for sent in (CHUNK, STOP, CHUNK, STOP):
            await async_write_event(sent, writer)
        writer.write_eof()
        texts = []
        while (event := await within(async_read_event(reader))) is not None:
            texts += [event.data["text"]] if Transcript.is_type(event.type) else []
        assert texts == ["2048 bytes", "2048 bytes"]
        writer.close()
        await until(lambda: not running.server.n_connections)
        for stream in running.streams.opened:
            await within(stream.abandoned.wait())


@pytest.mark.parametrize("leaves", ["aborts", "closes with a transcript to come", "says no more"])
async def test_nothing_is_left_of_a_client_that_is_gone(leaves: str) -> None:
    async with listening() as (running, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await async_write_event(CHUNK, writer)
        stream = await running.streams.first()
        await within(stream.written.wait())
        if leaves == "aborts":
            writer.transport.abort()
        elif leaves == "says no more":
            writer.write_eof()
        else:
            await async_write_event(STOP, writer)
            writer.close()
        await within(stream.abandoned.wait())
        await until(lambda: not running.server.n_connections)
        await running.value("streamer_streams", {}, 0.0)
        writer.close()


async def test_a_client_that_is_one_too_many_is_refused_and_has_room_later() -> None:
    async with listening(max_connections_per_address=1) as (running, port):
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Ping("a").event())
            assert Pong.is_type((await read(client)).type)
            async with AsyncTcpClient("127.0.0.1", port) as other:
                event = await read(other)
                assert (event.type, event.data["code"]) == ("error", "connections_per_address")
                assert (await read(other)).type == ""
        await running.value("streamer_refusals_total", {"reason": "connections_per_address"}, 1.0)
        await until(lambda: not running.server.n_connections)
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Ping("b").event())
            assert Pong.is_type((await read(client)).type)


@pytest.mark.parametrize("setting", ["first_message_s", "idle_s"])
async def test_a_silent_client_is_told_why_its_connection_is_closed(setting: str) -> None:
    async with listening(**{setting: 0.05}) as (_, port), AsyncTcpClient("127.0.0.1", port) as client:
        if setting == "idle_s":
            await client.write_event(Ping("a").event())
            assert Pong.is_type((await read(client)).type)
        error = await read(client)
        assert (error.data["code"], setting in error.data["text"]) == ("idle", True)
        assert (await read(client)).type == ""


async def test_the_last_words_reach_a_client_that_goes_on_sending() -> None:
    async with listening() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(2**20))
        assert b'"error"' in await within(reader.readline())
        assert await within(reader.read()) == b""
        writer.close()


async def test_a_stop_brings_the_transcript_of_what_was_said() -> None:
    async with listening() as (running, port), AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(CHUNK)
        await within((await running.streams.first()).written.wait())
        stopping = asyncio.create_task(running.server.stop())
        events = []
        while (event := await read(client)).type:
            events.append(event)
        assert [event.data["text"] for event in events if Transcript.is_type(event.type)] == ["2048 bytes"]
        await client.disconnect()
        await within(stopping)


@pytest.mark.parametrize("host", ["127.0.0.1", "", "no such host"])
async def test_a_port_or_an_address_that_cannot_be_had_is_named_by_its_setting(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError) as caught:
        async with serving(wyoming_port=taken.getsockname()[1], wyoming_host=host):
            pass
    assert ("server.wyoming_port" if host == "127.0.0.1" else "server.wyoming_host") in str(caught.value)


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_a_port_that_others_reach_is_announced_and_warned_of(
    host: str, is_open: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        assert announced == ([("_wyoming._tcp.local.", host, port)] if is_open else [])
    assert withdrawn.is_set() == is_open
    assert [record.name for record in caplog.records if str(port) in record.getMessage()] == (
        ["streamer.server.wyoming"] if is_open else []
    )
