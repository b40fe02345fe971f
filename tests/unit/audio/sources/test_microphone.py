"""The microphone, with a PortAudio that misbehaves on demand; with a real one: tests/e2e/test_sessions.py."""

import dataclasses
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.resample import Resampler
from streamer.audio.sources.base import MAX_HOLE_S
from streamer.audio.sources.microphone import LossEstimator, Microphone, list_microphones
from streamer.constants import SAMPLE_RATE
from tests.fakes import Clock
from tests.unit.audio.support import Recorder
from tests.waiting import WAIT_S, wait_until


class FakePortAudio:
    """What we use of sounddevice, with devices and blocks under the test's control."""

    class PortAudioError(Exception):
        pass

    def __init__(self) -> None:
        self.devices: list[dict[str, Any]] = []
        self.default = 0
        self.streams: list[FakeStream] = []  # all that were opened
        # Whether PortAudio is initialised, how often it was since the start, and how often that is still to fail.
        self.up, self.initialised, self.n_failing = True, 0, 0
        # What opening a stream, or starting it, raises; None if it works.
        self.error_of_open: Exception | None = None
        self.error_of_start: Exception | None = None

    def unplug(self) -> None:
        """Take the devices away, and wait until that was noticed."""
        self.devices.clear()
        self.streams[-1].running = False
        wait_until(lambda: self.initialised >= 1)

    def add(self, name: str, channels: int = 1, sample_rate: float = 16_000.0, hostapi: int = 0) -> None:
        numbers = {"index": len(self.devices), "hostapi": hostapi, "max_input_channels": channels}
        self.devices.append({"name": name, "default_samplerate": sample_rate, **numbers})

    def query_devices(self, kind: str | None = None) -> Any:  # noqa: ANN401 - as sounddevice
        if not self.up or (kind and not 0 <= self.default < len(self.devices)):
            raise self.PortAudioError("Error querying device")
        return self.devices[self.default] if kind else self.devices

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
        self.streams.append(FakeStream(self, **arguments))
        return self.streams[-1]


class FakeStream:
    """An open input; the test calls its callback."""

    def __init__(self, portaudio: FakePortAudio, **arguments: Any) -> None:  # noqa: ANN401 - as sounddevice
        self.device: int = arguments["device"]
        self.channels: int = arguments["channels"]
        self.sample_rate: int = arguments["samplerate"]
        self.running = self.closed = False
        self.error_of_active: Exception | None = None  # what looking at it raises; None if it works
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
        assert not self.running, "PortAudio waits for its buffers"
        self.closed = True

    def deliver(self, value: float, n_frames: int = 1_600, *, overflowed: bool = False, lost_s: float = 0.0) -> None:
        """Call the callback as PortAudio does, with frames that are all `value`, after `lost_s` without a block."""
        self._time_s += lost_s
        frames = np.full((n_frames, self.channels), value, dtype=np.float32)
        times = SimpleNamespace(inputBufferAdcTime=self._time_s)
        self._callback(frames, n_frames, times, SimpleNamespace(input_overflow=overflowed))
        frames[:] = np.nan  # PortAudio uses its buffer again
        self._time_s += n_frames / self.sample_rate


@pytest.fixture
def portaudio(monkeypatch: pytest.MonkeyPatch) -> FakePortAudio:
    """A PortAudio whose devices are looked at, and opened again, at once."""
    fake = FakePortAudio()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    monkeypatch.setattr("streamer.audio.sources.microphone.REOPEN_S", 0.0)
    monkeypatch.setattr("streamer.audio.sources.microphone.LOOK_S", 0.01)
    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("base", "microphone"):
        monkeypatch.setattr(f"streamer.audio.sources.{module}.time", SimpleNamespace(monotonic=clock))
    return clock


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


def wait_for_streams(portaudio: FakePortAudio, n_streams: int) -> None:
    wait_until(lambda: len(portaudio.streams) == n_streams)


def test_blocks_that_overflowed_become_a_gap_where_they_are_missing(portaudio: FakePortAudio) -> None:
    with capture_from(portaudio) as (recorder, _):
        [stream] = portaudio.streams
        stream.deliver(0.25, overflowed=True)  # of the first block: before our time
        stream.deliver(0.25)
        stream.deliver(0.5, overflowed=True, lost_s=0.5)
        stream.deliver(np.nan)  # a driver's, taken as silence
        stream.deliver(7.0)
        wait_until(lambda: len(recorder.audio) == 5 * 1_600 + 8_000)
    assert recorder.audio.tolist() == [0.25] * 3_200 + [0.0] * 8_000 + [0.5] * 1_600 + [0.0] * 1_600 + [1.0] * 1_600
    assert recorder.gaps == [(8_000, "overrun")]


