"""A microphone that pauses while the battery is low."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from streamer.daemon import own_input
from streamer.engine.live_session import LiveSession
from tests.waiting import until


class Live:
    """A session that only notes whether it is paused."""

    paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


@asynccontextmanager
async def saved(monkeypatch: pytest.MonkeyPatch, battery: SimpleNamespace | None) -> AsyncIterator[Live]:
    """Save a battery below 20 %; the block begins when it has been looked at."""
    looks = 0

    def look() -> Any:  # noqa: ANN401 - psutil's has no public type
        nonlocal looks
        looks += 1
        return battery

    monkeypatch.setattr(psutil, "sensors_battery", look)
    monkeypatch.setattr(own_input, "BATTERY_CHECK_S", 0.001)
    live = Live()
    task = asyncio.create_task(own_input.save_battery(cast(LiveSession, live), 20))
    await until(lambda: looks > 1)
    yield live
    begin = looks
    await until(lambda: looks > begin + 1)  # it goes on
    task.cancel()


def battery(percent: float, plugged: bool | None = False) -> SimpleNamespace:
    return SimpleNamespace(percent=percent, power_plugged=plugged)


@pytest.mark.parametrize("change", [{"power_plugged": True}, {"percent": 20}])
async def test_it_pauses_below_the_limit_and_goes_on_above_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    caplog.set_level("INFO")
    present = battery(19)
    async with saved(monkeypatch, present) as live:
        assert live.paused
        vars(present).update(change)
        await until(lambda: not live.paused)
    assert len(caplog.messages) == 2, "why it pauses, and why it goes on"


@pytest.mark.parametrize("present", [None, battery(20), battery(5, plugged=True), battery(5, plugged=None)])
async def test_it_does_not_pause_otherwise(monkeypatch: pytest.MonkeyPatch, present: SimpleNamespace | None) -> None:
    async with saved(monkeypatch, present) as live:
        assert not live.paused


async def test_what_a_user_does_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    present = battery(5)
    async with saved(monkeypatch, present) as live:
        live.resume()
        await asyncio.sleep(0)
    assert not live.paused, "paused again though the user went on"
    assert own_input.charge_left() == 5
    present.percent = 100
    async with saved(monkeypatch, present) as live:
        live.pause()
    assert live.paused, "went on though the user paused"


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux shows of batteries")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"status": "Discharging", "capacity": "7"}, 7.0),
        ({"status": "Charging", "capacity": "7"}, None),
        ({"status": "Discharging", "capacity": "much"}, None),
        ({"status": "Discharging"}, None),
        ({}, None),
    ],
)
def test_a_battery_is_read_from_the_system(
    files: dict[str, str], expected: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / "BAT0").mkdir(exist_ok=True)
        (tmp_path / "BAT0" / name).write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr("psutil._pslinux.POWER_SUPPLY_PATH", str(tmp_path))
    assert own_input.charge_left() == expected
