"""Clients' own audio: one session for each, as the server's `/v1/stream` wants it."""

import asyncio
import contextlib
import dataclasses
import itertools
import secrets
from collections import deque
from collections.abc import Callable

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.pcm import PcmDecoder
from streamer.errors import BusyError, ConfigError, IdleError, UnknownSessionError
from streamer.events import End, Error, Event
from streamer.live.enrich import Enrichment
from streamer.live.sessions import MAX_WRITE_SAMPLES, open_session, session_settings
from streamer.protocols.native import Command, SessionOptions, StreamStart
from streamer.server.history import History
from streamer.settings.table import ServerSettings, Settings
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind, SessionRunner
from streamer.stream.settings import SessionSettings
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel

# Bytes of chance in the name of a session: who knows it can go on with the stream, so nobody must be able to guess it.
SESSION_NAME_BYTES = 24

# A message is decoded in pieces of at most so many bytes and half a second: at 4 kHz, 1 MiB becomes 8 MB of samples.
MAX_DECODE_BYTES = 65_536

# Where all places are taken, who has sent nothing for so long has to leave for a newcomer.
SPARE_S = 30.0


class ClientStreams:
    """Opens sessions for clients: as many as can be transcribed in real time, at most `server.max_streams`.

    A stream whose connection broke keeps its place for `server.resume_s`, unless a newcomer needs it. One that sends
    nothing is ended after `server.idle_s`, and after SPARE_S where a newcomer needs its place.
    """

    def __init__(self, settings: Settings, history: History | None = None) -> None:
        """Open sessions as the settings say; those that ask for it are kept in the history."""
        self._settings = settings
        self._history = history
        # What transcribes; None until the model is loaded.
        self._engine: Engine[EncodedWindow] | None = None
        self._model: WhisperModel | None = None
        self._enrichment: Enrichment | None = None
        # Sessions that are open, by name. Only the server's loop opens and leaves them.
        self._open: dict[str, ClientStream] = {}
        # What gives up those of them whose connection broke, the one that broke first before the others.
        self._kept: dict[str, asyncio.TimerHandle] = {}
        # What looks whether the others have sent something.
        self._watches: dict[str, asyncio.TimerHandle] = {}

    def serve_with(
        self, engine: Engine[EncodedWindow], model: WhisperModel, enrichment: Enrichment | None = None
    ) -> None:
        """Accept clients from now on."""
        self._engine, self._model, self._enrichment = engine, model, enrichment

    def reload(self, front: ServerSettings) -> None:
        """Let other limits hold from now on."""
        self._settings = dataclasses.replace(self._settings, server=front)

    async def open(self, start: StreamStart, *, tenant: str = "") -> "ClientStream":
        """Open a session.

        Raises BusyError where all places are taken, there is no time for another session, or the model is still
        loading; ProtocolError where the audio format is not one we take; ConfigError where the model cannot do what
        the options ask for.
        """
        engine, model, settings = self._engine, self._model, self._settings
        if engine is None or model is None:
            raise BusyError("the model is still being loaded: try again in a moment")
        most = settings.server.max_streams
        spare = self._spare() if self._n_places_taken >= most else None
        if self._n_places_taken >= most and spare is None:
            raise BusyError(
                f"all {most} places for clients' audio are taken: try again later, or raise server.max_streams"
            )
        load = engine.load
        if not load.room:
            sessions = "1 session" if load.capacity == 1 else f"{load.capacity} sessions"
            raise BusyError(
                f"this machine keeps {sessions} in real time, and they are taken: try again later,"
                " or raise stream.max_pace_s"
            )
        if start.keep and self._history is None:
            raise ConfigError(
                "keep is true, but this daemon keeps no history: leave keep out, or have server.history set"
            )
        pcm = PcmDecoder(start.format, start.sample_rate, start.channels)
        name = secrets.token_urlsafe(SESSION_NAME_BYTES)
        keeper = self._history.keeper(source="a client's stream", own=False) if self._history and start.keep else None
        log = EventLog(name, settings.server.history_events, keeper)
        runner = open_session(
            settings,
            model,
            log,
            options=start,
            kind=AudioKind.EITHER,
            on_finished=log.close,
            enrichment=self._enrichment,
        )
        if spare is not None:
            self._give_up(spare)
        engine.add(runner)

        def leave() -> None:
            runner.close()
            self._open.pop(name, None)
            self._forget_timers(name)

        stream = self._open[name] = ClientStream(
            runner,
            log,
            pcm,
            start,
            choose=lambda options: session_settings(settings, model, options),
            on_keep=lambda: self._keep(name),
            on_leave=leave,
        )
        self._watch(name)
        return stream

    async def resume(self, session: str, *, after: int = 0) -> "ClientStream":
        """Return the stream of that session, which is kept no more. Raises UnknownSessionError where there is none."""
        stream = self._open.get(session)
        if stream is None:
            raise UnknownSessionError(
                f"the session is not known: a stream is kept for {self._settings.server.resume_s:g} s after its"
                " connection broke (server.resume_s), less where others need its place; start another"
            )
        self._forget_timers(session)
        stream.touch()
        self._watch(session)
        return stream

    @property
    def _n_places_taken(self) -> int:
        return sum(not stream.expired for stream in self._open.values())

    def _spare(self) -> str | None:
        """Return the stream that gives its place to a newcomer, None where none has to."""
        kept = next((name for name in self._kept if not self._open[name].expired), None)
        if kept is not None:
            return kept
        idle_s = {name: stream.idle_s for name, stream in self._open.items()}
        longest = max(idle_s, key=idle_s.__getitem__, default=None)
        return longest if longest is not None and idle_s[longest] >= SPARE_S else None

    def _give_up(self, name: str) -> None:
        stream = self._open[name]
        if name in self._kept:
            stream.abandon()
        else:
            stream.expire(
                f"nothing was sent for {stream.idle_s:.0f} s, and another client needs the place (all"
                f" {self._settings.server.max_streams} of server.max_streams are taken): send audio as it is spoken,"
                " silence too, or begin anew when there is some"
            )

    def _watch(self, name: str) -> None:
        """End a stream that has sent nothing for too long, and look again later where it has."""
        stream, limit_s = self._open[name], self._settings.server.idle_s
        idle_s = stream.idle_s
        if idle_s >= limit_s:
            stream.expire(
                f"nothing was sent for {idle_s:.0f} s (server.idle_s is {limit_s:g}): expected audio as it is spoken,"
                " silence too, or a command; begin anew when there is some"
            )
        elif not stream.complete:
            self._watches[name] = asyncio.get_running_loop().call_later(limit_s - idle_s, self._watch, name)

    def _keep(self, name: str) -> None:
        self._forget_timers(name)
        stream, resume_s = self._open[name], self._settings.server.resume_s
        if resume_s:
            self._kept[name] = asyncio.get_running_loop().call_later(resume_s, stream.abandon)
        else:
            stream.abandon()

    def _forget_timers(self, name: str) -> None:
        for timers in (self._kept, self._watches):
            timer = timers.pop(name, None)
            if timer is not None:
                timer.cancel()


