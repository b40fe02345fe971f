"""A microphone, through PortAudio."""

import contextlib
import logging
import math
import queue
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.pcm import silence_bad_samples
from streamer.audio.resample import Resampler
from streamer.audio.sources.base import MAX_HOLE_S, SourceCallbacks, ThreadedSource
from streamer.constants import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, SAMPLE_RATE
from streamer.errors import AudioDeviceError
from streamer.outside import one_line

log = logging.getLogger(__name__)

MAX_CAPTURE_CHANNELS = 2  # ALSA's plug-ins offer 32 or more, all but the first two made up
FALLBACK_SAMPLE_RATE = 48_000  # for a device that names none that makes sense

NATIVE_QUEUE_S = 10.0  # audio between the PortAudio callback and the consumer
LOOK_S = 0.1  # how often the capture thread looks at the device while no audio comes
STALL_S = 2.0  # after this time without audio, the device counts as gone
FIRST_AUDIO_S = 5.0  # a sound server may take seconds before the first block
REOPEN_S = 1.0  # between two attempts to open a device that went away
REMEDY = f"plug it in again or check the sound settings, it is tried every {REOPEN_S:g} s"

CLOCK_RETURN_S = 2.0  # stamps that go back by up to this come forward again; if by more, the clock was set
CLOCK_PATIENCE = 0.05  # seconds that are given up in each second of waiting for that
CLOCK_JUMP_S = 0.2  # the time stamps of blocks scatter by some 20 ms if a sound server makes them


@dataclass(frozen=True, slots=True)
class MicrophoneInfo:
    """One audio input, as PortAudio lists it."""

    index: int
    name: str
    host_api: str
    channels: int
    default_sample_rate: int
    is_default: bool


def list_microphones() -> list[MicrophoneInfo]:
    """Return all audio inputs, in PortAudio's order. Raises AudioDeviceError if PortAudio is missing or fails."""
    sd = _sounddevice()
    try:
        devices = list(sd.query_devices())
        apis = list(sd.query_hostapis())
        default = _default_index(sd)
        return [
            MicrophoneInfo(
                index=int(device["index"]),
                name=str(device["name"]),
                host_api=str(apis[device["hostapi"]]["name"]),
                channels=int(device["max_input_channels"]),
                default_sample_rate=round(device["default_samplerate"]),
                is_default=device["index"] == default,
            )
            for device in devices
            if device["max_input_channels"] > 0
        ]
    except Exception as error:  # PortAudio's own, a name in another encoding, a sample rate that is no number
        raise AudioDeviceError(
            f"cannot list audio devices ({one_line(error):.200}): expected PortAudio's list;"
            " restart the sound server, or use --input FILE"
        ) from error


