"""One application's sound, on Linux: its streams to PulseAudio, or to PipeWire with pipewire-pulse.

`pactl` lists the streams and reports changes; a `parec` for each records what that stream plays, beside the output that
people listen to. Both serve both sound servers; PipeWire's own tools serve one.
"""

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time

import msgspec
import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.pcm import silence_bad_samples
from streamer.audio.sources.base import MAX_HOLE_S, STOP_TIMEOUT_S, SourceCallbacks, ThreadedSource
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError
from streamer.outside import one_line

PREFIX = "app:"

MAX_NAME = 80  # characters of an application's name
MAX_STREAMS = 16  # of one application that are recorded; a browser has one for each tab that plays
MAX_LIST_BYTES = 8 << 20
LIST_TIMEOUT_S = 5.0  # a sound server answers at once or never

READ_BYTES = 65_536
LOOK_S = 0.1  # how long audio is waited for, and the least time between two lists
RETRY_S = 1.0  # before what failed is tried again
PATIENCE_SAMPLES = SAMPLE_RATE // 4  # how much audio of one stream waits for that of another
PAUSE_S = 0.5  # streams that give no audio for this time are paused: silence

# Without the property, WirePlumber connects a recorder whose stream ended to another source, such as the microphone.
_RECORD = (
    f"parec --raw --format=float32le --rate={SAMPLE_RATE} --channels=1 --latency-msec=50"
    " --property=node.dont-reconnect=true"
).split()


class PlaybackStream(msgspec.Struct, frozen=True):
    """Something that an application plays, as `pactl` lists it."""

    index: int
    properties: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The application's name, its program's and its node's, each in one line, as far as they are known."""
        keys = ("application.name", "application.process.binary", "node.name")
        texts = (self.properties.get(key, "") for key in keys)
        # pactl prints (null) for text that is not ASCII.
        return tuple(dict.fromkeys(one_line(text)[:MAX_NAME] for text in texts if text.strip() not in ("", "(null)")))


def list_streams() -> list[PlaybackStream]:
    """Return what applications play now. Raises AudioDeviceError if that cannot be found out."""
    if not sys.platform.startswith("linux"):
        other = "a virtual device such as BlackHole" if sys.platform == "darwin" else "--input system"
        raise AudioDeviceError(
            f"cannot capture one application's sound here: expected Linux with PipeWire or PulseAudio; use {other}"
        )
    with contextlib.closing(_Tool("pactl", "--format=json", "list", "sink-inputs")) as tool:
        impatience = threading.Timer(LIST_TIMEOUT_S, tool.kill)
        impatience.start()
        answer = tool.output.read(MAX_LIST_BYTES)
        impatience.cancel()
    try:
        return msgspec.json.decode(answer.decode("utf-8", "replace"), type=list[PlaybackStream])
    except (msgspec.DecodeError, RecursionError) as error:
        raise AudioDeviceError(
            f"cannot list what applications play ({one_line(error) if answer else 'no answer'}): expected pactl 16 or"
            " newer; check that PulseAudio, or PipeWire with pipewire-pulse, is running"
        ) from None


def describe_applications(streams: list[PlaybackStream]) -> str:
    """Return the names of applications that play, such as `'Firefox' (firefox-bin), 'mpv'`."""
    names = dict.fromkeys(stream.names for stream in streams if stream.names)
    text = ", ".join(repr(first) + "".join(f" ({name})" for name in more) for first, *more in names)
    return f"{text:.400}" or "nothing"