class ClientStream:
    """One client's audio on its way to text (see `server.interfaces.ClientStream`), used on the server's loop."""

    outlives = False

    def __init__(
        self,
        runner: SessionRunner,
        log: EventLog,
        pcm: PcmDecoder,
        options: SessionOptions,
        *,
        choose: Callable[[SessionOptions], SessionSettings],
        on_keep: Callable[[], None],
        on_leave: Callable[[], None],
    ) -> None:
        """Serve a session. `choose` may raise ConfigError; `on_keep`: the connection broke; `on_leave`: at the end."""
        self._runner = runner
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
        runner.ring.on_room = self._on_room
        log.subscribe(self._on_event)

    @property
    def idle_s(self) -> float:
        """Seconds for which the client has sent nothing; 0 while it need not, as it waits for us."""
        return 0.0 if self.complete or self._waiting else self._loop.time() - self._heard_from_s

    async def write(self, data: bytes) -> None:
        if data:
            self._put(memoryview(data))
        await self._idle.wait()

    async def command(self, command: Command) -> None:
        self._put(getattr(self._runner, command))
        await self._idle.wait()

    async def change(self, options: SessionOptions) -> None:
        """Go on with other options from the end of the audio so far. Raises ConfigError where that cannot be."""
        settings = self._choose(options)
        self.options = options
        self._put(lambda: self._runner.change(settings))
        await self._idle.wait()

    async def finish(self) -> None:
        self._complete_audio()
        await self._ended.wait()

    def expire(self, message: str) -> None:
        """Make final what was said, say why no more is taken in, and end the session."""
        self.expired = True
        self.report(IdleError.code, message, fatal=True)
        self._complete_audio()

    def report(self, code: str, message: str, fatal: bool) -> None:
        self.feed.append(Error(code=code, message=message, fatal=fatal))

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
        # The runner and the log know the stream no more: it is freed now, and not by the next garbage collection.
        self._runner.ring.on_room = None
        self.feed.close()

    def _complete_audio(self) -> None:
        if not self.complete:
            self._put(self._flush)
            self._put(self._runner.end)
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
            if self._runner.ring.free < min(needed, MAX_WRITE_SAMPLES):
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
                self._runner.write(piece)
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
            self.report(code, message, fatal=False)

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
