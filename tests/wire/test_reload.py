"""Every setting that a reload is to change takes effect without a restart."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from streamer.app import RELOADABLE, Daemon
from streamer.errors import BusyError, UnknownSessionError
from streamer.log import ACCESS_LOGGER
from streamer.protocols.native import StreamStart
from streamer.settings.registry import SETTINGS
from streamer.settings.table import ServerSettings, Settings
from tests.waiting import until
from tests.wire.harness import NotedRecordings, Running, added, closing, pass_time, serving

Look = Callable[[Running, Daemon], Awaitable[object]]

RECORDING = "POST /whisper/nano.en"


def asked(request: str = "GET /v1/input", n_bytes: int = 0, /, **headers: str) -> Look:
    """Ask over HTTP: what counts is the status."""

    async def look(running: Running, daemon: Daemon) -> int:
        return (await running.ask(request, bytes(n_bytes), **headers)).status_code

    return look


def beside_a_subscriber(look: Look) -> Look:
    async def looking(running: Running, daemon: Daemon) -> object:
        async with running.captions():
            return await look(running, daemon)

    return looking


def silent(path: str, seconds: float) -> Look:
    """Say nothing for a time: what counts is the close code."""

    async def look(running: Running, daemon: Daemon) -> int:
        async with running.socket(path) as client:
            await until(lambda: running.server._context.sockets != {})
            pass_time(seconds)
            return (await closing(client))[0]

    return look


async def begun(running: Running, daemon: Daemon) -> str:
    _, writer = await running.raw()
    with contextlib.closing(writer):
        await until(lambda: running.server.n_connections == 1)
        pass_time(7.1)
        await running.value("streamer_refusals_total", {"reason": "header_timeout"}, 1)
        return "closed"


async def opening(running: Running, daemon: Daemon) -> bool:
    with pytest.raises(BusyError) as caught:
        await daemon._streams.open(StreamStart())
    return "server.max_streams" in str(caught.value)


async def resuming(running: Running, daemon: Daemon) -> bool:
    with pytest.raises(UnknownSessionError) as caught:
        await daemon._streams.resume("unknown")
    return "7 s" in str(caught.value)


def level(name: str) -> Look:
    async def looking(running: Running, daemon: Daemon) -> str:
        return logging.getLevelName(logging.getLogger(name).level)

    return looking


async def subscribed(running: Running, daemon: Daemon) -> int:
    async with running.socket("/v1/captions") as client:
        return (await closing(client))[0]


# Setting -> what it becomes, what then shows it, and what that is.
CHANGES: dict[str, tuple[object, Look, object]] = {
    "server.token": ("x" * 16, asked(), 401),
    "server.token_file": ("tokens.json", asked(), 401),
    "server.origins": (("https://a.example",), asked(Origin="https://a.example"), 200),
    "server.proxies": (("127.0.0.1",), asked(X_Forwarded_Host="b.example"), 403),
    "server.max_streams": (0, opening, True),
    "server.max_subscribers": (1, beside_a_subscriber(subscribed), 1013),
    "server.resume_s": (7.0, resuming, True),
    "server.max_connections": (1, beside_a_subscriber(asked()), 503),
    "server.max_connections_per_address": (1, beside_a_subscriber(asked()), 503),
    "server.max_recordings": (0, asked(RECORDING, 100), 429),
    "server.max_upload_mb": (1.0, asked(RECORDING, 1_500_000), 413),
    "server.header_timeout_s": (7.0, begun, "closed"),
    "server.first_message_s": (7.0, silent("/v1/stream", 7.1), 1008),
    "server.idle_s": (7.0, silent("/v1/realtime", 7.1), 1008),
    "log.level": ("debug", level("streamer"), "DEBUG"),
    "log.access": (True, level(ACCESS_LOGGER), "INFO"),
}


@pytest.mark.parametrize("name", RELOADABLE)
async def test_a_setting_that_can_be_changed_takes_effect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    added(Path("tokens.json"), "someone")
    value, look, shown = CHANGES[name]
    before = Settings(server=ServerSettings(port=0))
    section, _, key = name.partition(".")
    changed = msgspec.structs.replace(getattr(before, section), **{key: value})
    after = msgspec.structs.replace(before, **{section: changed})
    daemon = Daemon(before, captions=False, read_settings=lambda: after)
    async with serving(recordings=NotedRecordings()) as running:
        daemon._server = running.server
        daemon._reload()
        assert await look(running, daemon) == shown


def test_all_limits_of_the_server_can_be_changed() -> None:
    assert {name for name in SETTINGS if name.startswith("server.max_")} <= set(RELOADABLE)