class Application(ThreadedSource):
    """What one application plays: all its streams. While it plays nothing, gaps keep the clock going until it does."""

    def __init__(self, application: str) -> None:
        """Capture the application that has this name, or whose program has it; upper and lower case are the same."""
        super().__init__(f"application {one_line(application)!r:.80}", realtime=True, thread_name="application")
        self._application = one_line(application)[:MAX_NAME].casefold()

        # `pactl subscribe`, None while no sound server answers, and what records, by the number of its stream.
        self._reports: _Tool | None = None
        self._recorders: dict[int, _Tool] = {}
        # Streams whose recorders have ended without audio since the streams were listed.
        self._refused: set[int] = set()
        self._selector = selectors.DefaultSelector()

        # When the streams were listed, and are listed next, on the monotonic clock.
        self._listed_s = self._list_at_s = 0.0

    def check(self) -> None:
        """Raise AudioDeviceError if applications cannot be captured here; this one need not play yet."""
        playing = describe_applications(list_streams())
        if not self._application:
            raise AudioDeviceError(f"{PREFIX} names no application: expected a name behind it; playing now: {playing}")

    def _open(self) -> None:
        self.check()

    def _run(self, callbacks: SourceCallbacks) -> None:
        self._accounted_until_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                try:
                    if time.monotonic() >= self._list_at_s:
                        self._look(callbacks)
                    self._deliver(callbacks, paused=not self._read())
                except Exception as error:  # noqa: BLE001 - whatever it was, the captions go on
                    self._close()
                    bug = None if isinstance(error, AudioDeviceError) else error
                    self._begin_outage(f"failed ({one_line(error)})", "it is tried every second", callbacks, bug)
                    self._announce_lost(time.monotonic(), callbacks)
                    self._stopping.wait(RETRY_S)
        finally:
            self._close()

    def _look(self, callbacks: SourceCallbacks) -> None:
        """Begin to record further streams of the application, and end that of those that are gone."""
        if self._reports is None:
            self._selector = selectors.DefaultSelector()
            self._reports = _Tool("pactl", "subscribe")
            self._selector.register(self._reports.output, selectors.EVENT_READ)
        streams = list_streams()
        self._listed_s, self._list_at_s = time.monotonic(), np.inf
        own = [s.index for s in streams if self._application in map(str.casefold, s.names)][:MAX_STREAMS]
        for index in self._recorders.keys() - own:
            self._recorders[index].kill()
        for index in set(own) - self._recorders.keys():
            recorder = self._recorders[index] = _Tool(*_RECORD, f"--monitor-stream={index}")
            self._selector.register(recorder.output, selectors.EVENT_READ, recorder)
        if not self._recorders:
            remedy = f"captions begin when it plays; playing now: {describe_applications(streams)}"
            self._begin_outage("plays nothing", remedy, callbacks)
        elif self._recorders.keys() <= self._refused:
            remedy = f"it is tried every second; parec --monitor-stream={min(self._refused)} says more"
            self._begin_outage("cannot be recorded", remedy, callbacks)
        self._refused.clear()

    def _read(self) -> bool:
        """Take what recorders and reports wrote; wait for it a little. Return whether anything came."""
        ready = self._selector.select(LOOK_S)
        for key, _ in ready:
            recorder: _Tool | None = key.data
            data = os.read(key.fd, READ_BYTES)
            if recorder is None:
                if not data:
                    raise AudioDeviceError("the sound server went away")
                if b"sink-input" in data:
                    self._list_at_s = min(self._list_at_s, self._listed_s + LOOK_S)
            elif data:
                recorder.waiting += data
                recorder.delivered = True
            else:
                recorder.ended = True
                self._selector.unregister(key.fileobj)
                self._list_at_s = min(self._list_at_s, time.monotonic() + RETRY_S)
        return bool(ready)

    def _deliver(self, callbacks: SourceCallbacks, *, paused: bool) -> None:
        """Deliver what all streams have, and what waited for others long enough; silence while nothing comes."""
        recorders = list(self._recorders.values())
        lengths = [recorder.n_samples for recorder in recorders] or [0]
        n_samples = max(min(lengths), max(lengths) - PATIENCE_SAMPLES)
        now_s = time.monotonic()
        if not recorders:
            self._announce_lost(now_s, callbacks)
        elif paused:
            self._accounted_until_s = max(self._accounted_until_s, now_s - MAX_HOLE_S)
            n_samples = max(n_samples, int((now_s - self._accounted_until_s - PAUSE_S) * SAMPLE_RATE))
        if n_samples > 0:
            samples = sum((recorder.take(n_samples) for recorder in recorders), np.zeros(n_samples, dtype=np.float32))
            self._accounted_until_s += n_samples / SAMPLE_RATE
            self._end_outage()
            callbacks.on_audio(samples.clip(-1.0, 1.0))
        for index, recorder in self._recorders.copy().items():
            if recorder.ended and not recorder.n_samples:
                self._recorders.pop(index).close()
                if not recorder.delivered:
                    self._refused.add(index)

    def _close(self) -> None:
        """End the other processes."""
        self._selector.close()
        for tool in (self._reports, *self._recorders.values()):
            if tool is not None:
                tool.close()
        self._reports, self._list_at_s = None, 0.0
        self._recorders.clear()


class _Tool:
    """One of PulseAudio's tools in a process of its own, and the audio from it that was not delivered yet."""

    def __init__(self, *command: str) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C is not for it: what was said last is captured first
            )
        except OSError as error:
            raise AudioDeviceError(
                f"cannot run {command[0]} ({one_line(error)}): expected for one application's sound; install"
                " pulseaudio-utils (apt-get, dnf) or libpulse (pacman)"
            ) from None
        assert self._process.stdout is not None
        self.output, self.kill = self._process.stdout, self._process.kill
        self.waiting = bytearray()

        # Whether any audio came, and whether nothing further comes.
        self.delivered = self.ended = False

    @property
    def n_samples(self) -> int:
        return len(self.waiting) // 4

    def take(self, n_samples: int) -> Float32Array:
        """Return the next `n_samples`, with silence in place of those that are missing, and remove them."""
        data = bytes(self.waiting[: 4 * min(n_samples, self.n_samples)])
        del self.waiting[: len(data)]
        samples = np.frombuffer(data.ljust(4 * n_samples, b"\0"), dtype="<f4").astype(np.float32)
        silence_bad_samples(samples)
        return samples

    def close(self) -> None:
        self.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self.output.close()
