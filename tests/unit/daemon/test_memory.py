"""A client that is gone leaves nothing behind, also where no garbage is collected: a session is some megabytes."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection

from streamer.after.postprocessing import PostProcessing
from streamer.daemon.clients import ClientStreams
from streamer.daemon.local import LocalBackend, LocalStream
from streamer.engine.engine import Engine
from streamer.settings.table import CorrectionSettings, ServerSettings, Settings
from tests.unit.daemon.test_clients import MODEL
from tests.unit.engine.simulation import Machine
from tests.waiting import until
from tests.wire.harness import Running, events_until, next_event, serving


@contextlib.contextmanager
def no_garbage_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def working(machine: Machine) -> Iterator[None]:
    machine.engine.start()
    try:
        yield
    finally:
        machine.engine.stop()


async def talk(running: Running) -> ClientConnection:
    """Open a stream, and send some audio and commands."""
    client = await running.socket("/v1/stream")
    await client.send('{"type":"start"}')
    await next_event(client)
    for _ in range(3):
        await client.send(bytes(64_000))
        await client.send('{"type":"flush"}')
    return client


@pytest.mark.parametrize("hear", [True, False], ids=["heard", "not heard yet"])
@pytest.mark.parametrize("leave", ["cut", "close", "finish"])
async def test_a_session_is_freed_when_its_client_is_gone(leave: str, hear: bool, tmp_path: Path) -> None:
    machine = Machine()
    backend = LocalBackend(Settings())
    streams = ClientStreams(ServerSettings(resume_s=0.01), backend)
    engine = cast("Engine[Any]", machine.engine)
    glossary = tmp_path / "glossary"
    glossary.write_text("- Streamer\n", encoding="utf-8")
    corrected = Settings(correction=CorrectionSettings(model="", glossary=str(glossary)))
    backend.serve_with(engine, MODEL, PostProcessing(corrected, MODEL, engine))
    at_work = working(machine) if hear or leave == "finish" else contextlib.nullcontext()
    with no_garbage_collected(), at_work:
        async with serving(streams=streams) as running:
            client = await talk(running)
            (stream,) = streams._streams.values()
            live = cast(LocalStream, stream)._live
            left = [weakref.ref(part) for part in (stream, live, live.ring, live.mel, stream.log)]
            del stream, live
            match leave:
                case "cut":
                    client.transport.abort()
                case "close":
                    await client.close()
                case _:
                    await client.send('{"type":"finish"}')
                    await events_until(client, "end")
                    await client.close()
            await until(lambda: all(part() is None for part in left))