class Microphone(ThreadedSource):
    """A microphone. One that goes away is waited for: gaps keep the clock of the audio going until it is back.

    Whatever fails after the start, a driver, the resampler or the consumer, is an outage like a device that was pulled
    out: one error, the device is closed and opened again, and the time between is a gap.
    """

    def __init__(self, device: str = "") -> None:
        """Capture from the input whose number or part of whose name is `device`; empty: the system's default."""
        super().__init__(f"microphone {device!r}" if device else "microphone", realtime=True, thread_name="capture")
        self._device = device

        # The open device; None while it is away.
        self._stream: CaptureStream | None = None

        # When the device may be opened again, on the monotonic clock.
        self._next_attempt_s = -math.inf

    def check(self) -> None:
        """Raise AudioDeviceError if the device is missing, without opening it."""
        _find(self._device)

    def _open(self) -> None:
        """Open the device. Raises AudioDeviceError if it is missing or cannot be opened."""
        sd = _sounddevice()
        info = _find(self._device)
        if self._device.isdecimal():
            # Numbers change when devices come and go; the name does not.
            self._device = info.name
        self._stream = CaptureStream(sd, info)
        self.name = f"microphone {info.name!r}"
        log.info("%s: %d Hz, %d channel(s), %s", self.name, info.default_sample_rate, info.channels, info.host_api)

    def _run(self, callbacks: SourceCallbacks) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    if self._stream is not None:
                        self._capture(callbacks)
                    else:
                        self._bridge(callbacks)
                except Exception as error:  # noqa: BLE001 - whatever it was, the captions go on
                    if self._stopping.is_set():
                        return
                    self._close()
                    self._begin_outage(f"failed ({one_line(error):.200})", REMEDY, callbacks, error)
                    self._stopping.wait(LOOK_S)
        finally:
            self._close()

    def _capture(self, callbacks: SourceCallbacks) -> None:
        """Deliver what the open device records until it fails or the source stops; close it."""
        stream = self._stream
        assert stream is not None
        try:
            resampler = Resampler(stream.sample_rate, stream.channels)
            while not self._stopping.is_set():
                # First asked, then taken: what came before the end is delivered.
                fact = stream.failure()
                item = stream.take(LOOK_S)
                if isinstance(item, int):
                    self._deliver_rest(resampler, callbacks)
                    if n_lost := round(item * SAMPLE_RATE / stream.sample_rate):
                        log.warning("%s: about %.3f s of audio were lost", self.name, n_lost / SAMPLE_RATE)
                        callbacks.on_gap(n_lost, "overrun")
                    stream.n_delivered += item
                elif item is not None:
                    if len(samples := resampler.process(item)):
                        callbacks.on_audio(samples)
                        self._end_outage()
                    stream.n_delivered += len(item)
                elif fact:
                    self._deliver_rest(resampler, callbacks)
                    self._begin_outage(fact, REMEDY, callbacks)
                    return
        finally:
            self._close()
            self._accounted_until_s = stream.last_audio_s - stream.undelivered_s()

    def _deliver_rest(self, resampler: Resampler, callbacks: SourceCallbacks) -> None:
        if len(rest := resampler.flush()):
            callbacks.on_audio(rest)

    def _bridge(self, callbacks: SourceCallbacks) -> None:
        """Announce lost audio, at the pace of real time, until the device gives audio again or the source stops."""
        while not self._stopping.is_set():
            waiting_s = self._stream.undelivered_s() if self._stream is not None else 0.0
            self._announce_lost(time.monotonic() - waiting_s, callbacks)
            if waiting_s:
                return
            if self._stream is not None and self._stream.failure():
                self._close()
            if self._stream is None and time.monotonic() >= self._next_attempt_s:
                self._reopen()
                self._next_attempt_s = time.monotonic() + REOPEN_S
            self._stopping.wait(LOOK_S)

    def _reopen(self) -> None:
        try:
            self._look_again()
            self._open()
        except Exception as error:  # noqa: BLE001 - whatever it was, the next attempt follows
            log.debug("%s: not back yet: %s", self.name, one_line(error))

    def _look_again(self) -> None:
        """Let the list of devices be a new one."""
        sd = _sounddevice()
        # PortAudio lists the devices once, when it is initialised. If that failed last time, it is not.
        with contextlib.suppress(sd.PortAudioError):
            sd._terminate()
        sd._initialize()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class LossEstimator:
    """How many frames were lost before a block, from PortAudio's overflow flag and the time stamps of the blocks.

    The flag says that something was lost, and the clock of the converter, if there is one, how much. Blocks that a
    sound server held back have stamps that first go back and then forward again; nothing is lost up to the latest
    stamp before.
    """

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate

        # Whether a block has come.
        self._begun = False

        # When the next block should begin on the converter's clock; None before the first stamp.
        self._expected_s: float | None = None

    def lost_frames(self, adc_time_s: float, n_frames: int, *, overflowed: bool) -> int:
        """Return the frames lost before a block of `n_frames` whose first was recorded at `adc_time_s` (0: unknown)."""
        duration_s = n_frames / self._sample_rate
        begun, self._begun = self._begun, True
        expected_s = self._expected_s
        jump_s = 0.0
        if adc_time_s <= 0:
            # Of a block without a stamp nothing is known but its length.
            self._expected_s = None if expected_s is None else expected_s + duration_s
        elif expected_s is None or adc_time_s < expected_s - CLOCK_RETURN_S:
            self._expected_s = adc_time_s + duration_s
        else:
            self._expected_s = max(adc_time_s, expected_s - CLOCK_PATIENCE * duration_s) + duration_s
            jump_s = adc_time_s - expected_s
        if not begun:
            # The flag of the first block is about what came before the stream was open.
            return 0
        if overflowed:
            # If the clock shows nothing, a block is the least that can have been lost.
            return max(round(min(jump_s, MAX_HOLE_S) * self._sample_rate), n_frames)
        return round(min(jump_s, MAX_HOLE_S) * self._sample_rate) if jump_s > CLOCK_JUMP_S else 0


