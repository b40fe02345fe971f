"""Clients' own audio: one session for each, as the server's `/v1/stream` wants it."""

import asyncio
import uuid
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.pcm import PcmDecoder
from streamer.config import Settings
from streamer.errors import BusyError
from streamer.events import Error
from streamer.live import open_session
from streamer.server.interfaces import StreamStart
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind, SessionRunner
from streamer.whisper.model import WhisperModel
from streamer.whisper.runtime import EncodedWindow

# How often a client that sends faster than it is transcribed is looked after.
POLL_S = 0.02

# Samples written at a time: a fraction of the buffer, so that a large message moves on as soon as there is room.
MAX_WRITE_SAMPLES = 4 * SAMPLE_RATE


class ClientStreams:
    """Opens sessions for clients: as many as can be transcribed in real time, at most `server.max_streams`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # What transcribes; None until the model is loaded.
        self._engine: Engine[EncodedWindow] | None = None
        self._model: WhisperModel | None = None
        # Sessions that are open. Only the server's loop opens and leaves them.
        self._n_open = 0

    def serve_with(self, engine: Engine[EncodedWindow], model: WhisperModel) -> None:
        """Accept clients from now on."""
        self._engine, self._model = engine, model

    def open(self, start: StreamStart) -> "ClientStream":
        """Open a session.

        Raises BusyError where all places are taken, there is no time for another session, or the model is still
        loading; ProtocolError where the audio format is not one we take; ConfigError where the model does not know the
        language.
        """
        engine, model = self._engine, self._model
        if engine is None or model is None:
            raise BusyError("the model is still being loaded: try again in a moment")
        most = self._settings.server.max_streams
        if self._n_open >= most:
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
        log = EventLog(f"stream-{uuid.uuid4().hex[:12]}", self._settings.server.history_events)
        live = open_session(
            self._settings,
            model,
            log,
            kind=AudioKind.EITHER,
            on_finished=log.close,
            language=start.language,
            task=start.task,
        )
        self._n_open += 1

        def leave() -> None:
            self._n_open -= 1

        engine.add(live)
        return ClientStream(engine, live, log, pcm, leave)


class ClientStream:
    """One client's audio on its way to text (see `server.interfaces.ClientStream`)."""

    def __init__(
        self,
        engine: Engine[EncodedWindow],
        live: SessionRunner,
        log: EventLog,
        pcm: PcmDecoder,
        on_leave: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._live = live
        self._log = log
        self._pcm = pcm
        # Called once, when the session is over.
        self._on_leave: Callable[[], None] | None = on_leave
        # Whether the audio was said to be complete.
        self._complete = False

    @property
    def feed(self) -> EventLog:
        """The session's events."""
        return self._log

    async def write(self, data: bytes) -> None:
        """Take audio in, waiting while the buffer is full."""
        samples = self._pcm.decode(data)
        self._report_problems()
        await self._put(samples)

    async def finish(self) -> None:
        """Say that no more audio comes; return when everything final, and `end`, was published."""
        if not self._complete:
            self._complete = True
            rest = self._pcm.finish()
            self._report_problems()
            await self._put(rest)
            self._live.end()
        while not self._log.closed:
            await asyncio.sleep(POLL_S)
        self._leave()

    def report(self, code: str, message: str, fatal: bool) -> None:
        """Publish an `error` event in the session."""
        self._log.append(Error(code=code, message=message, fatal=fatal))

    def abandon(self) -> None:
        """The client is gone: transcribe no more of it."""
        self._live.close()
        self._log.close()
        self._leave()

    async def _put(self, samples: NDArray[np.float32]) -> None:
        """Write to the buffer piece by piece, waiting for room; the client is not read meanwhile."""
        for first in range(0, len(samples), MAX_WRITE_SAMPLES):
            piece = samples[first : first + MAX_WRITE_SAMPLES]
            while self._live.ring.free < len(piece) and not self._live.over:
                await asyncio.sleep(POLL_S)
            self._live.write(piece)

    def _report_problems(self) -> None:
        for code, message in self._pcm.take_problems():
            self.report(code, message, fatal=False)

    def _leave(self) -> None:
        leave, self._on_leave = self._on_leave, None
        if leave is not None:
            leave()


def _sessions(n_sessions: int | None) -> str:
    return "1 session" if n_sessions == 1 else f"{n_sessions} sessions"
