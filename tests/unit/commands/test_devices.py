"""What `streamer devices` prints."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from streamer.audio.sources.application import PlaybackStream
from streamer.audio.sources.microphone import MicrophoneInfo
from streamer.audio.sources.system import SystemSound
from streamer.commands import devices
from streamer.commands.devices import show_devices
from streamer.errors import AudioDeviceError, InferenceError
from streamer.settings.table import ModelSettings, Settings
from streamer.setup.loading import device_settings
from streamer.whisper.device.devices import DeviceInfo, DeviceSettings

CPU = DeviceInfo("CPU", "Some Processor", "")
GPU = DeviceInfo("GPU.0", "", "")
NPU = DeviceInfo("NPU", "Intel(R) AI Boost", "1688")
HEADSET = MicrophoneInfo(3, "[bold]Headset", "ALSA", 2, 48_000, True)


def shown(
    monkeypatch: pytest.MonkeyPatch,
    *,
    model: ModelSettings | None = None,
    found: Sequence[DeviceInfo] = (CPU,),
    microphones: Sequence[MicrophoneInfo] = (),
    width: int = 200,
) -> str:
    monkeypatch.setattr(devices, "list_devices", lambda: list(found))
    monkeypatch.setattr(devices, "list_microphones", lambda: list(microphones))
    monkeypatch.setattr(SystemSound, "check", lambda sound: setattr(sound, "name", "system sound of 'Boxes'"))
    names = {"application.name": "Fire\x1b[1mfox", "application.process.binary": "firefox-bin"}
    monkeypatch.setattr(devices, "list_streams", lambda: [PlaybackStream(1, names), PlaybackStream(2, names)])
    console = Console(file=io.StringIO(), width=width)
    assert show_devices(Settings(model=model or ModelSettings()), console) == 0
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, first: str) -> list[str]:
    """Return the cells of the table row that begins with a word."""
    line = next(line for line in text.splitlines() if line.startswith(f"│ {first} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_settings_are_those_of_the_stages() -> None:
    model = ModelSettings(device="NPU", decoder_device="CPU", properties=("A=1",), encoder_properties=("B=2",))
    assert device_settings(model) == DeviceSettings(
        device="NPU",
        decoder_device="CPU",
        properties=("A=1",),
        encoder_properties=("B=2",),
    )
    assert device_settings(ModelSettings(npu_through_cpu=True)).npu_through_cpu


def test_devices_are_told_with_name_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, found=[CPU, GPU, NPU])
    assert row(text, "CPU") == ["CPU", "Some Processor"]
    assert row(text, "GPU.0") == ["GPU.0", "unnamed"]
    assert row(text, "NPU") == ["NPU", "Intel(R) AI Boost, driver 1688"]


def test_each_stage_is_told_with_its_device_why_and_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelSettings(decoder_device="CPU", properties=("NPU_TURBO=YES",))
    text = shown(monkeypatch, model=model, found=[CPU, GPU, NPU])
    for stage in ("encoder", "cross_kv"):
        assert row(text, stage) == [stage, "NPU", "AUTO: the first choice; GPU.0, CPU if it fails", "NPU_TURBO=YES"]
    assert row(text, "decoder") == ["decoder", "CPU", "model.decoder_device is CPU", "none"]
    text = shown(monkeypatch, model=ModelSettings(encoder_device="GPU"), found=[CPU, GPU])
    assert row(text, "cross_kv") == ["cross_kv", "GPU.0", "model.encoder_device is GPU", "none"]
    text = shown(monkeypatch, model=ModelSettings(device="CPU"))
    assert row(text, "encoder") == ["encoder", "CPU", "model.device is CPU", "none"]
    assert row(shown(monkeypatch), "encoder")[2] == "AUTO: no NPU here, no GPU here"
    text = shown(monkeypatch, model=ModelSettings(npu_through_cpu=True))
    assert row(text, "decoder")[1:3] == ["NPU", "model.npu_through_cpu: the NPU's plugin, which has the CPU compute"]


def test_a_device_that_is_not_there_is_a_line_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, model=ModelSettings(device="NPU"), microphones=[HEADSET])
    assert "Stages: device NPU is not there, OpenVINO finds CPU" in text
    assert "[bold]Headset" in text


def test_microphones_are_listed_as_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, microphones=[HEADSET])
    assert row(text, "     3") == ["3", "[bold]Headset", "ALSA", "2", "48000 Hz", "yes"]


def test_what_the_computer_plays_is_told_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "System sound: 'Boxes', with --input system\n" in shown(monkeypatch)


def test_applications_that_play_are_told_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    last = "Applications that play now: 'Fire [1mfox' (firefox-bin); with --input app:NAME\n"
    assert shown(monkeypatch).endswith(last)


def test_a_narrow_terminal_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("NPU_COMPILATION_MODE_PARAMS=optimization-level=2",)
    model = ModelSettings(npu_through_cpu=True, encoder_properties=own)
    lines = shown(monkeypatch, model=model, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert own[0] in "".join(line.split("│")[4].strip() for line in lines if line.count("│") == 5)


def test_it_works_without_devices_and_without_portaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Inference devices: none" in shown(monkeypatch, found=[])

    def no_audio() -> None:
        raise AudioDeviceError("no PortAudio [library]: install libportaudio2")

    def no_inference() -> None:
        raise InferenceError("OpenVINO cannot list its devices")

    def no_system(sound: object) -> None:
        raise AudioDeviceError("no sound server")

    monkeypatch.setattr(SystemSound, "check", no_system)
    monkeypatch.setattr(devices, "list_streams", lambda: no_system(None))
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(devices, "list_microphones", no_audio)
    monkeypatch.setattr(devices, "list_devices", no_inference)
    assert show_devices(Settings(), console) == 0
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == (
        "Inference devices: OpenVINO cannot list its devices\n"
        "Microphones: no PortAudio [library]: install libportaudio2\n"
        "System sound: no sound server\n"
        "Applications: no sound server\n"
    )
