"""Which source the daemon's own input is, and how it pauses while the battery is low."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from streamer.audio.sources.application import Application
from streamer.audio.sources.microphone import Microphone
from streamer.audio.sources.mixed import Mixed
from streamer.audio.sources.system import SystemSound
from streamer.daemon import own_input
from streamer.daemon.own_input import Last, OwnInput, make_source
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.errors import AudioDeviceError, AudioFileError
from streamer.settings.table import CorrectionSettings, InputSettings, Settings
from streamer.whisper.model import WhisperModel
from tests.waiting import until


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("mic", Microphone, "microphone"),
        ("system", SystemSound, "system sound"),
        ("app:Notepad++", Application, "application 'Notepad++'"),
        ("app:\x1b[2J\n", Application, "application '[2J'"),
        ("mic+system", Mixed, "microphone and system sound"),
        ("mic+app:Zoom", Mixed, "microphone and application 'Zoom'"),
    ],
)
def test_an_input_by_its_name(text: str, kind: type, name: str) -> None:
    source = make_source(InputSettings(source=text))
    assert source is not None
    assert isinstance(source, kind)
    assert source.name == name


def test_no_input_and_a_file_that_is_missing() -> None:
    assert make_source(InputSettings(source="none")) is None
    with pytest.raises(AudioFileError):
        make_source(InputSettings(source="apples"))


async def test_an_application_that_cannot_be_captured_is_refused_before_the_model_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    settings = Settings(input=InputSettings(source="app:Zoom"))
    source = make_source(settings.input)
    assert source is not None
    with pytest.raises(AudioDeviceError):
        await OwnInput(settings, source, EventLog("session", 1)).check()


def test_an_input_has_ended_when_all_listeners_have_had_the_last_event(model: WhisperModel) -> None:
    log, told = EventLog("abc", 100), list[str]()
    own = SimpleNamespace(log=log, finished=lambda: told.append("finished"))
    followers = [Last(cast(OwnInput, own))]
    settings = Settings(correction=CorrectionSettings(model=""))
    live = open_session(settings, model, log, SessionSource(kind=AudioKind.RECORDED, followers=followers))
    for _ in range(2):
        log.subscribe(lambda event: told.append(event.type))
    live.end()
    live.listen(0.0)
    assert told == ["end", "end", "finished"]


class Live:
    """A session that only notes whether it is paused."""

    paused = False

    def do(self, command: str) -> None:
        self.paused = command == "pause"


def battery(percent: float, plugged: bool | None = False) -> SimpleNamespace:
    return SimpleNamespace(percent=percent, power_plugged=plugged)


@asynccontextmanager
async def saved(present: SimpleNamespace | None) -> AsyncIterator[Live]:
    """Save a battery below 20 %; the block begins when it has been looked at, and it is looked at behind it again."""
    looks = 0

    def look() -> Any:  # noqa: ANN401 - psutil's has no public type
        nonlocal looks
        looks += 1
        return present

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil, "sensors_battery", look)
        patch.setattr(own_input, "BATTERY_CHECK_S", 0.001)
        live = Live()
        task = asyncio.create_task(own_input.save_battery(cast(LiveSession, live), 20))
        await until(lambda: looks > 1)
        yield live
        begin = looks
        await until(lambda: looks > begin + 1)
        task.cancel()


@pytest.mark.parametrize("change", [{"power_plugged": True}, {"percent": 20}])
async def test_it_pauses_below_the_limit_and_goes_on_above_it(
    caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    caplog.set_level("INFO")
    present = battery(19)
    async with saved(present) as live:
        assert live.paused
        vars(present).update(change)
        await until(lambda: not live.paused)
    assert len(caplog.messages) == 2, "why it pauses, and why it goes on"


@pytest.mark.parametrize("present", [None, battery(20), battery(5, plugged=True), battery(5, plugged=None)])
async def test_it_does_not_pause_otherwise(present: SimpleNamespace | None) -> None:
    async with saved(present) as live:
        assert not live.paused


async def test_what_a_user_does_counts() -> None:
    async with saved(battery(5)) as live:
        live.do("resume")
    assert not live.paused, "paused again though the user went on"
    async with saved(battery(100)) as live:
        live.do("pause")
    assert live.paused, "went on though the user paused"


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux shows of batteries")
@pytest.mark.parametrize(
    ("shown", "expected"),
    [("Discharging 7", 7.0), ("Charging 7", None), ("Discharging much", None), ("Discharging", None), ("", None)],
)
def test_a_battery_is_read_from_the_system(
    shown: str, expected: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in zip(("status", "capacity"), shown.split(), strict=False):
        (tmp_path / "BAT0").mkdir(exist_ok=True)
        (tmp_path / "BAT0" / name).write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr("psutil._pslinux.POWER_SUPPLY_PATH", str(tmp_path))
    assert own_input.charge_left() == expected
