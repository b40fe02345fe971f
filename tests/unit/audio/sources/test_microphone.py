"""The microphone: a virtual one that is spoken into and pulled out, and a PortAudio that misbehaves on demand."""

import dataclasses
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import scipy.signal
import soundfile
from numpy.typing import NDArray

from streamer.audio.resample import Resampler
from streamer.audio.sources.base import MAX_HOLE_S
from streamer.audio.sources.microphone import LossEstimator, Microphone, list_microphones
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError, StreamerError
from tests.fakes import Clock
from tests.unit.audio.sources.recorder import Recorder
from tests.virtual_mic import VirtualMicrophone
from tests.waiting import WAIT_S, wait_until

SPEECH = Path(__file__).parents[3] / "data" / "speech.flac"

# Captures until a line arrives on standard input; says what happens, one line of JSON each, and saves the audio.
CAPTURE = """
import json, sys
import numpy as np
from streamer.audio.sources.base import SourceCallbacks
from streamer.audio.sources.microphone import Microphone, list_microphones
from streamer.errors import StreamerError

blocks = []
position = 0

def say(event, **values):
    print(json.dumps({"event": event, **values}), flush=True)

def on_audio(samples):
    global position
    blocks.append(samples)
    position += len(samples)
    say("audio", position=position, peak=float(np.abs(samples).max()))

def on_gap(n_samples, reason):
    global position
    blocks.append(np.zeros(n_samples, dtype=np.float32))
    position += n_samples
    say("gap", position=position, n_samples=n_samples, reason=reason)

microphone = Microphone()
try:
    say("listed", names=[info.name for info in list_microphones()])
    microphone.start(SourceCallbacks(
        on_audio=on_audio,
        on_gap=on_gap,
        on_error=lambda error: say("error", code=error.code, message=str(error)),
        on_end=lambda error: say("end"),
    ))
except StreamerError as error:
    say("refused", code=error.code, message=str(error))
    sys.exit()
say("started", name=microphone.name)
sys.stdin.readline()
microphone.stop()
microphone.stop()
np.save(sys.argv[1], np.concatenate(blocks))
say("stopped")
"""

Event = dict[str, Any]


