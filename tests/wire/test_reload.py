"""Every setting that a reload is to change takes effect without a restart."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from streamer.app import RELOADABLE, Daemon
from streamer.errors import BusyError, UnknownSessionError
from streamer.log import ACCESS_LOGGER
from streamer.protocols.native import StreamStart
from streamer.settings.registry import SETTINGS
from streamer.settings.table import ServerSettings, Settings
from tests.wire.support import Running, added, next_event, serving, within
from tests.wire.test_rest import NotedRecordings

Look = Callable[[Running, Daemon], Awaitable[str]]

RECORDINGS = "/whisper/nano.en"


async def ask(running: Running, *, path: str = "/v1/input", content: bytes | None = None, **headers: str) -> str:
    """Return status and body of the answer to a request, which brings a recording if it has content."""
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as client:
        method = "GET" if content is None else "POST"
        response = await client.request(method, path, content=content, headers=headers)
    return f"{response.status_code} {response.text}"


async def refused(running: Running, path: str) -> str:
    """Return what a WebSocket gets that sends nothing, and why it is closed."""
    texts = []
    async with running.socket(path) as client:
        with contextlib.suppress(ConnectionClosed):
            while True:
                texts.append(str(await within(client.recv())))
    return " ".join((*texts, client.close_reason or ""))


def asked(**arguments: Any) -> Look:  # noqa: ANN401 - passed on
    return lambda running, daemon: ask(running, **arguments)


def closed(path: str) -> Look:
    return lambda running, daemon: refused(running, path)


def beside_a_subscriber(look: Look) -> Look:
    async def looking(running: Running, daemon: Daemon) -> str:
        async with running.socket("/v1/captions") as subscriber:
            await next_event(subscriber)
            return await look(running, daemon)

    return looking


async def beside_a_recording(running: Running, daemon: Daemon) -> str:
    first = asyncio.create_task(ask(running, path=RECORDINGS, content=b"audio"))
    recordings = running.server._context.services.recordings
    assert isinstance(recordings, NotedRecordings)
    await within(recordings.arrived.wait())
    try:
        return await ask(running, path=RECORDINGS, content=b"audio")
    finally:
        first.cancel()


async def silent(running: Running, daemon: Daemon) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    with contextlib.closing(writer):
        return (await within(reader.read())).decode()


async def opening(running: Running, daemon: Daemon) -> str:
    with pytest.raises(BusyError) as caught:
        await daemon._streams.open(StreamStart())
    return str(caught.value)


async def resuming(running: Running, daemon: Daemon) -> str:
    with pytest.raises(UnknownSessionError) as caught:
        await daemon._streams.resume("unknown")
    return str(caught.value)


def level(name: str) -> Look:
    async def looking(running: Running, daemon: Daemon) -> str:
        return logging.getLevelName(logging.getLogger(name).level)

    return looking


# Setting -> what it becomes, what then shows it, and what that has in it.
CHANGES: dict[str, tuple[object, Look, str]] = {
    "server.token": ("x" * 16, asked(), "401"),
    "server.token_file": ("tokens.json", asked(), "401"),
    "server.origins": (("https://a.example",), asked(Origin="https://a.example"), "200"),
    "server.proxies": (("127.0.0.1",), asked(**{"X-Forwarded-Host": "b.example"}), "403"),
    "server.max_streams": (0, opening, "server.max_streams"),
    "server.max_subscribers": (1, beside_a_subscriber(closed("/v1/captions")), "server.max_subscribers"),
    "server.resume_s": (7.0, resuming, "7 s"),
    "server.max_connections": (1, beside_a_subscriber(asked()), "(server.max_connections)"),
    "server.max_connections_per_address": (1, beside_a_subscriber(asked()), "server.max_connections_per_address"),
    "server.max_recordings": (1, beside_a_recording, "server.max_recordings"),
    "server.max_upload_mb": (1.0, asked(path=RECORDINGS, content=bytes(1_500_000)), "server.max_upload_mb"),
    "server.header_timeout_s": (0.1, silent, "after 0.1 s"),
    "server.first_message_s": (0.1, closed("/v1/stream"), "0.1 s (server.first_message_s)"),
    "server.idle_s": (1.0, closed("/v1/realtime"), "1 s (server.idle_s)"),
    "log.level": ("debug", level("streamer"), "DEBUG"),
    "log.access": (True, level(ACCESS_LOGGER), "INFO"),
}


@pytest.fixture
def _levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("streamer", ACCESS_LOGGER)]
    levels = [logger.level for logger in loggers]
    yield
    for logger, before in zip(loggers, levels, strict=True):
        logger.setLevel(before)


@contextlib.asynccontextmanager
async def reloaded(name: str, value: object) -> AsyncIterator[tuple[Running, Daemon]]:
    """Start a server, and let it read settings of which one is another."""
    recordings = NotedRecordings()
    recordings.items = [asyncio.Event()]
    before = Settings(server=ServerSettings(port=0))
    section, _, key = name.partition(".")
    after = msgspec.structs.replace(
        before, **{section: msgspec.structs.replace(getattr(before, section), **{key: value})}
    )
    daemon = Daemon(before, captions=False, read_settings=lambda: after)
    async with serving(recordings=recordings) as running:
        daemon._server = running.server
        daemon._reload()
        yield running, daemon


@pytest.mark.usefixtures("_levels")
@pytest.mark.parametrize("name", RELOADABLE)
async def test_a_setting_that_can_be_changed_takes_effect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    added(Path("tokens.json"), "someone")
    value, look, shown = CHANGES[name]
    async with reloaded(name, value) as (running, daemon):
        assert shown in await look(running, daemon)


def test_all_limits_of_the_server_can_be_changed() -> None:
    assert {name for name in SETTINGS if name.startswith("server.max_")} <= set(RELOADABLE)