def test_a_consumer_that_stands_still_loses_audio_but_not_the_clock(portaudio: FakePortAudio) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def on_audio(samples: Float32Array) -> None:
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
    assert recorder.gaps == [(3 * SAMPLE_RATE, "overrun")]
    expected = np.repeat(np.array([0.1, 0.2, 0.0, 0.3], np.float32), [160, 9 * SAMPLE_RATE, 3 * SAMPLE_RATE, 160])
    np.testing.assert_array_equal(recorder.audio, expected)


@pytest.mark.parametrize(("named", "opened"), [(48_000.0, 48_000), (1e9, 48_000), (44_100.4, 44_100)])
def test_a_microphone_of_many_channels_at_another_rate(portaudio: FakePortAudio, named: float, opened: int) -> None:
    portaudio.add("array", channels=32, sample_rate=named)
    with capture_from(portaudio) as (recorder, _):
        [stream] = portaudio.streams
        assert (stream.channels, stream.sample_rate) == (2, opened)
        for _ in range(20):
            stream.deliver(0.5, opened // 10)
        wait_until(lambda: len(recorder.audio) > 1.8 * SAMPLE_RATE)
    np.testing.assert_allclose(recorder.audio[1_000:20_000], 0.5, atol=1e-3)


def test_the_device_is_found_again_by_its_name(portaudio: FakePortAudio) -> None:
    portaudio.add("built-in")
    portaudio.add("headset")
    with capture_from(portaudio, "1") as (recorder, _):
        [first] = portaudio.streams
        first.deliver(0.1)
        portaudio.unplug()
        portaudio.add("headset")
        wait_for_streams(portaudio, 2)
        portaudio.streams[1].deliver(0.2)
        wait_until(lambda: len(recorder.audio) > 0 and recorder.audio[-1] == np.float32(0.2))
    assert [stream.device for stream in portaudio.streams] == [1, 0]
    assert recorder.order == ["audio", "error", "gap", "audio"]
    [(n_samples, reason)] = recorder.gaps
    assert reason == "device"
    np.testing.assert_array_equal(
        recorder.audio, np.repeat(np.array([0.1, 0.0, 0.2], np.float32), [1_600, n_samples, 1_600])
    )


@pytest.mark.parametrize(("n_blocks", "patience_s"), [(0, 5.0), (1, 2.0)])
def test_a_device_that_gives_no_audio_counts_as_gone(
    portaudio: FakePortAudio, clock: Clock, n_blocks: int, patience_s: float
) -> None:
    with capture_from(portaudio) as (recorder, microphone):
        for _ in range(n_blocks):
            portaudio.streams[0].deliver(0.1)
            assert recorder.heard.wait(WAIT_S)
        clock.advance(patience_s)
        wait_until(lambda: len(portaudio.streams) == 1)
        assert microphone.failure == ""
        clock.advance(0.1)
        wait_for_streams(portaudio, 2)
    assert len(recorder.errors) == 1


@pytest.mark.parametrize("culprit", ["driver", "resampler", "consumer"])
def test_an_unexpected_exception_is_an_outage(
    portaudio: FakePortAudio, clock: Clock, monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    broken: set[str] = set()

    def fail(who: str) -> None:
        if who in broken:
            raise RuntimeError("no\x1b more")

    def on_audio(samples: Float32Array) -> None:
        fail("consumer")
        recorder.callbacks.on_audio(samples)

    def process(resampler: Resampler, frames: Float32Array) -> Float32Array:
        fail("resampler")
        return frames[:, 0].copy()

    monkeypatch.setattr(Resampler, "process", process)
    with capture_from(portaudio, on_audio=on_audio) as (recorder, microphone):
        clock.advance(0.1)
        portaudio.streams[0].deliver(0.1)
        wait_until(lambda: len(recorder.audio) == 1_600)
        broken.add(culprit)
        portaudio.streams[0].error_of_active = RuntimeError("no\x1b more") if culprit == "driver" else None
        clock.advance(0.2)
        portaudio.streams[0].deliver(0.2, 3_200)  # not delivered: a part of the gap
        wait_for_streams(portaudio, 2)
        broken.clear()
        assert microphone.failure == "failed (no more)"
        clock.advance(1.0)
        portaudio.streams[-1].deliver(0.3)
        wait_until(lambda: bool(recorder.audio[-1] > 0.25))
    assert recorder.order == ["audio", "error", "gap", "audio"]
    # As long as it took by the clock.
    assert len(recorder.audio) == pytest.approx(1.3 * SAMPLE_RATE, abs=2)


@pytest.mark.parametrize("fails", ["the device", "the consumer", "PortAudio"])
def test_failures_that_repeat_are_one_outage_of_which_the_reason_is_known(portaudio: FakePortAudio, fails: str) -> None:
    def on_audio(samples: Float32Array) -> None:
        recorder.callbacks.on_audio(samples)
        if fails == "the consumer":
            raise ValueError("never")

    with capture_from(portaudio, on_audio=on_audio) as (recorder, microphone):
        for n in range(1, 6):
            wait_for_streams(portaudio, n)
            assert microphone.failure == (
                "" if n == 1 else "failed (never)" if fails == "the consumer" else "went away"
            )
            recorder.heard.clear()
            portaudio.streams[-1].deliver(0.1)
            assert recorder.heard.wait(WAIT_S)
            portaudio.n_failing = 2 * (fails == "PortAudio")
            portaudio.streams[-1].running = False
        wait_for_streams(portaudio, 6)
    assert np.count_nonzero(recorder.audio) == 5 * 1_600
    assert len(recorder.errors) == 1


def test_a_computer_that_slept_lost_no_more_than_a_moment(portaudio: FakePortAudio, clock: Clock) -> None:
    """If the clock goes on in sleep: on Windows."""
    with capture_from(portaudio) as (recorder, _):
        portaudio.streams[0].deliver(0.1)
        portaudio.unplug()
        clock.advance(8 * 3600.0)
        wait_until(lambda: bool(recorder.pieces))
        portaudio.add("desk")
        wait_for_streams(portaudio, 2)
        portaudio.streams[1].deliver(0.2)
        wait_until(lambda: bool(recorder.audio[-1] > 0.15))
        clock.advance(8 * 3600.0)
        wait_for_streams(portaudio, 3)
        wait_until(lambda: len(recorder.pieces) == 2)
    assert recorder.pieces == [round(MAX_HOLE_S * SAMPLE_RATE)] * 2


def test_which_microphone_is_meant(portaudio: FakePortAudio) -> None:
    portaudio.add("Speakers", channels=0)
    for name, hostapi in (("Headset Pro", 1), ("Headset", 1), ("Desk", 0), ("Headset Pro", 0)):
        portaudio.add(name, hostapi=hostapi)
    portaudio.default = 3
    assert [info.index for info in list_microphones() if info.is_default] == [3]
    assert [info.host_api for info in list_microphones()] == ["WASAPI", "WASAPI", "MME", "MME"]
    for device, index in (("", 3), ("4", 4), ("headset", 2), ("pro", 4), ("DESK", 3)):
        with capture_from(portaudio, device):
            assert portaudio.streams[-1].device == index
    portaudio.default = -1
    assert not any(info.is_default for info in list_microphones())


Losses = list[tuple[float, bool, Any]]


def unflagged(*times_s: float) -> Losses:
    return [(time_s, False, 0) for time_s in times_s]


# Blocks of 10 ms, one after the other: stamp of the converter's clock (0: none), overflow flag, and frames lost.
SCENES: dict[str, Losses] = {
    "the flag of the first is about the time before; stamps scatter": [
        (10.0, True, 0),
        *unflagged(10.01, 10.05, 10.03),
        (10.04, True, 480),
    ],
    "a flag shows the loss nearly": [
        *unflagged(10.0, 10.01, 10.05, 10.03),
        (10.54, True, pytest.approx(24_000, abs=1_440)),
    ],
    "a jump, and a computer that slept": [
        (11.0, False, 0),
        (11.51, False, 24_000),
        (11.52, False, 0),
        (90_000.0, False, MAX_HOLE_S * 48_000),
    ],
    "back and forward": [*unflagged(10.0, 9.9, 9.78, 9.79, 10.04, 10.05), (10.56, False, 24_000)],
    "back for good": [*unflagged(9000.0, 5400.0, 5400.01), (5400.52, False, 24_000)],
    "a slow clock": [
        *unflagged(*(10.0 + i * 0.01 * (1 - 1e-4) for i in range(100_000))),
        (10.5 + 1000 * (1 - 1e-4), False, pytest.approx(24_000, rel=0.01)),
    ],
    "some stamps": [*unflagged(0, 9000.01, 9000.02, 0, 0, 9000.05, 0, 9000.07, 0), (9000.59, False, 24_000)],
    "no stamps": [*unflagged(0, 0), (0, True, 480), (0, False, 0)],
}


@pytest.mark.parametrize("blocks", SCENES.values(), ids=SCENES)
def test_the_loss_is_what_the_converters_clock_shows(blocks: Losses) -> None:
    losses = LossEstimator(48_000)
    found = [losses.lost_frames(time_s, 480, overflowed=overflowed) for time_s, overflowed, _ in blocks]
    assert found == [n_lost if not isinstance(n_lost, float) else pytest.approx(n_lost) for _, _, n_lost in blocks]