class Capture:
    """A process that captures, and what it said so far."""

    def __init__(self, env: dict[str, str], directory: Path) -> None:
        self.events: list[Event] = []
        self._audio_path = directory / "captured.npy"
        self._lines: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-c", CAPTURE, str(self._audio_path)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, condition: Callable[[Event], bool]) -> Event:
        """Return the next event for which `condition` holds."""
        while True:
            line = self._lines.get(timeout=WAIT_S)
            assert line, f"the capturing process ended: {self.events[-5:]}"
            event: Event = json.loads(line)
            self.events.append(event)
            if condition(event):
                return event

    def stop(self) -> NDArray[np.float32]:
        """Stop it; return all it captured."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.wait_for(lambda event: event["event"] == "stopped")
        return np.asarray(np.load(self._audio_path), dtype=np.float32)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def capturing(env: dict[str, str], directory: Path) -> Iterator[Capture]:
    capture = Capture(env, directory)
    try:
        yield capture
    finally:
        capture.close()


def is_sound(event: Event) -> bool:
    return bool(event["event"] == "audio" and event["peak"] > 0.05)


def excerpt(directory: Path) -> tuple[Path, NDArray[np.float32]]:
    samples, _ = soundfile.read(SPEECH, dtype="float32", start=int(4.4 * SAMPLE_RATE), frames=2 * SAMPLE_RATE)
    soundfile.write(directory / "excerpt.wav", samples, SAMPLE_RATE)
    return directory / "excerpt.wav", np.asarray(samples)


def likeness(captured: NDArray[np.float32], piece: NDArray[np.float32]) -> float:
    """Return the correlation of a piece with the place in the captured audio that is most like it."""
    start = int(np.argmax(scipy.signal.correlate(captured, piece, mode="valid")))
    return float(np.corrcoef(captured[start : start + len(piece)], piece)[0, 1])


def test_what_is_spoken_is_captured(virtual_microphone: VirtualMicrophone, tmp_path: Path) -> None:
    path, spoken = excerpt(tmp_path)
    with capturing(virtual_microphone.env, tmp_path) as capture:
        assert capture.wait_for(lambda event: event["event"] == "listed")["names"]
        capture.wait_for(lambda event: event["event"] == "audio")
        assert virtual_microphone.play(path).wait() == 0
        first = capture.wait_for(is_sound)["position"]
        capture.wait_for(lambda event: event["event"] == "audio" and event["position"] > first + 3 * SAMPLE_RATE)
        captured = capture.stop()
    # Piece by piece: on a busy machine the player may stumble once.
    assert np.median([likeness(captured, piece) for piece in np.split(spoken, 4)]) > 0.9
    assert not [event for event in capture.events if event["event"] in ("error", "end")]


def test_a_microphone_that_goes_away_and_comes_back(virtual_microphone: VirtualMicrophone, tmp_path: Path) -> None:
    path, _ = excerpt(tmp_path)
    with capturing(virtual_microphone.env, tmp_path) as capture:
        capture.wait_for(lambda event: event["event"] == "audio")
        virtual_microphone.unplug()
        error = capture.wait_for(lambda event: event["event"] == "error")
        assert error["code"] == "audio_device"
        assert "expected audio" in error["message"]
        gone = len(capture.events)
        # The clock of the audio goes on meanwhile.
        first = capture.wait_for(lambda event: event["event"] == "gap")
        capture.wait_for(lambda event: event["event"] == "gap" and event["position"] > first["position"] + 24_000)
        assert not [event for event in capture.events[gone:] if event["event"] == "audio"]
        virtual_microphone.plug()
        capture.wait_for(lambda event: event["event"] == "audio")
        virtual_microphone.play(path)
        capture.wait_for(is_sound)
        captured = capture.stop()
    hole = [event for event in capture.events[gone:] if event.get("reason") == "device"]
    start = hole[0]["position"] - hole[0]["n_samples"]
    assert start + sum(event["n_samples"] for event in hole) == hole[-1]["position"]
    assert not captured[start : hole[-1]["position"]].any()
    others = [event for event in capture.events[gone:] if event["event"] not in ("audio", "gap")]
    assert [event["event"] for event in others] == ["stopped"]


def test_a_microphone_that_is_not_plugged_in(virtual_microphone: VirtualMicrophone, tmp_path: Path) -> None:
    virtual_microphone.unplug()
    with capturing(virtual_microphone.env, tmp_path) as capture:
        refused = capture.wait_for(lambda event: event["event"] in ("refused", "started"))
    assert refused["event"] == "refused"
    assert refused["code"] == "audio_device"
    assert "plug" in refused["message"]
    assert "\n" not in refused["message"]


def test_a_computer_without_portaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    for attempt in (list_microphones, lambda: Microphone().start(Recorder().callbacks)):
        with pytest.raises(AudioDeviceError, match="PortAudio cannot be loaded") as caught:
            attempt()
        assert "install" in str(caught.value)
        assert "\n" not in str(caught.value)


class FakePortAudio:
    """What we use of sounddevice, with devices and blocks under the test's control."""

    class PortAudioError(Exception):
        pass

    def __init__(self) -> None:
        self.devices: list[dict[str, Any]] = []
        self.default = 0

        # The streams that were opened.
        self.streams: list[FakeStream] = []

        # Whether PortAudio is initialised, how often it was since the start, and how often that is still to fail.
        self.up = True
        self.initialised = 0
        self.n_failing = 0

        # What opening a stream, or starting it, raises; None where it works.
        self.error_of_open: Exception | None = None
        self.error_of_start: Exception | None = None

    def add(self, name: str, channels: int = 1, sample_rate: float = 16_000.0, hostapi: int = 0) -> None:
        self.devices.append(
            {
                "index": len(self.devices),
                "name": name,
                "hostapi": hostapi,
                "max_input_channels": channels,
                "default_samplerate": sample_rate,
            }
        )

    def query_devices(self, kind: str | None = None) -> Any:  # noqa: ANN401 - as sounddevice
        if not self.up:
            raise self.PortAudioError("Error querying number of devices: PortAudio not initialized")
        if kind is None:
            return self.devices
        if not 0 <= self.default < len(self.devices):
            raise self.PortAudioError("Error querying device -1")
        return self.devices[self.default]

    def query_hostapis(self) -> list[dict[str, Any]]:
        return [{"name": "MME"}, {"name": "WASAPI"}]

    def _terminate(self) -> None:
        assert all(stream.closed for stream in self.streams)
        if not self.up:
            raise self.PortAudioError("Error terminating PortAudio: PortAudio not initialized")
        self.up = False

    def _initialize(self) -> None:
        if self.n_failing:
            self.n_failing -= 1
            raise self.PortAudioError("Error initializing PortAudio: Unanticipated host error")
        self.up = True
        self.initialised += 1

    def InputStream(self, **arguments: Any) -> "FakeStream":  # noqa: ANN401, N802 - as sounddevice
        if self.error_of_open is not None:
            raise self.error_of_open
        stream = FakeStream(self, **arguments)
        self.streams.append(stream)
        return stream


