"""Which model `model.name: auto` becomes."""

import logging
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.findings import Finding
from streamer.settings.table import ModelSettings, Settings, StreamSettings
from streamer.setup import auto, fit
from streamer.setup.fit import Speed
from streamer.whisper import cache as measurements
from streamer.whisper.hub import cache
from tests.findings import OK, WARNING, expect
from tests.unit.whisper.support import NANO

FAST = Speed(flops=5e12, step_bytes=1e11, block_bytes=1e11)
PLENTY = 64 * 10**9


def slower(factor: float) -> Speed:
    return Speed(**{name: value / factor for name, value in asdict(FAST).items()})


class World:
    """What is on this machine, and what sources have."""

    def __init__(self) -> None:
        self.here: set[str] = set()
        self.there: set[str] = set()
        self.error: StreamerError = PeerError("the Hub cannot be reached")
        self.fetched: list[str] = []
        self.n_measured = 0
        self.speed = FAST
        self.busy_percent = 0.0
        self.free_bytes = PLENTY

    def fetch(self, name: str) -> Path:
        self.fetched.append(name)
        if name not in self.there:
            raise self.error
        return Path(name)

    def measured(self) -> Speed:
        self.n_measured += 1
        return self.speed


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(auto, "fetch", world.fetch)
    monkeypatch.setattr(cache, "cached", lambda name: Path(name) if name in world.here else None)
    monkeypatch.setattr(cache, "adopted", lambda name: None)
    monkeypatch.setattr(Speed, "measured", world.measured)
    monkeypatch.setattr(psutil, "cpu_percent", lambda: world.busy_percent)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=world.free_bytes))
    return world


def chosen(tmp_path: Path, *, live: bool = True, language: str = "auto", task: str = "transcribe") -> str:
    model = ModelSettings(name="auto", cache_dir=str(tmp_path / "compiled"))
    settings = Settings(model=model).having({"decoding.language": language, "decoding.task": task})
    found = auto.choose_model(settings, live=live)
    assert msgspec.structs.replace(found, model=model) == settings
    return found.model.name


def test_a_model_that_is_named_is_left_alone(world: World) -> None:
    settings = Settings(model=ModelSettings(name="nano.en"))
    assert auto.choose_model(settings, live=True) is settings
    assert world.n_measured == 0


