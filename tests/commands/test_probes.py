"""Questions to drivers, which may crash, hang or chatter."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer.audio.sources.base import SourceCallbacks
from streamer.commands import probes
from streamer.commands.probes import (
    Audio,
    Inference,
    answer_audio,
    answer_inference,
    answer_system,
    ask_apart,
)

# Generous: nothing here comes near it.
TIMEOUT_S = 120.0


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the other process run what a test sets as its code."""
    return monkeypatch


def answered(child: pytest.MonkeyPatch, code: str, timeout_s: float = TIMEOUT_S) -> object:
    child.setattr(probes, "_CHILD", code)
    return ask_apart(answer_system, timeout_s=timeout_s)


def test_openvino_answers_from_another_process() -> None:
    inference = Inference(**ask_apart(answer_inference, timeout_s=TIMEOUT_S))
    assert inference.error == ""
    assert inference.version[:2] == "20"
    assert inference.devices["CPU"]


def test_portaudio_answers_from_another_process() -> None:
    audio = Audio(**ask_apart(answer_audio, "no such microphone", timeout_s=TIMEOUT_S))
    # Without PortAudio, without a microphone, or with one: each is an answer.
    assert audio.error or audio.refusal
    assert "exit code" not in audio.error


def test_a_crash_is_told(child: pytest.MonkeyPatch) -> None:
    assert answered(
        child, "import os, sys; print('driver: no', file=sys.stderr); sys.stderr.flush(); os._exit(66)"
    ) == {"error": "exit code 66, driver: no"}
    assert answered(child, "raise SystemExit(3)") == {"error": "exit code 3, it says nothing"}
    assert answered(child, "raise RuntimeError('no driver')") == {"error": "exit code 1, RuntimeError: no driver"}


def test_what_hangs_is_ended(child: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(*args: Any, **arguments: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - passed on
        process: subprocess.Popen[str] = popen(*args, **arguments)
        started.append(process)
        return process

    popen = subprocess.Popen
    child.setattr(subprocess, "Popen", start)
    assert answered(child, "import time; time.sleep(600)", timeout_s=0.2) == {"error": "no answer within 0.2 s"}
    assert [process.poll() is not None for process in started] == [True]


def test_chatter_is_no_answer(child: pytest.MonkeyPatch) -> None:
    assert answered(child, "print('ALSA: hello'); print('{\"a\": 1}')") == {"a": 1}
    assert answered(child, "print('ALSA: hello')") == {"error": "exit code 0, it says nothing"}


def test_no_other_process_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "no other process can be started" in ask_apart(answer_audio, "a\0b", timeout_s=TIMEOUT_S)["error"]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    assert "no other process can be started" in ask_apart(answer_audio, "", timeout_s=TIMEOUT_S)["error"]


def test_answers_are_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamer.audio.sources import microphone
    from streamer.errors import AudioDeviceError, InferenceError
    from streamer.whisper.device import devices

    def speak(source: object, callbacks: SourceCallbacks) -> None:
        callbacks.on_audio(np.zeros(160, dtype=np.float32))

    def refuse(source: object, callbacks: SourceCallbacks) -> None:
        raise AudioDeviceError("none is named so")

    found = [
        microphone.MicrophoneInfo(0, "Webcam", "ALSA", 1, 48_000, False),
        microphone.MicrophoneInfo(1, "Headset", "ALSA", 1, 48_000, True),
    ]
    monkeypatch.setattr(microphone, "list_microphones", lambda: found)
    monkeypatch.setattr(microphone.Microphone, "start", speak)
    answer = answer_audio("")
    assert json.loads(json.dumps(answer)) == {"microphones": ["Webcam", "Headset"], "default": "Headset", "refusal": ""}
    assert answer_system() == {"name": "system sound", "error": ""}
    monkeypatch.setattr(microphone.Microphone, "start", refuse)
    assert answer_audio("Piano")["refusal"] == answer_system()["error"] == "none is named so"
    monkeypatch.setattr(microphone.Microphone, "start", lambda self, callbacks: None)
    monkeypatch.setattr(probes, "FIRST_AUDIO_S", 0.0)
    assert "microphone gives no audio: expected some" in answer_audio("")["refusal"]
    npu = devices.DeviceInfo("NPU", "Intel(R) AI Boost", "1688")
    monkeypatch.setattr(devices, "list_devices", lambda: [npu, devices.DeviceInfo("GPU", "", "")])
    assert answer_inference()["devices"] == {"NPU": "Intel(R) AI Boost, driver 1688", "GPU": "unnamed"}

    def no_audio() -> None:
        raise AudioDeviceError("no PortAudio")

    def no_inference() -> None:
        raise InferenceError("no plugins")

    monkeypatch.setattr(microphone, "list_microphones", no_audio)
    monkeypatch.setattr(devices, "list_devices", no_inference)
    assert answer_audio("") == {"error": "no PortAudio"}
    assert answer_inference() == {"error": "no plugins"}
