"""Clients' streams: how their audio gets into a session, on any machine, and how many may be open."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.errors import BusyError, IdleError
from streamer.events import End, Error, Event
from streamer.protocols.native import Command, SessionOptions
from streamer.settings.table import ServerSettings

# Random bytes in the name of a session: a client that knows the name can resume the stream, so it must not be guessed.
SESSION_NAME_BYTES = 24

# Most audio written to a session's buffer at a time: a large message is written piece by piece as there is room.
MAX_WRITE_SAMPLES = SAMPLE_RATE // 2

# Most bytes of a message decoded at a time, and half a second at most: at 4 kHz, 1 MiB becomes 8 MB of samples.
MAX_DECODE_BYTES = 65_536

# If all slots are taken, a stream that has received nothing for this long is ended for a new client.
SPARE_S = 30.0


class Buffer(Protocol):
    """A session's audio that is not processed yet."""

    # Called, by any thread, when there may be room.
    on_room: Callable[[], None] | None

    @property
    def free(self) -> int:
        """Samples for which there is room; below 0 if commands have to wait, too."""


class RunningSession(Protocol):
    """What audio and commands are passed to, such as `engine.runner.SessionRunner`. No method waits."""

    @property
    def ring(self) -> Buffer: ...

    def write(self, samples: Float32Array) -> None: ...

    def flush(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def clear(self) -> None: ...

    def end(self) -> None: ...


class StreamSlots:
    """The streams that are open: at most `server.max_streams`. Used on the server's loop only.

    A stream whose connection broke keeps its slot for `server.resume_s`, unless a new client needs it. A stream that
    receives nothing is ended after `server.idle_s`, or after SPARE_S if a new client needs its slot.
    """

    def __init__(self, settings: ServerSettings) -> None:
        # May be replaced.
        self.settings = settings
        # By name.
        self.streams: dict[str, ClientStream] = {}
        # Timers that abandon the streams whose connection broke, the oldest first.
        self._kept: dict[str, asyncio.TimerHandle] = {}
        # Timers that check whether the others have received something.
        self._watches: dict[str, asyncio.TimerHandle] = {}

    def spare(self, *, n_opening: int = 0) -> str | None:
        """Return the stream to end for a new one; None if there is a free slot. Raises BusyError.

        n_opening : streams that are being opened
        """
        most = self.settings.max_streams
        if sum(not stream.expired for stream in self.streams.values()) + n_opening < most:
            return None
        kept = next((name for name in self._kept if not self.streams[name].expired), None)
        if kept is not None:
            return kept
        idle_s = {name: stream.idle_s for name, stream in self.streams.items()}
        longest = max(idle_s, key=idle_s.__getitem__, default=None)
        if longest is None or idle_s[longest] < SPARE_S:
            raise BusyError(
                f"all {most} places for clients' audio are taken: try again later, or raise server.max_streams"
            )
        return longest

    def give_up(self, name: str) -> None:
        """End a stream for a new one: see `spare`."""
        stream = self.streams.get(name)
        if stream is None:
            return
        if name in self._kept:
            stream.abandon()
        else:
            stream.expire(
                f"nothing was sent for {stream.idle_s:.0f} s, and another client needs the place (all"
                f" {self.settings.max_streams} of server.max_streams are taken): send audio as it is spoken,"
                " silence too, or begin anew when there is some"
            )

    def add(self, name: str, stream: "ClientStream") -> None:
        self.streams[name] = stream
        self._watch(name)

    def come_back(self, name: str, tenant: str) -> "ClientStream | None":
        """Return a stream whose client is connected again; None if that tenant has no stream of that name."""
        stream = self.streams.get(name)
        if stream is None or stream.tenant != tenant:
            return None
        self._cancel_timers(name)
        stream.touch()
        self._watch(name)
        return stream

    def keep(self, name: str) -> None:
        """Abandon a stream whose connection broke, unless its client comes back in time."""
        self._cancel_timers(name)
        stream, resume_s = self.streams.get(name), self.settings.resume_s
        if stream is None:
            return  # another gateway has its session now
        if resume_s:
            self._kept[name] = asyncio.get_running_loop().call_later(resume_s, stream.abandon)
        else:
            stream.abandon()

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """Abandon the streams that are kept for tenants other than these."""
        for name in [name for name in self._kept if self.streams[name].tenant not in tenants]:
            self.streams[name].abandon()

    def remove(self, name: str) -> None:
        self.streams.pop(name, None)
        self._cancel_timers(name)

    def _watch(self, name: str) -> None:
        """End a stream if it has received nothing for too long, else check again later."""
        stream, limit_s = self.streams[name], self.settings.idle_s
        idle_s = stream.idle_s
        if idle_s >= limit_s:
            stream.expire(
                f"nothing was sent for {idle_s:.0f} s (server.idle_s is {limit_s:g}): expected audio as it is spoken,"
                " silence too, or a command; begin anew when there is some"
            )
        elif not stream.complete:
            self._watches[name] = asyncio.get_running_loop().call_later(limit_s - idle_s, self._watch, name)

    def _cancel_timers(self, name: str) -> None:
        for timers in (self._kept, self._watches):
            timer = timers.pop(name, None)
            if timer is not None:
                timer.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOwner:
    """What a stream calls on the side that opened its session.

    choose : returns a function that changes the session to other options; raises ConfigError
    report : publishes an error in the session
    keep : is called when the connection broke
    leave : is called once, at the end
    tenant : name of the client's token
    outlives : see `server.interfaces.ClientStream`
    """

    choose: Callable[[SessionOptions], Callable[[], None]]
    report: Callable[[Error], object]
    keep: Callable[[], None]
    leave: Callable[[], None]
    tenant: str = ""
    outlives: bool = False


class ClientStream:
    """One client's audio on its way to text (see `server.interfaces.ClientStream`), used on the server's loop."""

    def __init__(
        self, session: RunningSession, log: EventLog, pcm: PcmDecoder, options: SessionOptions, owner: StreamOwner
    ) -> None:
        """Pass a client's audio, decoded by `pcm`, to a session whose events come in `log`."""
        self._session = session
        self.feed = log
        self._pcm = pcm
        self.options = options
        self._owner = owner
        self.tenant, self.outlives = owner.tenant, owner.outlives
        self._loop = asyncio.get_running_loop()
        # What waits for room in the buffer, in order: bytes as they came, decoded audio of shape (n,), and calls to
        # make after those. Decoded audio is part of the session, whatever happens to the connection it came over.
        self._waiting: deque[memoryview | Float32Array | Callable[[], None]] = deque()
        # Set while nothing waits.
        self._idle = asyncio.Event()
        self._idle.set()
        # Whether the audio is complete, by the client's word or by `expire`: what comes later is ignored.
        self.complete = False
        # Whether it was ended by `expire`.
        self.expired = False
        # Whether it was abandoned.
        self._left = False
        # When the last message had been passed on, by the loop's clock.
        self._received_s = self._loop.time()
        # Set when `end` was published.
        self._ended = asyncio.Event()
        session.ring.on_room = self._on_room
        log.subscribe(self._on_event)
        if log.closed:  # the client comes back for the last events
            self.complete = True
            self._ended.set()

    @property
    def idle_s(self) -> float:
        """Seconds for which the client has sent nothing; 0 while it need not, as it waits for us."""
        return 0.0 if self.complete or self._waiting else self._loop.time() - self._received_s

    async def write(self, data: bytes) -> None:
        if data:
            self._put(memoryview(data))
        await self._idle.wait()

    async def command(self, command: Command) -> None:
        self._put(getattr(self._session, command))
        await self._idle.wait()

    async def change(self, options: SessionOptions) -> None:
        """Go on with other options from the end of the audio so far. Raises ConfigError if that is impossible."""
        change = self._owner.choose(options)
        self.options = options
        self._put(change)
        await self._idle.wait()

    async def finish(self) -> None:
        self._complete_audio()
        await self._ended.wait()

    def expire(self, message: str) -> None:
        """Publish why further audio is ignored, make what was said final, and end the session."""
        self.expired = True
        self.report(Error(code=IdleError.code, message=message, fatal=True))
        self._complete_audio()

    def report(self, error: Error) -> None:
        self._owner.report(error)

    def go_on(self) -> int:
        """Expect whole samples again; return how many were taken in, at the client's own rate.

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

    def keep(self) -> None:
        """Note that the connection broke: the client may come back for a while."""
        if not self._left:
            self._owner.keep()

    def abandon(self) -> None:
        """Note that the client is gone: its audio is not transcribed any further."""
        if self._left:
            return
        self._left = True
        self._owner.leave()
        # The session and the log forget the stream: it is freed now, and not by the next garbage collection.
        self._session.ring.on_room = None
        self.feed.close()

    def _complete_audio(self) -> None:
        if not self.complete:
            self._put(self._flush)
            self._put(self._session.end)
            self.complete = True

    def _flush(self) -> None:
        """Take the last samples out of the decoder."""
        self._waiting.appendleft(self._pcm.finish())
        self._report_problems()

    def _put(self, item: memoryview | Callable[[], None]) -> None:
        if self.complete:
            return
        self._waiting.append(item)
        self._idle.clear()
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass what waits to the session, in order, as far as there is room for it."""
        while self._waiting and not self._ended.is_set():
            item = self._waiting[0]
            needed = MAX_WRITE_SAMPLES if isinstance(item, memoryview) else 0 if callable(item) else len(item)
            if self._session.ring.free < min(needed, MAX_WRITE_SAMPLES):
                return  # it is still waiting, which `_on_room` must see
            self._waiting.popleft()
            if callable(item):
                item()
                continue
            samples = self._decode(item) if isinstance(item, memoryview) else item
            piece, rest = samples[:MAX_WRITE_SAMPLES], samples[MAX_WRITE_SAMPLES:]
            if len(rest):
                self._waiting.appendleft(rest)
            if len(piece):
                self._session.write(piece)
        self._waiting.clear()
        self._received_s = self._loop.time()
        self._idle.set()

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
