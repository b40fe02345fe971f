"""A nats-server beside this process."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from streamer.errors import ClusterError, MissingExtraError
from streamer.plugins.cluster import local
from streamer.plugins.cluster.local import local_nats, usual_port
from tests.daemon import free_port
from tests.plugins.cluster.support import bus_on


def children() -> list[str]:
    return [child.name() for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


async def test_a_server_with_jetstream_runs_while_in_the_context_and_its_port_is_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, port = children(), free_port()
    monkeypatch.setattr(local, "USUAL_PORT", port)
    for _ in range(2):  # workers come back to the address that they were given
        assert usual_port() == port
        async with local_nats(port) as url:
            assert (url, usual_port()) == (f"nats://127.0.0.1:{port}", 0)
            async with bus_on(url) as bus:
                await bus.jetstream.add_stream(name="KEPT", subjects=["kept"])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readline()
        writer.close()
        assert children() == before


async def test_a_server_that_does_not_start_or_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with local_nats() as url:
        with pytest.raises(ClusterError):
            async with local_nats(int(url.rpartition(":")[2])):
                pass
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError):
        async with local_nats():
            pass
