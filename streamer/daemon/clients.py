"""Clients' own audio: a session for each, for the server's `/v1/stream`."""

import asyncio
import secrets
from collections.abc import Collection
from functools import partial

import msgspec

from streamer.after.postprocessing import PostProcessing
from streamer.audio.pcm import PcmDecoder
from streamer.daemon.sessions import SessionSource, open_session, session_settings
from streamer.daemon.streams import SESSION_NAME_BYTES, ClientStream, StreamOwner, StreamSlots
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog, Keep, KeepAudio, no_audio
from streamer.engine.runner import AudioKind
from streamer.errors import BusyError, ConfigError, UnknownSessionError
from streamer.history.history import History
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings, Settings
from streamer.setup.models import in_thread
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel


class ClientStreams:
    """Opens sessions for clients: as many as can be transcribed in real time, and have a slot (see `StreamSlots`)."""

    def __init__(self, settings: Settings, history: History | None = None, ready: asyncio.Event | None = None) -> None:
        """Open sessions with these settings.

        history : keeps the text of those that ask for it
        ready : is waited for before a session is opened
        """
        self._settings = settings
        self._history = history
        self._ready = ready
        # None until the model is loaded.
        self._engine: Engine[EncodedWindow] | None = None
        self._model: WhisperModel | None = None
        self._enrichment: PostProcessing | None = None
        self._slots = StreamSlots(settings.server)

    def serve_with(
        self, engine: Engine[EncodedWindow], model: WhisperModel, enrichment: PostProcessing | None = None
    ) -> None:
        """Accept clients from now on."""
        self._engine, self._model, self._enrichment = engine, model, enrichment

    def reload(self, front: ServerSettings) -> None:
        """Apply other limits from now on."""
        self._settings = msgspec.structs.replace(self._settings, server=front)
        self._slots.settings = front

    async def open(self, start: StreamStart, *, tenant: str = "") -> ClientStream:
        """Open a session.

        Raises BusyError if all slots are taken, there is no time for another session, or the model is still loading;
        ProtocolError if the audio format is not supported; ConfigError if the model cannot do what the options ask for.
        """
        if self._ready is not None:
            await self._ready.wait()
        engine, model, settings = self._engine, self._model, self._settings
        if engine is None or model is None:
            raise BusyError("the model is still being loaded: try again in a moment")
        spare = self._slots.spare()
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
        keeper: Keep | None = None
        keep_audio: KeepAudio = no_audio
        if self._history is not None and start.keep:
            keeper = self._history.keeper(source="a client's stream", own=False)
            if settings.server.history_audio == "all":
                keep_audio = self._history.audio_keeper(name)
        log = EventLog(name, settings.server.history_events, keeper)
        runner = open_session(
            settings,
            model,
            log,
            SessionSource(kind=AudioKind.EITHER, options=start, keep=keep_audio),
            enrichment=self._enrichment,
        )
        if spare is not None:
            self._slots.give_up(spare)
        engine.add(runner)
        if not model.loaded:  # not only when a window is due, which reports what fails
            in_thread("load", model.wake)

        def leave() -> None:
            runner.close()
            self._slots.remove(name)

        owner = StreamOwner(
            choose=lambda options: partial(runner.change, session_settings(settings, model, options)),
            report=log.append,
            keep=lambda: self._slots.keep(name),
            leave=leave,
            tenant=tenant,
        )
        stream = ClientStream(runner, log, pcm, start, owner)
        self._slots.add(name, stream)
        return stream

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> ClientStream:
        """Return the stream of a session whose client is connected again.

        Raises UnknownSessionError if it is not known, or was opened with the token of another name.
        """
        stream = self._slots.come_back(session, tenant)
        if stream is None:
            raise UnknownSessionError(
                f"the session is not known: a stream is kept for {self._settings.server.resume_s:g} s after its"
                " connection broke (server.resume_s), less where others need its place; start another"
            )
        return stream

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        self._slots.abandon_unreachable(tenants)
