"""A client's stream: how its audio and commands get into its session, on any machine."""

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.errors import StreamerError
from streamer.events import End, Error, Event
from streamer.protocols.native import Command, StreamStart

# Most audio written to a session's buffer at a time: a large message is written piece by piece as there is room.
MAX_WRITE_SAMPLES = SAMPLE_RATE // 2

# Most bytes of a message decoded at a time, and half a second at most: at 4 kHz, 1 MiB becomes 8 MB of samples.
MAX_DECODE_BYTES = 65_536


class ClientStream(ABC):
    """A client's audio, commands and options in, the events of its session out, as `log`. Used on the server's loop.

    What comes in takes effect in the order of the calls, also if the wait of a caller is cancelled. A subclass for each
    `Backend` passes it on to the session; none of its methods waits but `is_here`.
    """

    # Whether another daemon can continue the session when this one stops.
    outlives: ClassVar[bool] = False

    def __init__(self, log: EventLog, options: StreamStart) -> None:
        """
        log : the session's events, `ready` first; it is closed at the end
        options : what the client has chosen, and how its audio is written

        Raises ProtocolError if such audio is not supported.
        """
        self.log = log
        self.options = options

        # Name of the client's token, empty without one. Set by `ClientStreams`, as `kept_since_s`: when its connection
        # broke, by the loop's clock; None while it has one.
        self.tenant = ""
        self.kept_since_s: float | None = None

        # Held by the connection that uses it.
        self.in_use = asyncio.Lock()

        # Whether it was ended for its client: by `expire`, or as the client is gone.
        self.expired = False

        self._pcm = PcmDecoder(options.format, options.sample_rate, options.channels)
        self._loop = asyncio.get_running_loop()
        # What waits for room in the session, in order: bytes as they came, decoded audio of shape (n,), commands and
        # options. Decoded audio is part of the session, whatever happens to the connection it came over.
        self._waiting: deque[memoryview | Float32Array | Command | StreamStart | Literal["finish", "end"]] = deque()
        # Set while nothing waits.
        self._idle = asyncio.Event()
        self._idle.set()
        # Whether the client, or `expire`, has ended the audio.
        self._finished = False
        # When the last message had been passed on, by the loop's clock.
        self._received_s = self._loop.time()
        log.subscribe(self._on_event)

    @property
    def complete(self) -> bool:
        """Whether the audio is complete: what comes later is ignored."""
        return self._finished or self.log.closed

    @property
    def idle_s(self) -> float:
        """Seconds for which the client has sent nothing; 0 while it need not, as it waits for us."""
        return 0.0 if self.complete or self._waiting else self._loop.time() - self._received_s

    async def write(self, data: bytes) -> None:
        """Write audio, waiting while the buffer is full."""
        if data:
            self._put(memoryview(data))
        await self._idle.wait()

    async def command(self, command: Command) -> None:
        """Execute a command at the end of the audio so far."""
        self._put(command)
        await self._idle.wait()

    async def change(self, options: StreamStart) -> None:
        """Use other options from the end of the audio so far.

        Raises UsageError, and changes nothing, if the model does not support them.
        """
        self._check(options)
        self.options = options
        self._put(options)
        await self._idle.wait()

    def finish(self) -> None:
        """End the audio: what was said becomes final, then `log` ends."""
        self._put("finish")

    def expire(self, error: StreamerError) -> None:
        """Publish why further audio is ignored, make what was said final, and end the session."""
        self.expired = True
        self.report(Error(code=error.code, message=str(error), fatal=True))
        self.finish()

    def report(self, error: Error) -> None:
        """Publish an error in the session."""
        self.log.append(error)

    def go_on(self) -> int:
        """Expect whole samples again; return how many of each channel were taken in, at the client's own rate.

        Forgets what is not decoded yet, with everything after it: the client sends it again.
        """
        if not self.complete:
            decoded = itertools.takewhile(lambda item: not isinstance(item, memoryview), tuple(self._waiting))
            self._waiting = deque(decoded)
            self._pcm.drop_rest()
            self._pass_on()
        return self._pcm.frames_decoded

    def go_on_from(self, n_frames: int) -> None:
        """Note how many frames of each channel were taken in elsewhere: the client sends what follows."""
        self._pcm.frames_decoded = n_frames

    def touch(self) -> None:
        """Note that the client has come back: while it was away it was not idle."""
        self._received_s = self._loop.time()

    def close(self) -> None:
        """End the session: the client is gone, and its audio is not transcribed any further."""
        self._abandon()
        self.log.close()

    async def is_here(self) -> bool:
        """Whether the session still runs for this process."""
        return True

    def on_room(self) -> None:
        """Go on, as there may be room in the session. Called by any thread."""
        if self._waiting:
            self._call(self._pass_on)

    # What a backend does with it.

    @property
    @abstractmethod
    def _free(self) -> int:
        """Samples for which there is room in the session; below 0 if commands have to wait, too."""

    @abstractmethod
    def _write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono, shape (n,), as many as there is room for."""

    @abstractmethod
    def _command(self, command: Command) -> None:
        """Execute a command at the end of the audio so far."""

    @abstractmethod
    def _check(self, options: StreamStart) -> None:
        """Raise UsageError if `_change` could not follow these options."""

    @abstractmethod
    def _change(self, options: StreamStart) -> None:
        """Use other options, which were checked, from the end of the audio so far."""

    @abstractmethod
    def _end(self) -> None:
        """The audio is complete: make it final, then close `log`."""

    @abstractmethod
    def _abandon(self) -> None:
        """End it without further text. Harmless the second time."""

    # What waits.

    def _put(self, item: memoryview | Command | StreamStart | Literal["finish"]) -> None:
        if self.complete:
            return
        self._finished = item == "finish"
        self._waiting.append(item)
        self._idle.clear()
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass what waits to the session, in order, as far as there is room for it."""
        while self._waiting and not self.log.closed:
            match self._waiting[0]:
                case memoryview():
                    needed = MAX_WRITE_SAMPLES
                case np.ndarray() as samples:
                    needed = min(len(samples), MAX_WRITE_SAMPLES)
                case _:
                    needed = 0
            if self._free < needed:
                return  # it is still waiting, which `on_room` must see
            self._pass_one(self._waiting.popleft())
        self._waiting.clear()
        self._received_s = self._loop.time()
        self._idle.set()

    def _pass_one(self, item: memoryview | Float32Array | Command | StreamStart | Literal["finish", "end"]) -> None:
        """Pass the next item to the session; of audio half a second, and the rest stays waiting."""
        match item:
            case memoryview() | np.ndarray():
                samples = self._decode(item) if isinstance(item, memoryview) else item
                piece, rest = samples[:MAX_WRITE_SAMPLES], samples[MAX_WRITE_SAMPLES:]
                if len(rest):
                    self._waiting.appendleft(rest)
                if len(piece):
                    self._write(piece)
            case StreamStart():
                self._change(item)
            case "finish":  # the decoder's last samples come first
                self._waiting += (self._pcm.finish(), "end")
                self._report_problems()
            case "end":
                self._end()
            case _:
                self._command(item)

    def _decode(self, data: memoryview) -> Float32Array:
        """Decode the first of some bytes, and leave the rest waiting. Returns audio, shape (n,)."""
        pcm = self._pcm
        n_frames = min(MAX_DECODE_BYTES // pcm.frame_bytes, pcm.sample_rate * MAX_WRITE_SAMPLES // SAMPLE_RATE)
        n_bytes = n_frames * pcm.frame_bytes
        if len(data) > n_bytes:
            self._waiting.appendleft(data[n_bytes:])
        samples = pcm.decode(data[:n_bytes])
        self._report_problems()
        return samples

    def _report_problems(self) -> None:
        for code, message in self._pcm.take_problems():
            self.report(Error(code=code, message=message, fatal=False))

    def _on_event(self, event: Event) -> None:
        """Let go of who waits when the session has ended. Called by any thread."""
        if isinstance(event, End):
            self._call(self._pass_on)

    def _call(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no client left
            self._loop.call_soon_threadsafe(callback)
