"""What `streamer devices` prints."""

from typing import Any

import pytest

from streamer.audio.sources.application import PlaybackStream
from streamer.audio.sources.microphone import MicrophoneInfo
from streamer.audio.sources.system import SystemSound
from streamer.commands import devices
from streamer.errors import AudioDeviceError, InferenceError
from streamer.settings.table import ModelSettings, Settings
from streamer.whisper.device.devices import DeviceInfo
from tests.unit.commands.support import Paper

CPU = DeviceInfo("CPU", "Some Processor", "")
GPU = DeviceInfo("GPU.0", "", "")
NPU = DeviceInfo("NPU", "Intel(R) AI Boost", "1688")
HEADSET = MicrophoneInfo(3, "[bold]Headset", "ALSA", 2, 48_000, True)


def shown(monkeypatch: pytest.MonkeyPatch, *found: DeviceInfo, width: int = 200, **model: Any) -> Paper:  # noqa: ANN401
    """Return what is printed on a machine with these inference devices, with these settings of the model."""
    names = {"application.name": "Fire\x1b[1mfox", "application.process.binary": "firefox-bin"}
    monkeypatch.setattr("streamer.whisper.device.devices.list_devices", lambda: list(found))
    monkeypatch.setattr("streamer.audio.sources.microphone.list_microphones", lambda: [HEADSET])
    monkeypatch.setattr(SystemSound, "check", lambda sound: setattr(sound, "name", "system sound of 'Boxes'"))
    streams = [PlaybackStream(1, names), PlaybackStream(2, names)]
    monkeypatch.setattr("streamer.audio.sources.application.list_streams", lambda: streams)
    return printed(monkeypatch, Settings(model=ModelSettings(**model)), width)


def printed(monkeypatch: pytest.MonkeyPatch, settings: Settings, width: int = 200) -> Paper:
    paper = Paper(width)
    monkeypatch.setattr(devices, "make_console", lambda: paper)
    assert devices.devices(settings=settings) == 0
    return paper


def test_devices_microphones_and_what_plays_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = shown(monkeypatch, CPU, GPU, NPU)
    rows = paper.rows()
    assert (rows["CPU"], rows["GPU.0"]) == (["Some Processor"], ["unnamed"])
    assert rows["NPU"] == ["Intel(R) AI Boost, driver 1688"]
    assert rows["3"] == ["[bold]Headset", "ALSA", "2", "48000 Hz", "yes"]
    assert "'Boxes', with --input system\n" in paper.text
    assert "'Fire [1mfox' (firefox-bin); with --input app:NAME\n" in paper.text


@pytest.mark.parametrize(
    ("found", "model", "stage", "device", "why"),
    [
        ((CPU, GPU, NPU), {}, "encoder", "NPU", "AUTO: the first choice; GPU.0, CPU if it fails"),
        ((CPU, GPU, NPU), {}, "cross_kv", "NPU", "AUTO: the first choice; GPU.0, CPU if it fails"),
        ((CPU, GPU, NPU), {"decoder_device": "CPU"}, "decoder", "CPU", "model.decoder_device is CPU"),
        ((CPU, GPU), {"encoder_device": "GPU"}, "cross_kv", "GPU.0", "model.encoder_device is GPU"),
        ((CPU,), {"device": "CPU"}, "encoder", "CPU", "model.device is CPU"),
        ((CPU,), {}, "encoder", "CPU", "AUTO: no NPU here, no GPU here"),
        ((CPU,), {"npu_through_cpu": True}, "decoder", "NPU", "model.npu_through_cpu: the NPU's plugin, which has"),
    ],
)
def test_each_stage_has_its_device_and_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    found: tuple[DeviceInfo, ...],
    model: dict[str, Any],
    stage: str,
    device: str,
    why: str,
) -> None:
    cells = shown(monkeypatch, *found, **model).rows()[stage]
    assert (cells[0], cells[2]) == (device, "none")
    assert cells[1].startswith(why)


def test_properties_are_shown_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "NPU_COMPILATION_MODE_PARAMS=optimization-level=2"
    paper = shown(monkeypatch, CPU, width=80, npu_through_cpu=True, encoder_properties=(own,))
    lines = paper.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert own in "".join(line.split("│")[4].strip() for line in lines if line.count("│") == 5)


def test_what_is_missing_is_a_line_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Any:  # noqa: ANN401
        raise error

    assert "Stages: device NPU" in shown(monkeypatch, CPU, device="NPU").text
    assert "Inference devices: none" in shown(monkeypatch).text
    sound = AudioDeviceError("no sound [server]")
    monkeypatch.setattr(SystemSound, "check", lambda _: fail(sound))
    monkeypatch.setattr("streamer.audio.sources.application.list_streams", lambda: fail(sound))
    monkeypatch.setattr("streamer.audio.sources.microphone.list_microphones", list)
    monkeypatch.setattr("streamer.whisper.device.devices.list_devices", lambda: fail(InferenceError("no OpenVINO")))
    lines = [line.split(":")[:2] for line in printed(monkeypatch, Settings()).text.splitlines()]
    assert [name for name, _ in lines] == ["Inference devices", "Microphones", "System sound", "Applications"]
    assert [said.strip() for name, said in lines if name != "Microphones"] == ["no OpenVINO", *[str(sound)] * 2]