def test_a_model_without_room_in_memory_is_not_chosen() -> None:
    assert auto.keeping_pace(["small.en", "base", "tiny.en"], FAST, 10**9 // 2, StreamSettings()) == ["tiny.en"]


ALL = ("small.en", "base", "tiny.en")
FILES = {"live": False}


@pytest.mark.parametrize(
    ("here", "there", "factor", "options", "name", "fetched"),
    [
        # The best that keeps pace is fetched.
        ((), ALL, 1, {}, "small.en", ["small.en"]),
        ((), ALL, 10, {}, "base", ["base"]),
        ((), ALL, 100, {}, "tiny.en", ["tiny.en"]),
        ((), ("base",), 1, {}, "base", ["small.en", "base"]),
        # A model that is here and keeps pace is used, even if a better one could be fetched.
        (("tiny.en",), ALL, 1, {}, "tiny.en", []),
        (("tiny.en", "base"), ALL, 1, {}, "base", []),
        (("small.en",), ALL, 10, {}, "base", ["base"]),
        # Files need no pace.
        (("tiny.en",), ALL, 1, FILES, "tiny.en", []),
        (("small.en",), ALL, 10, FILES, "small.en", []),
        ((), ALL, 1000, FILES, "base", ["base"]),
        # Only base knows other languages, and translates.
        (("small.en", "tiny.en"), ALL, 1, {"language": "de"}, "base", ["base"]),
        (("small.en", "tiny.en"), ALL, 1, {"task": "translate"}, "base", ["base"]),
        (("small.en", "tiny.en"), ALL, 1, {"language": "en", "task": "both"}, "base", ["base"]),
    ],
)
def test_which_model_is_used(
    world: World,
    tmp_path: Path,
    here: tuple[str, ...],
    there: tuple[str, ...],
    factor: float,
    options: dict[str, Any],
    name: str,
    fetched: list[str],
) -> None:
    world.here, world.there, world.speed = {*here}, {*there}, slower(factor)
    assert chosen(tmp_path, **options) == name
    assert world.fetched == fetched
    assert world.n_measured == (0 if options else 1)


def test_a_model_that_is_used_is_logged(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamer")
    world.here = {"base"}
    assert chosen(tmp_path) == "base"
    assert caplog.messages == ["model.name is auto: using base, which is on this machine"]


def test_what_another_program_fetched_is_used(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "adopted", lambda name: Path(name) if name == "base" else None)
    assert (chosen(tmp_path), world.fetched) == ("base", [])


def test_the_speed_is_measured_once(world: World, tmp_path: Path) -> None:
    world.there = {"small.en"}
    for _ in range(3):
        assert chosen(tmp_path) == "small.en"
    assert world.n_measured == 1
    (kept,) = (tmp_path / "compiled").glob("SPEED-*/speed.json")
    for damaged in ("{", "[]", "{}", '{"flops": "x"}', kept.read_text(encoding="utf-8").replace("1", "-1")):
        kept.write_text(damaged, encoding="utf-8")
        assert chosen(tmp_path) == "small.en"
    assert world.n_measured == 6


def test_the_speed_of_a_busy_machine_is_measured_again(world: World, tmp_path: Path) -> None:
    world.there, world.speed, world.busy_percent = {"tiny.en", "base"}, slower(100), 300.0
    assert chosen(tmp_path) == "tiny.en"
    world.speed, world.busy_percent = slower(10), 0.0
    assert chosen(tmp_path) == chosen(tmp_path) == "base"
    assert world.n_measured == 2


@pytest.mark.parametrize(
    "error", [PeerError("no network"), ModelError("another digest"), StreamerError("disk is full")]
)
def test_if_nothing_can_be_fetched_it_is_nano_en_and_one_line_says_why(
    world: World, tmp_path: Path, error: StreamerError, caplog: pytest.LogCaptureFixture
) -> None:
    world.error = error
    assert chosen(tmp_path, live=False) == "nano.en"
    assert caplog.messages == [f"{error}: using nano.en"]


def test_nano_en_does_not_stand_in_for_another_language(world: World, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="the Hub cannot be reached"):
        chosen(tmp_path, language="de")


def test_a_cache_that_cannot_be_made_measures_each_time(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "open_cache", lambda setting: None)
    world.there = {"small.en"}
    assert chosen(tmp_path) == chosen(tmp_path) == "small.en"
    assert world.n_measured == 2


# About that of two cores of a server: a layer of small takes 0.03 s in 5 s of audio.
SERVER = Speed(flops=150e9, step_bytes=11e9, block_bytes=2.5e9)


def checked(**model: object) -> dict[str, Finding]:
    return auto.check_speed(Settings(model=ModelSettings(**{"name": "nano.en", **model})))  # type: ignore[arg-type]


def test_the_doctor_says_which_models_fit_and_keep_pace(world: World) -> None:
    def delays(**model: object) -> dict[str, float]:
        found = checked(**model)["Speed"]
        expect(found, OK, "estimated for the CPU")
        return {name: float(s) for name, s in re.findall(r"(\S+): ([\d.]+) s behind", found.found)}

    world.speed = SERVER
    whole, short = delays(windows_s=(30,)), delays()
    assert [*whole] == ["tiny.en", "base.en"]
    assert [*short] == ["tiny.en", "base.en", "small.en"]
    assert whole["tiny.en"] < whole["base.en"]
    assert all(short[name] < whole[name] for name in whole)
    assert "turbo is too slow" in checked()["Speed"].found
    assert "other programs" not in checked()["Speed"].found
    expect(checked(name="turbo")["Speed"], WARNING, "turbo is too slow", "choose a smaller model")
    world.free_bytes, world.busy_percent = 500_000_000, 87.3
    expect(checked(name="base")["Speed"], WARNING, "base.en does not fit (about", "choose a smaller model")
    expect(checked()["Speed"], OK, "measured while other programs took 87 %")


def test_the_doctor_checks_the_model_that_auto_stands_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.speed = slower(10)
    expect(checked(name="auto")["Model"], WARNING, "'base' is not here", "streamer models pull base")
    monkeypatch.setattr(cache, "cached", lambda name: NANO if name == "tiny.en" else None)
    expect(checked(name="auto")["Model"], OK, "`streamer models verify tiny.en`")


def test_the_processor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_MEASURED", fit._size(64, (1, 1), 64))
    assert min(asdict(Speed.measured()).values()) > 0
