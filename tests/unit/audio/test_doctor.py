"""What `streamer doctor` finds of microphones and of the computer's own sound."""

import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer.audio import doctor
from streamer.audio.doctor import check_applications, check_microphone, check_system_sound
from streamer.audio.sources.application import PlaybackStream
from streamer.audio.sources.base import SourceCallbacks
from streamer.audio.sources.microphone import Microphone, MicrophoneInfo
from streamer.errors import AudioDeviceError
from streamer.findings import Finding, Severity
from tests.findings import OK, PROBLEM, WARNING, expect

WEBCAM = MicrophoneInfo(0, "Webcam", "ALSA", 1, 48_000, False)
HEADSET = MicrophoneInfo(1, "Headset", "ALSA", 1, 48_000, True)


def speak(source: object, callbacks: SourceCallbacks) -> None:
    callbacks.on_audio(np.zeros(160, dtype=np.float32))


def refuse(*_: object) -> None:
    raise AudioDeviceError("it is away")


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linux machine with two microphones that give audio."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(doctor, "SOUND_DEVICES", tmp_path)
    monkeypatch.setattr(doctor, "FIRST_AUDIO_S", 0.0)
    monkeypatch.setattr(doctor, "list_microphones", lambda: [WEBCAM, HEADSET])
    monkeypatch.setattr(doctor, "list_streams", lambda: [PlaybackStream(1, {"application.name": "mpv"})])
    monkeypatch.setattr(Microphone, "start", speak)


def test_what_works_is_named() -> None:
    found = check_microphone("", needed=True)
    expect(found["PortAudio"], OK, "2")
    expect(found["Microphone"], OK, "Headset")
    expect(check_microphone("web", needed=True)["Microphone"], OK, "'web'")
    expect(check_system_sound(needed=True)["System sound"], OK, "system sound")
    expect(check_applications()["Applications"], OK, "'mpv'")


def test_a_microphone_that_is_away_or_silent_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Microphone, "start", refuse)
    expect(check_microphone("piano", needed=True)["Microphone"], PROBLEM, "it is away", "input.microphone")
    monkeypatch.setattr(Microphone, "start", lambda *_: None)
    expect(check_microphone("", needed=True)["Microphone"], PROBLEM, "gives no audio")


@pytest.mark.parametrize(
    ("system", "nodes", "allowed", "remedy"),
    [
        ("Linux", (), True, "--device /dev/snd"),
        ("Linux", ("pcmC0D0p",), True, "--device /dev/snd"),
        ("Linux", ("pcmC0D0p", "pcmC0D0c"), True, "systemctl --user status"),
        ("Linux", ("pcmC0D0c",), False, "usermod -aG audio"),
        ("Windows", (), True, "(Settings, Privacy"),
        ("Darwin", (), True, "System Settings"),
    ],
)
def test_why_there_is_no_microphone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, nodes: tuple[str, ...], allowed: bool, remedy: str
) -> None:
    monkeypatch.setattr(doctor, "list_microphones", list)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(os, "access", lambda path, mode: allowed)
    for node in nodes:
        (tmp_path / node).touch()
    found = check_microphone("", needed=True)["Microphone"]
    expect(found, PROBLEM, "none", remedy)
    assert "--input FILE" in found.remedy


@pytest.mark.parametrize(
    ("check", "severity"),
    [
        (lambda: check_microphone("", needed=True), PROBLEM),
        (lambda: check_microphone("", needed=False), WARNING),
        (lambda: check_system_sound(needed=True), PROBLEM),
        (lambda: check_system_sound(needed=False), WARNING),
        (check_applications, PROBLEM),
    ],
)
def test_what_is_missing_is_a_problem_only_if_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[], dict[str, Finding]], severity: Severity
) -> None:
    monkeypatch.setattr(doctor, "list_microphones", refuse)
    monkeypatch.setattr(doctor, "list_streams", refuse)
    monkeypatch.setattr(Microphone, "start", refuse)
    found, *_ = check().values()
    expect(found, severity, "it is away")
