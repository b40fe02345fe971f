"""What the computer plays, by a SoundCard that stands in; by a real sound server: tests/e2e/test_sessions.py."""

import io
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.audio.sources import system as module
from streamer.audio.sources.system import BLOCK_BYTES, BLOCK_FRAMES, CHANNELS, LOOK_BLOCKS, SystemSound, capture
from tests.unit.audio.support import Recorder
from tests.waiting import wait_until


class FakeDevice(SimpleNamespace):
    """An output, or a microphone; it plays its `value`, and fails after `n_blocks`."""

    def recorder(self, sample_rate: int, *, channels: int, blocksize: int) -> "nullcontext[FakeDevice]":
        assert (sample_rate, channels, blocksize) == (48_000, CHANNELS, BLOCK_FRAMES)
        return nullcontext(self)

    def record(self, n_frames: int) -> FloatArray:
        if self.n_blocks == 0:
            raise RuntimeError("Error 0x88890004")
        self.n_blocks -= 1
        return np.full((n_frames, CHANNELS), self.value, dtype=np.float64)


def captured(monkeypatch: pytest.MonkeyPatch, defaults: str, sources: list[FakeDevice]) -> bytes:
    """Return what is written if these outputs are the default, one after another; the last one stays."""
    names = [*defaults]

    def default_speaker() -> SimpleNamespace:
        name = names.pop(0) if len(names) > 1 else names[0]
        return SimpleNamespace(id=name, name=f"Speakers {name}")

    fake = SimpleNamespace(default_speaker=default_speaker, all_microphones=lambda include_loopback: sources)
    monkeypatch.setitem(sys.modules, "soundcard", fake)
    output = io.BytesIO()
    capture(output)
    return output.getvalue()


def test_the_default_output_is_captured_also_if_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Windows' loopback is listed, and as a monitor of PulseAudio.
    sources = [
        FakeDevice(id="a", isloopback=False, n_blocks=0, value=0.9),
        FakeDevice(id="a", isloopback=True, n_blocks=LOOK_BLOCKS, value=0.25),
        FakeDevice(id="b.monitor", isloopback=True, n_blocks=2, value=0.5),
    ]
    line, _, audio = captured(monkeypatch, "ab", sources).partition(b"\n")
    assert line == b"captures Speakers a"
    n_first, n_second = (n * BLOCK_BYTES // 4 for n in (LOOK_BLOCKS, 2))
    np.testing.assert_array_equal(
        np.frombuffer(audio, "<f4"), np.repeat(np.array([0.25, 0.5], np.float32), [n_first, n_second])
    )


def test_why_nothing_is_captured_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeDevice(id="a", isloopback=True, n_blocks=0, value=0.0)
    assert captured(monkeypatch, "a", [broken]) == b"Error 0x88890004\n"
    monkeypatch.setitem(sys.modules, "soundcard", None)
    output = io.BytesIO()
    capture(output)
    assert output.getvalue().count(b"\n") == 1


def test_a_process_that_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A block of 0.5s.
    monkeypatch.setattr(module, "_CHILD", r"import sys; sys.stdout.buffer.write(b'captures me\n' + b'\0\0\0?' * 1920)")
    monkeypatch.setattr("streamer.audio.sources.microphone.REOPEN_S", 0.0)
    monkeypatch.setattr("streamer.audio.sources.microphone.LOOK_S", 0.01)
    recorder, sound = Recorder(), SystemSound()
    sound.check()
    assert sound.name == "system sound of 'me'"
    sound.start(recorder.callbacks)
    wait_until(lambda: recorder.order.count("audio") >= 2)
    # Nothing is left that would end a process that has answered.
    wait_until(lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()))
    sound.stop()
    assert recorder.order[:4] == ["audio", "error", "gap", "audio"]
    assert recorder.audio.max() == pytest.approx(0.5, abs=0.1)
    assert [reason for _, reason in recorder.gaps][:1] == ["device"]
    assert recorder.ends == []
