"""Clients' streams: how their audio gets into a session, on any machine."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.constants import SAMPLE_RATE
from streamer.daemon.backend import Session, ignore
from streamer.errors import IdleError
from streamer.events import End, Error, Event
from streamer.protocols.native import Command, StreamStart

# Most audio written to a session's buffer at a time: a large message is written piece by piece as there is room.
MAX_WRITE_SAMPLES = SAMPLE_RATE // 2

# Most bytes of a message decoded at a time, and half a second at most: at 4 kHz, 1 MiB becomes 8 MB of samples.
MAX_DECODE_BYTES = 65_536


class ClientStream:
    """One client's audio and commands on their way to its session, used on the server's loop.

    They take effect in the order of the calls, also if a caller's wait is cancelled.
    """

    def __init__(self, session: Session, pcm: PcmDecoder, tenant: str) -> None:
        """Pass a client's audio, decoded by `pcm`, to a session. `tenant` is the name of the client's token."""
        self.session = session
        self.feed = session.feed
        self.tenant = tenant
        self._pcm = pcm
        pcm.frames_decoded = session.n_frames
        self._loop = asyncio.get_running_loop()
        # What waits for room in the session, in order: bytes as they came, decoded audio of shape (n,), commands and
        # options. Decoded audio is part of the session, whatever happens to the connection it came over.
        self._waiting: deque[memoryview | Float32Array | Command | StreamStart | Literal["finish", "end"]] = deque()
        # Set while nothing waits.
        self._idle = asyncio.Event()
        self._idle.set()
        # Whether the audio is complete, by the client's word or by `expire`: what comes later is ignored.
        self.complete = False
        # Whether it was ended by `expire`.
        self.expired = False
        # When the last message had been passed on, by the loop's clock.
        self._received_s = self._loop.time()
        # Set when `end` was published.
        self._ended = asyncio.Event()
        session.on_room = self._on_room
        self.feed.subscribe(self._on_event)
        if self.feed.closed:  # the client comes back for the last events
            self.complete = True
            self._ended.set()

    @property
    def options(self) -> StreamStart:
        """Options that the client has chosen."""
        return self.session.options

    @property
    def idle_s(self) -> float:
        """Seconds for which the client has sent nothing; 0 while it need not, as it waits for us."""
        return 0.0 if self.complete or self._waiting else self._loop.time() - self._received_s

    async def write(self, data: bytes) -> None:
        """Write audio, waiting while the buffer is full; ignored after `finish`."""
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
        self.session.check(options)
        self.session.options = options
        self._put(options)
        await self._idle.wait()

    async def finish(self) -> None:
        """End the audio; return when everything final, and `end`, was published."""
        self._put("finish")
        await self._ended.wait()

    def expire(self, message: str) -> None:
        """Publish why further audio is ignored, make what was said final, and end the session."""
        self.expired = True
        self.session.report(Error(code=IdleError.code, message=message, fatal=True))
        self._put("finish")

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

    def touch(self) -> None:
        """Note that the client has come back: while it was away it was not idle."""
        self._received_s = self._loop.time()

    def close(self) -> None:
        """End the session: the client is gone, and its audio is not transcribed any further."""
        self.session.abandon()
        # The session and the log forget the stream: it is freed now, and not by the next garbage collection.
        self.session.on_room = self.session.on_lost = ignore
        self.feed.close()

    def _put(self, item: memoryview | Command | StreamStart | Literal["finish"]) -> None:
        if self.complete:
            return
        self.complete = item == "finish"
        self._waiting.append(item)
        self._idle.clear()
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass what waits to the session, in order, as far as there is room for it."""
        while self._waiting and not self._ended.is_set():
            match self._waiting[0]:
                case memoryview():
                    needed = MAX_WRITE_SAMPLES
                case np.ndarray() as samples:
                    needed = min(len(samples), MAX_WRITE_SAMPLES)
                case _:
                    needed = 0
            if self.session.free < needed:
                return  # it is still waiting, which `_on_room` must see
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
                    self.session.write(piece)
            case StreamStart():
                self.session.change(item)
            case "finish":  # the decoder's last samples come first
                self._waiting += (self._pcm.finish(), "end")
                self._report_problems()
            case "end":
                self.session.end()
            case _:
                self.session.command(item)

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
            self.session.report(Error(code=code, message=message, fatal=False))

    def _on_room(self) -> None:
        """Go on when there is room in the buffer: called by the engine's threads."""
        if self._waiting:
            self._call(self._pass_on)

    def _on_event(self, event: Event) -> None:
        """Take a published event: called by any thread."""
        if isinstance(event, End):
            self._call(self._end)

    def _end(self) -> None:
        self._ended.set()
        self._pass_on()

    def _call(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no client left
            self._loop.call_soon_threadsafe(callback)
