"""What `streamer doctor` finds of microphones and of the computer's own sound."""

import os
import platform
from pathlib import Path

import numpy as np
import pytest

from streamer.audio import doctor
from streamer.audio.doctor import check_applications, check_microphone, check_system_sound
from streamer.audio.sources.application import PlaybackStream
from streamer.audio.sources.base import SourceCallbacks
from streamer.audio.sources.microphone import Microphone, MicrophoneInfo
from streamer.errors import AudioDeviceError
from tests.findings import OK, PROBLEM, WARNING, expect

WEBCAM = MicrophoneInfo(0, "Webcam", "ALSA", 1, 48_000, False)
HEADSET = MicrophoneInfo(1, "Headset", "ALSA", 1, 48_000, True)


def speak(source: object, callbacks: SourceCallbacks) -> None:
    callbacks.on_audio(np.zeros(160, dtype=np.float32))


def refuse(source: object, callbacks: SourceCallbacks) -> None:
    raise AudioDeviceError("no microphone is named 'piano'")


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linux machine with two microphones that give audio."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(doctor, "SOUND_DEVICES", tmp_path)
    monkeypatch.setattr(doctor, "FIRST_AUDIO_S", 0.0)
    monkeypatch.setattr(doctor, "list_microphones", lambda: [WEBCAM, HEADSET])
    monkeypatch.setattr(Microphone, "start", speak)


def test_a_microphone_that_gives_audio() -> None:
    found = check_microphone("", needed=True)
    expect(found["PortAudio"], OK, "works, inputs: 2")
    expect(found["Microphone"], OK, "Headset")
    expect(check_microphone("web", needed=True)["Microphone"], OK, "'web' works")


def test_a_microphone_that_is_not_there_or_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Microphone, "start", refuse)
    found = check_microphone("piano", needed=True)["Microphone"]
    expect(found, PROBLEM, "no microphone is named 'piano'", "input.microphone")
    monkeypatch.setattr(Microphone, "start", lambda *_: None)
    expect(check_microphone("", needed=True)["Microphone"], PROBLEM, "microphone gives no audio: expected some")


def test_no_microphone_is_a_problem_only_if_one_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remedied(remedy: str) -> None:
        expect(check_microphone("", needed=True)["Microphone"], PROBLEM, "none", remedy)

    monkeypatch.setattr(doctor, "list_microphones", list)
    expect(check_microphone("", needed=False)["Microphone"], WARNING, "none", "--input FILE")
    (tmp_path / "pcmC0D0p").touch()
    remedied("Linux knows of no sound card")
    (tmp_path / "pcmC0D0c").touch()
    remedied("sound server")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    remedied("sudo usermod -aG audio $USER")
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    remedied("(Settings, Privacy")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    remedied("System Settings")


def test_a_portaudio_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AudioDeviceError("no PortAudio")

    monkeypatch.setattr(doctor, "list_microphones", fail)
    expect(check_microphone("", needed=True)["PortAudio"], PROBLEM, "no PortAudio")
    expect(check_microphone("", needed=False)["PortAudio"], WARNING, "no PortAudio")


def test_system_sound_is_a_problem_only_if_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    expect(check_system_sound(needed=True)["System sound"], OK, "system sound")
    monkeypatch.setattr(Microphone, "start", refuse)
    expect(check_system_sound(needed=False)["System sound"], WARNING, "no microphone is named")
    expect(check_system_sound(needed=True)["System sound"], PROBLEM, "no microphone is named")


def test_applications_are_named_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "list_streams", lambda: [PlaybackStream(1, {"application.name": "mpv"})])
    expect(check_applications()["Applications"], OK, "playing now: 'mpv'")

    def fail() -> None:
        raise AudioDeviceError("no sound server")

    monkeypatch.setattr(doctor, "list_streams", fail)
    expect(check_applications()["Applications"], PROBLEM, "no sound server")
