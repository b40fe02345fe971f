"""Clients' own audio: one session for each, as the server's `/v1/stream` wants it."""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.errors import BusyError, UnknownSessionError
from streamer.events import End, Error, Event
from streamer.live.sessions import MAX_WRITE_SAMPLES, open_session, session_settings
from streamer.server.messages import Command, SessionOptions, StreamStart
from streamer.settings.table import Settings
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind, SessionRunner
from streamer.stream.settings import SessionSettings
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel

# Bytes of chance in the name of a session: who knows it can go on with the stream, so nobody must be able to guess it.
SESSION_NAME_BYTES = 24


class ClientStreams:
    """Opens sessions for clients: as many as can be transcribed in real time, at most `server.max_streams`.

    A stream whose connection broke keeps its place for `server.resume_s`, unless a newcomer needs it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # What transcribes; None until the model is loaded.
        self._engine: Engine[EncodedWindow] | None = None
        self._model: WhisperModel | None = None
        # Sessions that are open, by name. Only the server's loop opens and leaves them.
        self._open: dict[str, ClientStream] = {}
        # What gives up those of them whose connection broke, the one that broke first before the others.
        self._kept: dict[str, asyncio.TimerHandle] = {}

    def serve_with(self, engine: Engine[EncodedWindow], model: WhisperModel) -> None:
        """Accept clients from now on."""
        self._engine, self._model = engine, model

    def open(self, start: StreamStart) -> "ClientStream":
        """Open a session.

        Raises BusyError where all places are taken, there is no time for another session, or the model is still
        loading; ProtocolError where the audio format is not one we take; ConfigError where the model cannot do what
        the options ask for.
        """
        engine, model, settings = self._engine, self._model, self._settings
        if engine is None or model is None:
            raise BusyError("the model is still being loaded: try again in a moment")
        most = settings.server.max_streams
        if len(self._open) - len(self._kept) >= most:
            raise BusyError(
                f"all {most} places for clients' audio are taken: try again later, or raise server.max_streams"
            )
        load = engine.load
        if not load.room:
            raise BusyError(
                f"this machine keeps {_sessions(load.capacity)} in real time, and they are taken: try again later,"
                " or raise stream.max_pace_s"
            )
        pcm = PcmDecoder(start.format, start.sample_rate, start.channels)
        name = secrets.token_urlsafe(SESSION_NAME_BYTES)
        log = EventLog(name, settings.server.history_events)
        runner = open_session(settings, model, log, options=start, kind=AudioKind.EITHER, on_finished=log.close)
        if len(self._open) >= most:
            self._open[next(iter(self._kept))].abandon()
        engine.add(runner)

        def leave() -> None:
            runner.close()
            self._open.pop(name, None)
            self._forget_timer(name)

        stream = self._open[name] = ClientStream(
            runner,
            log,
            pcm,
            start,
            choose=lambda options: session_settings(settings, model, options),
            on_keep=lambda: self._keep(name),
            on_leave=leave,
        )
        return stream

    def resume(self, session: str) -> "ClientStream":
        """Return the stream of that session, which is kept no more. Raises UnknownSessionError where there is none."""
        stream = self._open.get(session)
        if stream is None:
            raise UnknownSessionError(
                f"the session is not known: a stream is kept for {self._settings.server.resume_s:g} s after its"
                " connection broke (server.resume_s), less where others need its place; start another"
            )
        self._forget_timer(session)
        return stream

    def _keep(self, name: str) -> None:
        self._forget_timer(name)
        stream, resume_s = self._open[name], self._settings.server.resume_s
        if resume_s:
            self._kept[name] = asyncio.get_running_loop().call_later(resume_s, stream.abandon)
        else:
            stream.abandon()

    def _forget_timer(self, name: str) -> None:
        timer = self._kept.pop(name, None)
        if timer is not None:
            timer.cancel()


class ClientStream:
    """One client's audio on its way to text (see `server.interfaces.ClientStream`).

    Made, and used, on the server's loop.
    """

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
        """Serve a session that is at work.

        `choose` turns options into settings, or raises ConfigError; `on_keep` is called when the connection broke,
        `on_leave` when the client is gone.
        """
        self._runner = runner
        self._log = log
        self._pcm = pcm
        self._options = options
        self._choose = choose
        self._on_keep = on_keep
        # None once it was called.
        self._on_leave: Callable[[], None] | None = on_leave
        self._loop = asyncio.get_running_loop()
        # What was taken in and waits for room in the buffer: audio, shape (n,), and what is to be done behind it. It
        # is part of the session whatever becomes of the connection that it came over.
        self._waiting: deque[Float32Array | Callable[[], None]] = deque()
        # Set while nothing waits.
        self._idle = asyncio.Event()
        self._idle.set()
        # Whether the audio was said to be complete.
        self._complete = False
        # Set when `end` was published.
        self._ended = asyncio.Event()
        runner.ring.on_room = self._on_room
        log.subscribe(self._on_event)

    @property
    def feed(self) -> EventLog:
        """The session's events."""
        return self._log

    @property
    def options(self) -> SessionOptions:
        """What the client has chosen."""
        return self._options

    @property
    def complete(self) -> bool:
        """Whether `finish` was called."""
        return self._complete

    async def write(self, data: bytes) -> None:
        """Take audio in, waiting while the buffer is full."""
        self._take(self._pcm.decode(data))
        await self._idle.wait()

    async def command(self, command: Command) -> None:
        """Do what the client says, at the end of the audio so far."""
        self._put(getattr(self._runner, command))
        await self._idle.wait()

    async def change(self, options: SessionOptions) -> None:
        """Go on with other options from the end of the audio so far. Raises ConfigError where that cannot be."""
        settings = self._choose(options)
        self._options = options
        self._put(lambda: self._runner.change(settings))
        await self._idle.wait()

    async def finish(self) -> None:
        """Say that no more audio comes; return when everything final, and `end`, was published."""
        if not self._complete:
            self._complete = True
            self._take(self._pcm.finish())
            self._put(self._runner.end)
        await self._ended.wait()

    def report(self, code: str, message: str, fatal: bool) -> None:
        """Publish an `error` event in the session."""
        self._log.append(Error(code=code, message=message, fatal=fatal))

    def go_on(self) -> int:
        """Expect whole samples again, and return how many were taken in, at the client's own rate."""
        self._pcm.drop_rest()
        return self._pcm.frames_decoded

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
        self._runner.ring.on_room = None
        self._log.close()

    def _take(self, samples: Float32Array) -> None:
        """Take in decoded audio, shape (n,)."""
        for code, message in self._pcm.take_problems():
            self.report(code, message, fatal=False)
        self._put(samples)

    def _put(self, item: Float32Array | Callable[[], None]) -> None:
        self._waiting.append(item)
        self._idle.clear()
        self._pass_on()

    def _pass_on(self) -> None:
        """Hand what waits to the session, in order, as far as there is room for it."""
        while self._waiting and not self._ended.is_set():
            item = self._waiting[0]
            if callable(item):
                self._waiting.popleft()
                item()
                continue
            piece, rest = item[:MAX_WRITE_SAMPLES], item[MAX_WRITE_SAMPLES:]
            if self._runner.ring.free < len(piece):
                return  # it is still waiting, which `_on_room` must see
            if len(rest):
                self._waiting[0] = rest
            else:
                self._waiting.popleft()
            if len(piece):
                self._runner.write(piece)
        self._waiting.clear()
        self._idle.set()

    def _on_room(self) -> None:
        """There is room in the buffer: called by the engine's threads."""
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


def _sessions(n_sessions: int | None) -> str:
    return "1 session" if n_sessions == 1 else f"{n_sessions} sessions"
