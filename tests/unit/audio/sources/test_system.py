"""What the computer plays: a real sound server, and a SoundCard that stands in for Windows'."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace, TracebackType

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.audio.sources import system as module
from streamer.audio.sources.system import BLOCK_BYTES, BLOCK_FRAMES, CHANNELS, LOOK_BLOCKS, SystemSound, capture
from streamer.errors import AudioDeviceError
from tests.unit.audio.sources.recorder import Recorder
from tests.unit.audio.sources.test_microphone import excerpt, likeness
from tests.virtual_mic import VirtualMicrophone
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


class FakeRecorder:
    """A device that plays its number, and fails behind a number of blocks."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device

    def __enter__(self) -> "FakeRecorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def record(self, n_frames: int) -> NDArray[np.float32]:
        if self._device.n_blocks == 0:
            raise RuntimeError("Error 0x88890004")
        self._device.n_blocks -= 1
        return np.full((n_frames, CHANNELS), self._device.value, dtype=np.float64)


class FakeDevice(SimpleNamespace):
    """An output, or a microphone."""

    def recorder(self, sample_rate: int, *, channels: int, blocksize: int) -> FakeRecorder:
        assert (sample_rate, channels, blocksize) == (48_000, CHANNELS, BLOCK_FRAMES)
        return FakeRecorder(self)


def captured(monkeypatch: pytest.MonkeyPatch, defaults: list[str], sources: list[FakeDevice]) -> bytes:
    """Return what is written where these outputs are the default, one after another; the last one stays."""

    def default_speaker() -> SimpleNamespace:
        name = defaults.pop(0) if len(defaults) > 1 else defaults[0]
        return SimpleNamespace(id=name, name=f"Speakers {name}")

    fake = SimpleNamespace(default_speaker=default_speaker, all_microphones=lambda include_loopback: sources)
    monkeypatch.setitem(sys.modules, "soundcard", fake)
    output = io.BytesIO()
    capture(output)
    return output.getvalue()


def test_the_default_output_is_captured_also_where_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Windows' loopback is listed, and as a monitor of PulseAudio.
    sources = [
        FakeDevice(id="a", isloopback=False, n_blocks=0, value=0.9),
        FakeDevice(id="a", isloopback=True, n_blocks=LOOK_BLOCKS, value=0.25),
        FakeDevice(id="b.monitor", isloopback=True, n_blocks=2, value=0.5),
    ]
    line, _, audio = captured(monkeypatch, ["a", "b"], sources).partition(b"\n")
    assert line == b"captures Speakers a"
    values = np.frombuffer(audio, dtype="<f4")
    assert len(audio) == (LOOK_BLOCKS + 2) * BLOCK_BYTES
    n_first = LOOK_BLOCKS * BLOCK_FRAMES * CHANNELS
    assert set(values[:n_first]) == {0.25}
    assert set(values[n_first:]) == {0.5}


def test_why_there_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeDevice(id="a", isloopback=True, n_blocks=0, value=0.0)
    assert captured(monkeypatch, ["a"], [broken]) == b"Error 0x88890004\n"
    monkeypatch.setitem(sys.modules, "soundcard", None)
    output = io.BytesIO()
    capture(output)
    assert b"soundcard" in output.getvalue()
    assert output.getvalue().count(b"\n") == 1


def test_a_computer_without_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHILD", "print('no \\x1b way')")
    with pytest.raises(AudioDeviceError, match=r"cannot be captured \(no .*way\)") as caught:
        SystemSound().start(Recorder().callbacks)
    assert "\x1b" not in str(caught.value)
    assert "--input FILE" in str(caught.value)


def test_a_sound_server_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHILD", "import time; time.sleep(600)")
    monkeypatch.setattr(module, "OPEN_TIMEOUT_S", 0.01)
    with pytest.raises(AudioDeviceError, match="no answer"):
        SystemSound().check()


def test_macos_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for attempt in (SystemSound().check, lambda: SystemSound().start(Recorder().callbacks)):
        with pytest.raises(AudioDeviceError, match="install it") as caught:
            attempt()
        assert "BlackHole" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_process_that_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A block of 0.5s.
    monkeypatch.setattr(module, "_CHILD", r"import sys; sys.stdout.buffer.write(b'captures me\n' + b'\0\0\0?' * 1920)")
    monkeypatch.setattr("streamer.audio.sources.microphone.REOPEN_S", 0.0)
    recorder, sound = Recorder(), SystemSound()
    sound.start(recorder.callbacks)
    assert sound.name == "system sound of 'me'"
    wait_until(lambda: recorder.order.count("audio") >= 2)
    sound.stop()
    assert recorder.order[:4] == ["audio", "error", "gap", "audio"]
    assert recorder.audio.max() == pytest.approx(0.5, abs=0.1)
    assert "system sound of 'me' went away: expected audio" in str(recorder.errors[0])
    assert [reason for _, reason in recorder.gaps][:1] == ["device"]
    assert recorder.ends == []


def test_what_is_played_is_captured_also_after_the_only_output_was_away(
    virtual_microphone: VirtualMicrophone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PULSE_SERVER", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, virtual_microphone.env[name])
    path, spoken = excerpt(tmp_path)
    recorder, sound = Recorder(), SystemSound()
    sound.start(recorder.callbacks)
    assert sound.name == "system sound of 'Null Output'"

    def is_heard(samples: NDArray[np.float32]) -> bool:
        return len(samples) > 3 * len(spoken) // 2 and likeness(samples, spoken[: len(spoken) // 4]) > 0.9

    assert virtual_microphone.play(path).wait() == 0
    wait_until(lambda: is_heard(recorder.audio))
    assert not recorder.errors
    # The only output there is goes away.
    virtual_microphone.unplug()
    wait_until(lambda: bool(recorder.gaps))
    assert [error.code for error in recorder.errors] == ["audio_device"]
    virtual_microphone.plug()
    wait_until(lambda: recorder.order[-1] == "audio")
    sound.stop()
    assert recorder.order == ["audio", "error", "gap", "audio"]
    assert recorder.ends == []