class FakeStream:
    """An open input; the test calls its callback."""

    def __init__(self, portaudio: FakePortAudio, **arguments: Any) -> None:  # noqa: ANN401 - as sounddevice
        self.device: int = arguments["device"]
        self.channels: int = arguments["channels"]
        self.sample_rate: int = arguments["samplerate"]
        self.running = False
        self.closed = False

        # What looking at it raises; None where it works.
        self.error_of_active: Exception | None = None

        self._portaudio = portaudio
        self._callback = arguments["callback"]
        self._time_s = 100.0

    @property
    def active(self) -> bool:
        if self.error_of_active is not None:
            raise self.error_of_active
        return self.running

    def start(self) -> None:
        if self._portaudio.error_of_start is not None:
            raise self._portaudio.error_of_start
        self.running = True

    def abort(self) -> None:
        self.running = False

    def close(self) -> None:
        self.closed = True

    def deliver(self, value: float, n_frames: int, *, overflowed: bool = False, lost_s: float = 0.0) -> None:
        """Call the callback as PortAudio does, with frames that are all `value`, after `lost_s` without a block."""
        self._time_s += lost_s
        frames = np.full((n_frames, self.channels), value, dtype=np.float32)
        times = SimpleNamespace(inputBufferAdcTime=self._time_s)
        self._callback(frames, n_frames, times, SimpleNamespace(input_overflow=overflowed))
        frames[:] = np.nan  # PortAudio uses its buffer again
        self._time_s += n_frames / self.sample_rate


