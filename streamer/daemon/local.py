"""Clients' sessions on the engine of this process."""

import asyncio

from streamer.after.postprocessing import PostProcessing
from streamer.arrays import Float32Array
from streamer.daemon.backend import Backend
from streamer.daemon.sessions import SessionSource, open_log, open_session
from streamer.daemon.streams import ClientStream
from streamer.engine.engine import Engine
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.errors import BusyError, ConfigError
from streamer.history.writer import History
from streamer.protocols.native import Command, StreamStart
from streamer.settings.table import Settings
from streamer.setup.models import in_thread
from streamer.setup.session import session_settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel


class LocalBackend(Backend):
    """Opens as many sessions as can be transcribed in real time."""

    def __init__(self, settings: Settings, history: History | None = None, ready: asyncio.Event | None = None) -> None:
        """Open sessions with these settings, once `serve_with` has been called.

        history : keeps the text of those that ask for it
        ready : is waited for before a session is opened
        """
        self._settings = settings
        self._history = history
        self._ready = ready
        # None until the model is loaded.
        self._engine: Engine[EncodedWindow] | None = None
        self._model: WhisperModel | None = None
        self._post_processing: PostProcessing | None = None

    def serve_with(
        self, engine: Engine[EncodedWindow], model: WhisperModel, post_processing: PostProcessing | None = None
    ) -> None:
        """Open sessions from now on."""
        self._engine, self._model, self._post_processing = engine, model, post_processing

    async def open(self, name: str, start: StreamStart, *, tenant: str) -> "LocalStream":
        """Begin a session.

        Raises BusyError if there is no time for another, or the model is still loading; ConfigError if the model cannot
        do what the options ask for, or they ask for a history that there is not.
        """
        if self._ready is not None:
            await self._ready.wait()
        engine, model, settings = self._engine, self._model, self._settings
        if engine is None or model is None:
            raise BusyError("the model is still being loaded: try again in a moment")
        _check_room(engine)
        if start.keep and self._history is None:
            raise ConfigError(
                "keep is true, but this daemon keeps no history: leave keep out, or have server.history set"
            )
        history = self._history if start.keep else None
        source_name = f"room {start.room}" if start.room else "a client's stream"
        log, keep_audio = open_log(name, settings.server, history, source=source_name, own=False)
        source = SessionSource(kind=AudioKind.EITHER, options=start, keep=keep_audio)
        live = open_session(settings, model, log, source, enrichment=self._post_processing)
        engine.add(live)
        if not model.loaded:  # not only when a window is due, which reports what fails
            in_thread("load", model.wake)
        return LocalStream(live, start, settings, model)


class LocalStream(ClientStream):
    """A client's stream into a session on the engine of this process."""

    def __init__(self, live: LiveSession, options: StreamStart, settings: Settings, model: WhisperModel) -> None:
        """`settings` are the daemon's, which the client's options replace."""
        super().__init__(live.log, options)
        self._live = live
        self._settings = settings
        self._model = model
        live.ring.on_room = self.on_room

    @property
    def _free(self) -> int:
        return self._live.ring.free

    def _write(self, samples: Float32Array) -> None:
        self._live.write(samples)

    def _command(self, command: Command) -> None:
        self._live.do(command)

    def _check(self, options: StreamStart) -> None:
        session_settings(self._settings, self._model, options)

    def _change(self, options: StreamStart) -> None:
        self._live.change(session_settings(self._settings, self._model, options))

    def _end(self) -> None:
        self._live.end()

    def _abandon(self) -> None:
        self._live.close()
        self._live.ring.on_room = None


def _check_room(engine: Engine[EncodedWindow]) -> None:
    """Raise BusyError if there is no time for another session."""
    load = engine.load
    if not load.room:
        sessions = "1 session" if load.capacity == 1 else f"{load.capacity} sessions"
        raise BusyError(
            f"this machine keeps {sessions} in real time, and they are taken: try again later,"
            " or raise stream.max_pace_s"
        )