class CaptureStream:
    """One opened device: PortAudio's callback queues blocks at the device's own rate, the capture thread takes them.

    sd : sounddevice, or what has its `PortAudioError` and `InputStream` (`system.py`)
    """

    # Not PortAudio's blocking stream: it keeps 10 to 40 ms while its reader is held up, this keeps 10 s; its
    # blocks have no stamps of the converter's clock; and a read has no time limit.

    def __init__(self, sd: Any, info: MicrophoneInfo) -> None:  # noqa: ANN401
        sample_rate = info.default_sample_rate
        if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
            sample_rate = FALLBACK_SAMPLE_RATE
        self.sample_rate = sample_rate
        self.channels = min(info.channels, MAX_CAPTURE_CHANNELS)

        # When the last block arrived, or the device was opened, on the monotonic clock.
        self.last_audio_s = time.monotonic()

        self._error_type: type[Exception] = sd.PortAudioError
        self._losses = LossEstimator(sample_rate)
        self._capacity = int(sample_rate * NATIVE_QUEUE_S)

        # What was recorded, shape (n, channels), at most NATIVE_QUEUE_S of it, and how many frames were lost between.
        self._queue: queue.SimpleQueue[Float32Array | int] = queue.SimpleQueue()

        # Frames, with those lost, put there by the callback, and delivered by the capture thread. Each thread sets one.
        self._n_queued = 0
        self.n_delivered = 0

        # Frames lost since the last block that was put into the queue. The callback's own.
        self._n_lost = 0

        try:
            self._stream = sd.InputStream(
                device=info.index,
                samplerate=sample_rate,
                channels=self.channels,
                dtype="float32",
                callback=self._callback,
            )
            try:
                self._stream.start()
            except Exception:
                self.close()
                raise
        except Exception as error:
            raise AudioDeviceError(
                f"cannot open microphone {info.name!r} ({one_line(error):.200}):"
                f" expected {self.channels} channel(s) at {sample_rate} Hz; check that it is plugged in, not in use by"
                " another program and allowed in the privacy settings, or choose another of `streamer devices` with"
                " --microphone"
            ) from error

    def take(self, timeout_s: float) -> Float32Array | int | None:
        """Return the next frames, shape (n, channels), or how many were lost before them; None if nothing comes."""
        try:
            item = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, np.ndarray):
            silence_bad_samples(item)
            np.clip(item, -1.0, 1.0, out=item)
        return item

    def undelivered_s(self) -> float:
        """Return how much audio came, or was lost, and was not delivered."""
        return (self._n_queued + self._n_lost - self.n_delivered) / self.sample_rate

    def failure(self) -> str:
        """Say in a few words what is wrong with the device; nothing if it works."""
        try:
            if not self._stream.active:
                return "went away"
        except self._error_type as error:
            return f"failed ({one_line(error):.200})"
        limit_s = STALL_S if self._n_queued else FIRST_AUDIO_S
        silent_s = time.monotonic() - self.last_audio_s
        return f"gave no audio for {limit_s:g} s" if silent_s > limit_s else ""

    def close(self) -> None:
        """Let go of the device, whatever state it is in."""
        with contextlib.suppress(Exception):
            self._stream.abort()
        with contextlib.suppress(Exception):
            self._stream.close()

    def _callback(self, indata: Float32Array, n_frames: int, times: Any, status: Any) -> None:  # noqa: ANN401
        # PortAudio's thread: nothing that can wait.
        self.last_audio_s = time.monotonic()
        self._n_lost += self._losses.lost_frames(times.inputBufferAdcTime, n_frames, overflowed=status.input_overflow)
        if self._n_queued + n_frames - self.n_delivered > self._capacity:
            # The capture thread is held up by its consumer; what waits is older and keeps its place.
            self._n_lost += n_frames
            return
        if self._n_lost:
            self._queue.put(self._n_lost)
            self._n_queued += self._n_lost
            self._n_lost = 0
        self._n_queued += n_frames
        self._queue.put(indata.copy())


def _find(device: str) -> MicrophoneInfo:
    microphones = list_microphones()
    if not microphones:
        raise AudioDeviceError(
            "no microphone found: expected an audio input; plug one in, check that the sound server is running and that"
            " this user may record, or use --input FILE"
        )
    default = next((microphone for microphone in microphones if microphone.is_default), microphones[0])
    if not device:
        return default
    number, wanted = int(device) if device.isdecimal() else None, device.casefold()
    matches = [
        microphone for microphone in microphones if microphone.index == number or wanted in microphone.name.casefold()
    ]
    if not matches:
        known = ", ".join(f"{microphone.index} {microphone.name!r}" for microphone in microphones)
        raise AudioDeviceError(
            f"no microphone matches {device!r:.80}: expected a number or a part of a name; choose one of {known:.400}"
        )

    def preference(microphone: MicrophoneInfo) -> tuple[bool, bool, bool]:
        # Windows lists a device once for each of its sound systems: stay with the default one's.
        named = microphone.name.casefold() == wanted
        return microphone.index != number, not named, microphone.host_api != default.host_api

    return min(matches, key=preference)


def _default_index(sd: Any) -> int:  # noqa: ANN401 - an untyped module
    try:
        return int(sd.query_devices(kind="input")["index"])
    except (sd.PortAudioError, ValueError):
        return -1


def _sounddevice() -> Any:  # noqa: ANN401 - an untyped module
    # Imported late: without the library, everything but the microphone still works.
    try:
        import sounddevice
    except Exception as error:  # noqa: BLE001 - OSError, or PortAudio's own error, which has no name before the import
        remedy = (
            "install it with apt-get install libportaudio2 (Debian, Ubuntu) or dnf install portaudio (Fedora)"
            if sys.platform.startswith("linux")
            else "run pip install --force-reinstall sounddevice, whose wheel contains it"
        )
        raise AudioDeviceError(
            f"cannot load PortAudio ({one_line(error):.200}): expected for microphones; {remedy}, or use --input FILE"
        ) from None
    return sounddevice