@pytest.fixture
def portaudio(monkeypatch: pytest.MonkeyPatch) -> FakePortAudio:
    fake = FakePortAudio()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("base", "microphone"):
        monkeypatch.setattr(f"streamer.audio.sources.{module}.time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a device be opened again at once."""
    monkeypatch.setattr("streamer.audio.sources.microphone.REOPEN_S", 0.0)


def wait_for_streams(portaudio: FakePortAudio, n_streams: int) -> None:
    wait_until(lambda: len(portaudio.streams) == n_streams)


@contextmanager
def capture_from(portaudio: FakePortAudio, device: str = "", **callbacks: Any) -> Iterator[tuple[Recorder, Microphone]]:  # noqa: ANN401
    """Capture in the block, from a microphone "desk" unless there are others; `callbacks` replace the recorder's."""
    if not portaudio.devices:
        portaudio.add("desk")
    recorder, microphone = Recorder(), Microphone(device)
    microphone.start(dataclasses.replace(recorder.callbacks, **callbacks))
    try:
        yield recorder, microphone
    finally:
        microphone.stop()
    assert recorder.ends == []
    assert all(stream.closed for stream in portaudio.streams)


def test_a_computer_without_microphone(portaudio: FakePortAudio) -> None:
    portaudio.add("Speakers", channels=0)
    assert list_microphones() == []
    with pytest.raises(AudioDeviceError, match=r"no microphone found.*--input FILE"):
        Microphone().start(Recorder().callbacks)


def test_blocks_that_overflowed_become_a_gap_where_they_are_missing(portaudio: FakePortAudio) -> None:
    with capture_from(portaudio) as (recorder, _):
        [stream] = portaudio.streams
        stream.deliver(0.25, 1_600, overflowed=True)  # of the first block: before our time
        stream.deliver(0.25, 1_600)
        stream.deliver(0.5, 1_600, overflowed=True, lost_s=0.5)
        stream.deliver(0.5, 1_600)
        wait_until(lambda: len(recorder.audio) == 4 * 1_600 + 8_000)
    assert recorder.audio.tolist() == [0.25] * 3_200 + [0.0] * 8_000 + [0.5] * 3_200
    assert recorder.gaps == [(8_000, "overrun")]


def test_a_consumer_that_stands_still_loses_audio_but_not_the_clock(portaudio: FakePortAudio) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def on_audio(samples: NDArray[np.float32]) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)
        recorder.callbacks.on_audio(samples)

    with capture_from(portaudio, on_audio=on_audio) as (recorder, _):
        [stream] = portaudio.streams
        stream.deliver(0.1, 160)
        assert entered.wait(WAIT_S)
        for _ in range(12):
            stream.deliver(0.2, SAMPLE_RATE)
        # Ten seconds may wait, with the block that is being delivered; the rest is counted.
        go_on.set()
        wait_until(lambda: len(recorder.audio) >= 160 + 9 * SAMPLE_RATE)
        stream.deliver(0.3, 160)
        wait_until(lambda: len(recorder.audio) >= 160 + 12 * SAMPLE_RATE + 160)
    assert recorder.gaps == [(lost := 3 * SAMPLE_RATE, "overrun")]
    assert recorder.audio.tolist() == pytest.approx([0.1] * 160 + [0.2] * 9 * SAMPLE_RATE + [0.0] * lost + [0.3] * 160)


def test_a_stereo_microphone_at_another_rate(portaudio: FakePortAudio) -> None:
    portaudio.add("array", channels=32, sample_rate=48_000.0)
    with capture_from(portaudio) as (recorder, _):
        [stream] = portaudio.streams
        assert (stream.channels, stream.sample_rate) == (2, 48_000)
        for _ in range(20):
            stream.deliver(0.5, 4_800)
        wait_until(lambda: len(recorder.audio) > 1.8 * SAMPLE_RATE)
    np.testing.assert_allclose(recorder.audio[1_000:20_000], 0.5, atol=1e-3)


def test_a_name_that_no_device_has_is_refused_with_the_names_that_there_are(portaudio: FakePortAudio) -> None:
    portaudio.add("built-in")
    portaudio.add("headset")
    Microphone("Head").check()
    with pytest.raises(AudioDeviceError, match=r"named 'no such thing': .* out of 0 'built-in', 1 'headset'"):
        Microphone("no such thing").check()


def test_the_device_is_found_again_by_its_name(portaudio: FakePortAudio) -> None:
    portaudio.add("built-in")
    portaudio.add("headset")
    with capture_from(portaudio, "1") as (recorder, _):
        first = portaudio.streams[0]
        assert first.device == 1
        first.deliver(0.1, 1_600)
        portaudio.devices.clear()
        first.running = False
        wait_until(lambda: portaudio.initialised >= 1)
        portaudio.add("headset")
        wait_for_streams(portaudio, 2)
        assert portaudio.streams[1].device == 0
        portaudio.streams[1].deliver(0.2, 1_600)
        wait_until(lambda: len(recorder.audio) > 0 and recorder.audio[-1] == np.float32(0.2))
    assert recorder.order == ["audio", "error", "gap", "audio"]
    [(n_samples, reason)] = recorder.gaps
    assert reason == "device"
    assert recorder.audio.tolist() == pytest.approx([0.1] * 1_600 + [0.0] * n_samples + [0.2] * 1_600)


