"""Clients' own streams: how their audio gets into a session, wherever that is, and how many there may be."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.pcm import PcmDecoder
from streamer.engine.eventlog import EventLog
from streamer.errors import BusyError, IdleError
from streamer.events import End, Error, Event
from streamer.protocols.native import Command, SessionOptions
from streamer.settings.table import ServerSettings

# Bytes of chance in the name of a session: who knows it can go on with the stream, so nobody must be able to guess it.
SESSION_NAME_BYTES = 24

# Audio put into a session's buffer at a time where it waits for room: a large message moves on as there is some.
MAX_WRITE_SAMPLES = SAMPLE_RATE // 2

# A message is decoded in pieces of at most so many bytes and half a second: at 4 kHz, 1 MiB becomes 8 MB of samples.
MAX_DECODE_BYTES = 65_536

# Where all places are taken, who has sent nothing for so long has to leave for a newcomer.
SPARE_S = 30.0


class Buffer(Protocol):
    """Where a session's audio waits to be heard."""

    # Called, by any thread, when there may be room.
    on_room: Callable[[], None] | None

    @property
    def free(self) -> int:
        """Samples for which there is room; below 0 where commands have to wait, too."""


class Session(Protocol):
    """What audio and commands go to, as `engine.runner.SessionRunner`. Nothing here waits."""

    @property
    def ring(self) -> Buffer: ...

    def write(self, samples: Float32Array) -> None: ...

    def flush(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def clear(self) -> None: ...

    def end(self) -> None: ...


class Places:
    """The streams that are open: at most `server.max_streams`.

    One whose connection broke keeps its place for `server.resume_s`, unless a newcomer needs it. One that sends
    nothing is ended after `server.idle_s`, and after SPARE_S where a newcomer needs its place. Used on the server's
    loop alone.
    """

    def __init__(self, settings: ServerSettings) -> None:
        # May be replaced by others.
        self.settings = settings
        # By name.
        self.streams: dict[str, ClientStream] = {}
        # What gives up those of them whose connection broke, the one that broke first before the others.
        self._kept: dict[str, asyncio.TimerHandle] = {}
        # What looks whether the others have sent something.
        self._watches: dict[str, asyncio.TimerHandle] = {}

    def spare(self, *, n_opening: int = 0) -> str | None:
        """Return the stream that gives its place to a newcomer, None where none has to. Raises BusyError.

        n_opening : streams that will have a place when they are open
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
        """End a stream for a newcomer: see `spare`."""
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
        """Return a stream whose client is connected again. None if that tenant has none of that name."""
        stream = self.streams.get(name)
        if stream is None or stream.tenant != tenant:
            return None
        self._forget_timers(name)
        stream.touch()
        self._watch(name)
        return stream

    def keep(self, name: str) -> None:
        """Give up a stream whose connection broke, unless its client comes back in time."""
        self._forget_timers(name)
        stream, resume_s = self.streams.get(name), self.settings.resume_s
        if stream is None:
            return  # another gateway has its session by now
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
        self._forget_timers(name)

    def _watch(self, name: str) -> None:
        """End a stream that has sent nothing for too long, and look again later where it has."""
        stream, limit_s = self.streams[name], self.settings.idle_s
        idle_s = stream.idle_s
        if idle_s >= limit_s:
            stream.expire(
                f"nothing was sent for {idle_s:.0f} s (server.idle_s is {limit_s:g}): expected audio as it is spoken,"
                " silence too, or a command; begin anew when there is some"
            )
        elif not stream.complete:
            self._watches[name] = asyncio.get_running_loop().call_later(limit_s - idle_s, self._watch, name)

    def _forget_timers(self, name: str) -> None:
        for timers in (self._kept, self._watches):
            timer = timers.pop(name, None)
            if timer is not None:
                timer.cancel()


class ClientStream:
    """One client's audio on its way to text (see `server.interfaces.ClientStream`), used on the server's loop."""

    def __init__(
        self,
        session: Session,
        log: EventLog,
        pcm: PcmDecoder,
        options: SessionOptions,
        *,
        choose: Callable[[SessionOptions], Callable[[], None]],
        on_report: Callable[[Error], object],
        on_keep: Callable[[], None],
        on_leave: Callable[[], None],
        outlives: bool = False,
        tenant: str = "",
    ) -> None:
        """Serve a session, whose events come in `log`, for a client with the token that is called `tenant`.

        `choose` returns what has the session go on with other options, or raises ConfigError; `on_report` publishes an
        error; `on_keep`: the connection broke; `on_leave`: at the end. `outlives`: see `server.interfaces`.
        """
        self._session = session
        self.outlives, self.tenant = outlives, tenant
        self._on_report = on_report
        self.feed = log
        self._pcm = pcm
        self.options = options
        self._choose = choose
        self._on_keep = on_keep
        # None once it was called.
        self._on_leave: Callable[[], None] | None = on_leave
        self._loop = asyncio.get_running_loop()
        # What waits for room in the buffer: audio as it came, audio that is decoded, shape (n,), and what is to be done
        # behind it. What is decoded is part of the session whatever becomes of the connection that it came over.
        self._waiting: deque[memoryview | Float32Array | Callable[[], None]] = deque()
        # Set while nothing waits.
        self._idle = asyncio.Event()
        self._idle.set()
        # Whether the audio was said to be complete, by the client or by `expire`: nothing more is taken in.
        self.complete = False
        # Whether it was by `expire`, since nothing was sent.
        self.expired = False
        # When what the client sent last had been passed on, by the loop's clock.
        self._heard_from_s = self._loop.time()
        # Set when `end` was published.
        self._ended = asyncio.Event()
        session.ring.on_room = self._on_room
        log.subscribe(self._on_event)
        if log.closed:  # somebody comes back for the last words
            self.complete = True
            self._ended.set()

    @property
    def idle_s(self) -> float:
        """Seconds for which the client has sent nothing; 0 while it need not, as it waits for us."""
        return 0.0 if self.complete or self._waiting else self._loop.time() - self._heard_from_s

    async def write(self, data: bytes) -> None:
        if data:
            self._put(memoryview(data))
        await self._idle.wait()

    async def command(self, command: Command) -> None:
        self._put(getattr(self._session, command))
        await self._idle.wait()

    async def change(self, options: SessionOptions) -> None:
        """Go on with other options from the end of the audio so far. Raises ConfigError where that cannot be."""
        change = self._choose(options)
        self.options = options
        self._put(change)
        await self._idle.wait()

    async def finish(self) -> None:
        self._complete_audio()
        await self._ended.wait()

    def expire(self, message: str) -> None:
        """Make final what was said, say why no more is taken in, and end the session."""
        self.expired = True
        self.report(Error(code=IdleError.code, message=message, fatal=True))
        self._complete_audio()

    def report(self, error: Error) -> None:
        self._on_report(error)

    def go_on(self) -> int:
        """Expect whole samples again, and return how many were taken in, at the client's own rate.

        What was not decoded yet is forgotten, with all that stands behind it: the client sends it again.
        """
        if not self.complete:
            decoded = itertools.takewhile(lambda item: not isinstance(item, memoryview), tuple(self._waiting))
            self._waiting = deque(decoded)
            self._pcm.drop_rest()
            self._pass_on()
        return self._pcm.frames_decoded

    def touch(self) -> None:
        """The client has come back: it was not idle while it was away."""
        self._heard_from_s = self._loop.time()

    def keep(self) -> None:
        """The connection broke: the client may come back for a while."""
        if self._on_leave is not None:
            self._on_keep()

    def abandon(self) -> None:
        """The client is gone: transcribe no more of it."""
        leave, self._on_leave = self._on_leave, None
        if leave is None:
            return
        leave()
        # The session and the log know the stream no more: it is freed now, and not by the next garbage collection.
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
        """Hand what waits to the session, in order, as far as there is room for it."""
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
        self._heard_from_s = self._loop.time()
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
        """Go on where there is room in the buffer: called by the engine's threads."""
        if self._waiting:
            self._call(self._pass_on)

    def _on_event(self, event: Event) -> None:
        """Something was published: called by any thread."""
        if isinstance(event, End):
            self._call(self._end)

    def _end(self) -> None:
        self._ended.set()
        self._pass_on()

    def _call(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to write
            self._loop.call_soon_threadsafe(callback)
