"""A model is loaded as the settings say; those beside the daemon's own are when a recording asks for them."""

import asyncio
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamer.errors import BusyError, ConfigError, ModelError, UnknownModelError
from streamer.settings.table import DecodingSettings, ModelSettings, Settings
from streamer.setup.loading import device_settings, load, load_chosen
from streamer.setup.models import Models, in_thread, unless_stopped
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.hub import cache
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE
from tests.waiting import WAIT_S

# What a model of 1,000 bytes is said to need, about.
ROOM = 3.1e8


class Memory:
    """What is free, and the names of the models that were loaded, by a stand-in for the loader."""

    def __init__(self) -> None:
        self.free = [1e12]
        self.loaded: list[str] = []

    def available(self) -> float:
        return self.free.pop(0) if len(self.free) > 1 else self.free[0]

    def load(self, name: str) -> Any:  # noqa: ANN401 - a model
        self.loaded.append(Path(name).name)
        return SimpleNamespace(name=Path(name).name, origin="", loaded=True)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def models(tmp_path: Path, memory: Memory, model: WhisperModel) -> Models:
    """The models that the settings name, the daemon's own among them."""
    names = [tmp_path / name for name in ("a", "b", "c", "elsewhere/a", "elsewhere/nano.en")]
    for path in names:
        path.mkdir(parents=True)
        (path / "model.bin").write_bytes(bytes(1000))
    models = Models(ModelSettings(name="nano.en", also=tuple(map(str, names))), memory.load, memory.available)
    models.serve_with(model)
    return models


def test_a_model_is_loaded_once_and_the_least_used_leaves(models: Models, memory: Memory) -> None:
    for name in ("nano.en", "a", "b", "a", "b", "a"):
        assert models.get(models.find(name)).name == name
    assert memory.loaded == ["a", "b"]
    memory.free = [ROOM / 2, ROOM]
    models.get(models.find("c"))
    assert {info.name for info in models.all() if info.loaded} == {"nano.en", "a", "c"}
    memory.free = [ROOM / 2]
    with pytest.raises(BusyError):
        models.get(models.find("b"))
    assert memory.loaded == ["a", "b", "c"]
    models.unload()
    assert {info.name for info in models.all() if info.loaded} == {"nano.en"}


def test_each_name_is_listed_once_and_stands_for_the_first(models: Models, tmp_path: Path) -> None:
    assert [info.name for info in models.all()] == ["nano.en", "a", "b", "c"]
    assert (models.find("nano.en").path, models.find("a").path) == (SAMPLE.parent, tmp_path / "a")
    assert models.find(str(tmp_path / "elsewhere" / "a")).path == tmp_path / "elsewhere" / "a"
    assert models.find("").shown == models.find("gpt-4o-transcribe").shown == "nano.en"


@pytest.mark.parametrize("name", ["d", "..", "/", "base.en", "openai/whisper-tiny", "x" * 10_000, "\0"])
def test_what_the_settings_do_not_name_cannot_be_asked_for(models: Models, memory: Memory, name: str) -> None:
    with pytest.raises(UnknownModelError):
        models.find(name)
    assert memory.loaded == []


def test_all_stands_for_every_model_on_this_machine(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(ModelSettings(name="auto", also=("all",)), memory.load)
    monkeypatch.setattr(cache, "cached", lambda name: SAMPLE.parent if name == "another-name" else None)
    assert "nano.en" in [info.name for info in models.all()]
    assert models.find("another-name").path == models.find("nano.en").path
    with pytest.raises(UnknownModelError):
        Models(ModelSettings(name="auto", also=()), memory.load).find("another-name")


def test_the_model_that_auto_became_is_the_daemons_own(memory: Memory, model: WhisperModel) -> None:
    models = Models(ModelSettings(name="auto", also=()), memory.load)
    assert models.all() == []
    models.serve_with(model)
    assert models.find("whisper-1").shown == "nano.en"
    assert [(info.name, info.loaded) for info in models.all()] == [("nano.en", True)]


def fail() -> None:
    raise ModelError("broken")


async def test_a_load_is_left_behind_when_the_program_stops() -> None:
    stop, go_on = asyncio.Event(), threading.Event()
    assert await unless_stopped(lambda: 7, stop) == 7
    with pytest.raises(ModelError):
        await unless_stopped(fail, stop)
    stop.set()
    assert await unless_stopped(go_on.wait, stop) is None
    go_on.set()
    assert isinstance(in_thread("x", fail).exception(WAIT_S), ModelError)


NANO = ModelSettings(name="nano.en", device="CPU")


def test_devices_and_properties_are_those_of_the_settings() -> None:
    given = {"device": "NPU", "encoder_device": "GPU", "decoder_device": "CPU", "npu_through_cpu": True}
    given |= {"properties": ("A=1",), "encoder_properties": ("B=2",), "decoder_properties": ("C=3",)}
    assert device_settings(ModelSettings(**given)) == DeviceSettings(**given)  # type: ignore[arg-type]


def test_captions_have_short_windows_and_files_have_five_beams(caplog: pytest.LogCaptureFixture) -> None:
    live, files = load(NANO), load(NANO, live=False)
    assert [*live.runtime.windows_s] == [5, 10, 30]
    assert ([*files.runtime.windows_s], files.n_beams) == ([30], 5)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # it is for trying things out


def test_a_model_that_does_not_fit_the_settings_is_refused() -> None:
    found, model = load_chosen(Settings(model=NANO, decoding=DecodingSettings(beam_size=3)), live=False)
    assert (found.model.name, model.name, model.n_beams) == ("nano.en", "nano.en", 3)
    with pytest.raises(ConfigError):
        load_chosen(Settings(model=NANO, decoding=DecodingSettings(language="de")), live=False)
