"""What a source of audio is, and the thread that most of them need."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError, StreamerError

log = logging.getLogger(__name__)

# How long stop() waits for the source's thread: for a block, or an attempt to open a device. One that is blocked for
# longer (a driver that hangs) is a daemon and left behind.
STOP_TIMEOUT_S = 5.0

STEADY_S = 10.0  # what was back for less than this is still in the same outage: no further error

# A longer jump of a clock is one that was set, or a computer that slept: no speech of that length was lost. With the
# 30 s that an open segment may still need, this much silence fits into the smallest input.buffer_s.
MAX_HOLE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCallbacks:
    """What a source calls. All are called from the source's own thread, one at a time."""

    # Further samples, 16 kHz mono float32, shape (n,). It may block, which holds the source back.
    on_audio: Callable[[Float32Array], None]

    # `n_samples` of audio (16 kHz, more than 0) were lost here, before whatever on_audio delivers next. The consumer
    # puts silence in their place, so that positions stay those of the clock. While a device is away this is called
    # again and again, for the time that has passed since the last call: adjoining calls with one reason are one gap.
    on_gap: Callable[[int, Literal["overrun", "device"]], None]

    # Something is wrong, and the source goes on.
    on_error: Callable[[StreamerError], None]

    # The source has ended by itself, with the error if it failed. Called once, and nothing is delivered after it.
    on_end: Callable[[StreamerError | None], None]


class Source(Protocol):
    """A source of 16 kHz mono audio."""

    @property
    def name(self) -> str:
        """What a person would call it: the device's name, the file's path."""

    @property
    def realtime(self) -> bool:
        """Whether audio comes at its own pace, so that a consumer that is too slow must lose some."""

    @property
    def failure(self) -> str:
        """What keeps audio from coming, in a few words; empty while it comes, and after an end without error."""

    def start(self, callbacks: SourceCallbacks) -> None:
        """Begin to deliver. Raises StreamerError if it cannot be opened; call it once."""

    def stop(self) -> None:
        """Stop delivering, without on_end, and let go of the device or file. Not for the source's own thread."""


class ThreadedSource:
    """A source whose audio comes from a thread; a subclass says what to open and what the thread does."""

    stop_timeout_s = STOP_TIMEOUT_S

    def __init__(self, name: str, *, realtime: bool, thread_name: str) -> None:
        self.name = name
        self.realtime = realtime

        # What keeps audio from coming, in a few words; empty while it comes. Set by the thread only.
        self.failure = ""

        # When it came back last, on the monotonic clock.
        self._back_s = -math.inf

        # Up to when audio was delivered or announced as lost, on the same clock; 0 before there was any.
        self._accounted_until_s = 0.0

        # Set by stop(): the thread returns as soon as it can.
        self._stopping = threading.Event()

        # The thread, from start() on.
        self._thread: threading.Thread | None = None

        self._thread_name = thread_name

    def start(self, callbacks: SourceCallbacks) -> None:
        """Begin to deliver. Raises StreamerError if it cannot be opened; call it once."""
        assert self._thread is None, f"{self.name} was started before"
        self._open()
        self._thread = threading.Thread(target=self._main, args=(callbacks,), name=self._thread_name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop delivering; on_end is not called. May be called again, and from any thread but the source's own."""
        self._stopping.set()
        thread = self._thread
        if thread is None:
            return
        assert thread is not threading.current_thread(), f"{self.name} cannot be stopped from its own thread"
        thread.join(self.stop_timeout_s)
        if thread.is_alive():
            log.debug("%s: its thread is blocked and left behind", self.name)

    def _open(self) -> None:
        """Open what audio comes from, in the thread that calls start(). Raises StreamerError."""

    def _run(self, callbacks: SourceCallbacks) -> None:
        """Deliver until the end or until self._stopping is set. Raises StreamerError if it fails."""
        raise NotImplementedError

    def _begin_outage(self, fact: str, remedy: str, callbacks: SourceCallbacks, error: Exception | None = None) -> None:
        """Note what is wrong, and say so unless it is the outage that was announced before."""
        announced = bool(self.failure) or time.monotonic() - self._back_s < STEADY_S
        self.failure = fact
        # on_error logs what is announced, but not the traceback of a bug.
        level = logging.DEBUG if announced or error is None else logging.WARNING
        log.log(level, "%s: %s", self.name, fact, exc_info=error)
        if announced:
            return
        try:
            callbacks.on_error(AudioDeviceError(f"{self.name} {fact}: expected audio; {remedy}"))
        except Exception:
            log.exception("%s: its error could not be published", self.name)

    def _end_outage(self) -> None:
        """Note that audio comes."""
        if self.failure:
            log.info("%s: back", self.name)
            self.failure, self._back_s = "", time.monotonic()

    def _announce_lost(self, until_s: float, callbacks: SourceCallbacks, speed: float = 1.0) -> None:
        """Announce the audio that is missing up to `until_s`, on the monotonic clock."""
        # The clock has jumped if the computer slept, or a driver stood still.
        self._accounted_until_s = max(self._accounted_until_s, until_s - MAX_HOLE_S)
        n_missing = int((until_s - self._accounted_until_s) * SAMPLE_RATE * speed)
        if n_missing > 0:
            callbacks.on_gap(n_missing, "device")
            self._accounted_until_s += n_missing / SAMPLE_RATE / speed

    def _main(self, callbacks: SourceCallbacks) -> None:
        failure: StreamerError | None = None
        try:
            self._run(callbacks)
        except StreamerError as error:
            failure = error
        except Exception as error:  # the thread must not die in silence, whatever a driver or a callback raises
            log.exception("%s: its thread failed", self.name)
            failure = AudioDeviceError(f"{self.name} failed ({error}): expected audio; see the log, and start it again")
        if not self._stopping.is_set():
            log.info("%s: ended", self.name)
            if failure is not None:
                self.failure = f"ended with an error ({failure.code})"
            callbacks.on_end(failure)
