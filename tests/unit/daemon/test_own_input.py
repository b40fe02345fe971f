"""Which source the setting of the daemon's own input means."""

import pytest

from streamer.audio.sources.application import Application
from streamer.audio.sources.microphone import Microphone
from streamer.audio.sources.mixed import Mixed
from streamer.audio.sources.system import SystemSound
from streamer.daemon.own_input import Finished, OwnInput, make_source
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.errors import AudioDeviceError, AudioFileError
from streamer.settings.table import CorrectionSettings, InputSettings, Settings
from streamer.whisper.model import WhisperModel


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
    followers = [Finished(log, lambda: told.append("finished"))]
    settings = Settings(correction=CorrectionSettings(model=""))
    live = open_session(settings, model, log, SessionSource(kind=AudioKind.RECORDED, followers=followers))
    for _ in range(2):
        log.subscribe(lambda event: told.append(event.type))
    live.end()
    live.listen(0.0)
    assert told == ["end", "end", "finished"]