def test_stopping_while_the_device_is_gone_still_reports_the_gap(portaudio: FakePortAudio) -> None:
    with capture_from(portaudio) as (recorder, _):
        portaudio.devices.clear()
        portaudio.streams[0].running = False
        wait_until(lambda: len(recorder.pieces) > 2)  # while it is away, and not once it is back
    assert recorder.gaps == [(len(recorder.audio), "device")]
    assert not recorder.audio.any()
    assert len(recorder.errors) == 1


def test_what_came_just_before_the_device_went_away_is_delivered(portaudio: FakePortAudio, clock: Clock) -> None:
    with capture_from(portaudio) as (recorder, _):
        portaudio.devices.clear()
        clock.now_s += 1.0
        portaudio.streams[0].deliver(0.1, 16_000)
        portaudio.streams[0].running = False
        wait_until(lambda: portaudio.initialised >= 1)
        clock.now_s += 1.0
        wait_until(lambda: len(recorder.audio) >= 32_000)
    assert recorder.order == ["audio", "error", "gap"]
    assert recorder.gaps == [(16_000, "device")]


def test_a_sound_system_that_fails_is_started_again_and_the_failure_is_known_meanwhile(
    portaudio: FakePortAudio, impatient: None
) -> None:
    with capture_from(portaudio) as (recorder, microphone):
        assert microphone.failure == ""
        portaudio.n_failing = 2
        portaudio.streams[0].running = False
        wait_until(lambda: microphone.failure == "went away")
        wait_for_streams(portaudio, 2)
        assert microphone.failure == "went away"
        portaudio.streams[1].deliver(0.2, 1_600)
        wait_until(lambda: microphone.failure == "" and recorder.heard.is_set())
    assert portaudio.n_failing == 0
    assert len(recorder.errors) == 1


