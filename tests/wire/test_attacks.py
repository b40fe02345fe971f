"""The quick ones of tools/attack.py against a server in this process: what it refuses, and that nothing stays."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from streamer.server import connection
from tests.waiting import until
from tests.wire.harness import events_until, serving, within
from tools.attacks import table
from tools.attacks.table import Attack
from tools.attacks.target import Target
from tools.attacks.wire import Wire

QUICK = [attack for attack in table.read().values() if attack.quick]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0.3)
    yield
    Wire.close_all()


@pytest.mark.parametrize("attack", QUICK, ids=[attack.name for attack in QUICK])
async def test_an_attack_is_refused_and_leaves_nothing_behind(attack: Attack, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(header_timeout_s=2.0, max_subscribers=50) as running:
        n_tasks = len(asyncio.all_tasks())
        with caplog.at_level(logging.WARNING):
            await asyncio.to_thread(attack.run, Target(running.port))
        Wire.close_all()

        async with running.socket("/v1/stream") as honest:
            await honest.send(bytes(320))
            await honest.send('{"type":"finish"}')
            *_, final, _ = await within(events_until(honest, "end"))
        assert final.type == "final"

        await until(lambda: not running.server.n_connections and len(asyncio.all_tasks()) <= n_tasks)
    assert [record.getMessage() for record in caplog.records] == []