@pytest.mark.parametrize("culprit", ["driver", "resampler", "consumer"])
def test_an_unexpected_exception_is_an_outage(
    portaudio: FakePortAudio, clock: Clock, impatient: None, monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    broken = threading.Event()

    def process(resampler: Resampler, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        if culprit == "resampler" and broken.is_set():
            raise RuntimeError("no\x1b more")
        return frames[:, 0].copy()

    def on_audio(samples: NDArray[np.float32]) -> None:
        if culprit == "consumer" and broken.is_set():
            raise RuntimeError("no\x1b more")
        recorder.callbacks.on_audio(samples)

    monkeypatch.setattr(Resampler, "process", process)
    with capture_from(portaudio, on_audio=on_audio) as (recorder, microphone):
        clock.now_s += 0.1
        portaudio.streams[0].deliver(0.1, 1_600)
        wait_until(lambda: len(recorder.audio) == 1_600)
        broken.set()
        portaudio.streams[0].error_of_active = RuntimeError("no\x1b more") if culprit == "driver" else None
        clock.now_s += 0.2
        portaudio.streams[0].deliver(0.2, 3_200)  # not delivered: a part of the gap
        wait_for_streams(portaudio, 2)
        broken.clear()
        assert microphone.failure == "failed (no more)"
        clock.now_s += 1.0
        portaudio.streams[-1].deliver(0.3, 1_600)
        wait_until(lambda: bool(recorder.audio[-1] > 0.25))
    assert recorder.order == ["audio", "error", "gap", "audio"]
    assert recorder.errors[0].code == "audio_device"
    assert "failed (no more): expected audio" in str(recorder.errors[0])
    # As long as it took by the clock.
    assert len(recorder.audio) == pytest.approx(1.3 * SAMPLE_RATE, abs=2)
    assert [reason for _, reason in recorder.gaps] == ["device"]


def test_failures_that_repeat_are_one_outage(portaudio: FakePortAudio, impatient: None) -> None:
    def on_audio(samples: NDArray[np.float32]) -> None:
        raise ValueError("never")

    with capture_from(portaudio, on_audio=on_audio) as (recorder, microphone):
        for n in range(1, 6):
            wait_for_streams(portaudio, n)
            portaudio.streams[-1].deliver(0.1, 1_600)
        wait_for_streams(portaudio, 6)
        assert microphone.failure == "failed (never)"
    assert len(recorder.errors) == 1


def test_a_device_that_comes_and_goes_is_one_outage(portaudio: FakePortAudio, impatient: None) -> None:
    with capture_from(portaudio) as (recorder, _):
        for n in range(1, 6):
            wait_for_streams(portaudio, n)
            recorder.heard.clear()
            portaudio.streams[-1].deliver(0.1, 1_600)
            assert recorder.heard.wait(WAIT_S)
            portaudio.streams[-1].running = False
        wait_for_streams(portaudio, 6)
    assert np.count_nonzero(recorder.audio) == 5 * 1_600
    assert len(recorder.errors) == 1


def test_a_gap_that_was_not_taken_is_reported_again(portaudio: FakePortAudio, clock: Clock, impatient: None) -> None:
    refused = threading.Event()

    def on_gap(n_samples: int, reason: Literal["overrun", "device"]) -> None:
        if not refused.is_set():
            refused.set()
            raise ValueError("not now")
        recorder.callbacks.on_gap(n_samples, reason)

    def on_error(error: StreamerError) -> None:
        recorder.callbacks.on_error(error)
        raise ValueError("not this either")

    with capture_from(portaudio, on_gap=on_gap, on_error=on_error) as (recorder, _):
        portaudio.devices.clear()
        clock.now_s += 1.0
        portaudio.streams[0].running = False
        wait_until(lambda: len(recorder.audio) == SAMPLE_RATE)
    assert recorder.gaps == [(SAMPLE_RATE, "device")]
    assert len(recorder.errors) == 1


@pytest.mark.parametrize("away", [False, True])
def test_a_computer_that_slept_lost_no_more_than_a_moment(
    portaudio: FakePortAudio, clock: Clock, impatient: None, *, away: bool
) -> None:
    """If the clock goes on in sleep: on Windows."""
    with capture_from(portaudio) as (recorder, _):
        portaudio.streams[0].deliver(0.1, 1_600)
        wait_until(recorder.heard.is_set)
        if away:
            portaudio.devices.clear()
            portaudio.streams[0].running = False
            wait_until(lambda: portaudio.initialised >= 1)
        clock.now_s += 8 * 3600.0
        wait_until(lambda: bool(recorder.pieces))
        if away:
            portaudio.add("desk")
        wait_for_streams(portaudio, 2)
        portaudio.streams[1].deliver(0.2, 1_600)
        wait_until(lambda: bool(recorder.audio[-1] > 0.15))
    assert recorder.pieces == [round(MAX_HOLE_S * SAMPLE_RATE)]
    assert recorder.order == ["audio", "error", "gap", "audio"]


def test_whatever_a_driver_raises_at_the_start_is_one_line(portaudio: FakePortAudio) -> None:
    portaudio.add("desk")
    microphone = Microphone()
    portaudio.error_of_open = OSError("bad\nday")
    with pytest.raises(AudioDeviceError, match=r"cannot be opened \(bad day\)"):
        microphone.start(Recorder().callbacks)
    portaudio.error_of_open, portaudio.error_of_start = None, portaudio.PortAudioError("device busy")
    with pytest.raises(AudioDeviceError, match="device busy"):
        microphone.start(Recorder().callbacks)
    assert [stream.closed for stream in portaudio.streams] == [True]
    portaudio.devices[0]["default_samplerate"] = float("nan")
    with pytest.raises(AudioDeviceError, match="cannot be listed"):
        list_microphones()


def test_bad_samples_of_a_driver_are_silence(portaudio: FakePortAudio) -> None:
    with capture_from(portaudio) as (recorder, _):
        portaudio.streams[0].deliver(float("nan"), 1_600)
        wait_until(lambda: len(recorder.audio) == 1_600)
    assert not recorder.audio.any()


def test_which_microphone_is_meant(portaudio: FakePortAudio) -> None:
    portaudio.add("Speakers", channels=0)
    portaudio.add("Headset Pro", hostapi=1)
    portaudio.add("Headset", hostapi=1)
    portaudio.add("Desk", hostapi=0)
    portaudio.add("Headset Pro", hostapi=0)
    portaudio.default = 3
    assert [info.index for info in list_microphones() if info.is_default] == [3]
    assert [info.host_api for info in list_microphones()] == ["WASAPI", "WASAPI", "MME", "MME"]
    for device, index in (("", 3), ("4", 4), ("headset", 2), ("pro", 4), ("DESK", 3)):
        with capture_from(portaudio, device):
            assert portaudio.streams[-1].device == index
    portaudio.default = -1
    assert not any(info.is_default for info in list_microphones())
    for device in ("0", "99", "nothing"):
        with pytest.raises(AudioDeviceError, match="expected a number or a part of a name"):
            Microphone(device).start(Recorder().callbacks)


# Blocks of 10 ms, one after the other: stamp of the converter's clock (0: none), overflow flag, and frames lost.
Losses = list[tuple[float, bool, float]]
MOST_FRAMES = int(MAX_HOLE_S * 48_000)


@pytest.mark.parametrize(
    "blocks",
    [
        # The flag of the first is about the time before; stamps scatter.
        [(10.0, True, 0), (10.01, False, 0), (10.05, False, 0), (10.03, False, 0), (10.04, True, 480)],
        # A jump that no flag announced, and a computer that slept.
        [(11.0, False, 0), (11.51, False, 24_000), (11.52, False, 0), (90_000.0, False, MOST_FRAMES)],
        # A clock that goes back and comes forward again has lost nothing; what is lost then is exact.
        [*((time_s, False, 0) for time_s in (10.0, 9.9, 9.78, 9.79, 10.04, 10.05)), (10.56, False, 24_000)],
        # One that stays back, by seconds or an hour, hides no later loss.
        [(9000.0, False, 0), *((8999.0 + i / 100, False, 0) for i in range(3000)), (9029.5, False, 24_000)],
        [(9000.0, False, 0), (5400.0, False, 0), (5400.01, False, 0), (5400.52, False, 24_000)],
        # Some without a stamp between others: what is lost across one is known.
        [
            *((9000 + i / 100 if i in (1, 2, 5, 7) else 0.0, False, 0) for i in range(9)),
            (9000.59, False, 24_000),
        ],
        # Without a clock the flag counts a block.
        [(0.0, False, 0), (0.0, False, 0), (0.0, True, 480), (0.0, False, 0)],
    ],
)
def test_the_loss_is_what_the_converters_clock_shows(blocks: Losses) -> None:
    losses = LossEstimator(48_000)
    found = [losses.lost_frames(time_s, 480, overflowed=overflowed) for time_s, overflowed, _ in blocks]
    assert found == [pytest.approx(n_lost) for _, _, n_lost in blocks]


def test_a_flag_with_a_clock_that_scattered_shows_the_loss_nearly() -> None:
    losses = LossEstimator(48_000)
    for time_s in (10.0, 10.01, 10.05, 10.03):
        losses.lost_frames(time_s, 480, overflowed=False)
    assert losses.lost_frames(10.54, 480, overflowed=True) == pytest.approx(24_000, abs=0.03 * 48_000)


def test_a_slow_clock_hides_no_loss() -> None:
    losses = LossEstimator(48_000)
    for i in range(100_000):
        assert losses.lost_frames(10.0 + i * 0.01 * (1 - 1e-4), 480, overflowed=False) == 0
    assert losses.lost_frames(10.5 + 1000 * (1 - 1e-4), 480, overflowed=False) == pytest.approx(24_000, rel=0.01)
