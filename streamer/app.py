"""The composition root: builds the parts, starts them, watches over them and stops them."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from rich.console import Console

from streamer import __version__, descriptors, systemd
from streamer.audio.sources.address import Address, is_address
from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.audio.sources.file import FileReplay
from streamer.audio.sources.microphone import Microphone
from streamer.audio.sources.mixed import Mixed
from streamer.audio.sources.stdin import StdinPcm, standard_input
from streamer.audio.sources.system import SystemSound
from streamer.commands.loading import device_settings, load_chosen
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.runner import AudioKind, SessionRunner
from streamer.errors import AudioDeviceError, ConfigError, StreamerError
from streamer.events import Error
from streamer.log import set_levels
from streamer.outputs.outputs import Outputs
from streamer.outputs.subtitles import subtitle_options
from streamer.outputs.terminal import TerminalSink
from streamer.server.front import Server
from streamer.server.history import History, open_history
from streamer.server.interfaces import Services
from streamer.server.metrics import register_engine, register_history, register_outputs, register_process
from streamer.sessions.captions import drawn_captions
from streamer.sessions.clients import ClientStreams
from streamer.sessions.decoder import make_engine
from streamer.sessions.enrich import Enrichment
from streamer.sessions.models import Models, unless_stopped
from streamer.sessions.recordings import Recordings
from streamer.sessions.sessions import open_session, tell_error, write_all
from streamer.sessions.streams import SESSION_NAME_BYTES
from streamer.settings.check import check_options
from streamer.settings.load import default_token_path
from streamer.settings.table import SETTINGS, Settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.shipped import limits

logger = logging.getLogger(__name__)


# How long a stop waits for what was said last to become final. A pass over 30 s takes a few seconds on a slow CPU.
FLUSH_TIMEOUT_S = 30.0

# A turn of an engine's thread that takes longer than this will not end; a pass may take 27 s. While a model is started
# again after its device failed, which is compiled anew, it may take longer.
STUCK_S = 120.0
STUCK_RECOVERING_S = 900.0

# Settings that SIGHUP can change while the daemon runs.
RELOADABLE = (
    *("server.token", "server.token_file", "server.origins", "server.proxies"),
    *("server.max_streams", "server.max_subscribers", "server.resume_s"),
    *("server.max_connections", "server.max_connections_per_address"),
    *("server.header_timeout_s", "server.first_message_s", "server.idle_s"),
    *("log.level", "log.access"),
)

# Captions hide a terminal's cursor, and who is ended at once cannot show it again.
SHOW_CURSOR = b"\x1b[?25h"


def run(settings: Settings, *, captions: bool, read_settings: Callable[[], Settings]) -> int:
    """Run the daemon until it is told to stop, or its input ends and `input.exit_at_end` is set.

    With `captions` they are drawn on standard output. `read_settings` is called when SIGHUP asks for it. Returns the
    exit code. Raises StreamerError where it cannot start.
    """
    descriptors.raise_limit()
    with open_history(settings.server) as history:
        return asyncio.run(_Daemon(settings, history, captions=captions, read_settings=read_settings).run())


class _Daemon:
    """One run of the daemon."""

    def __init__(
        self,
        settings: Settings,
        history: History | None = None,
        *,
        captions: bool,
        read_settings: Callable[[], Settings],
    ) -> None:
        self._settings = settings
        # What SIGHUP reads, and has read last.
        self._read_settings = read_settings
        self._reloaded = settings
        # Where what is said is kept; None where it is not.
        self._history = history
        self._captions = captions
        self._started = time.monotonic()
        # What /healthz says.
        self._status = "starting"
        # What clients connect to, and what serves their streams and recordings.
        self._server: Server | None = None
        self._streams = ClientStreams(settings, history)
        self._recordings = Recordings(settings, Models(settings.model, lambda name: _load_beside(settings, name)))
        # Event log of the daemon's own input; None where it has none.
        self._log: EventLog | None = None
        self._source: Source | None = None
        # What transcribes; None before the model is loaded.
        self._engine: Engine[EncodedWindow] | None = None
        # What turns the input into text; None before the model is loaded.
        self._input: SessionRunner | None = None
        # Set when everything that was said in it is final.
        self._input_over = asyncio.Event()
        # Set when the source is told to stop: it must not wait for room in the buffer any more.
        self._source_stopped = threading.Event()
        self._model: WhisperModel | None = None
        self._enrichment: Enrichment | None = None
        # Set from a signal, or when the input has ended and that is the end.
        self._stop = asyncio.Event()
        # What the input ended with.
        self._failure: StreamerError | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(descriptors.LoopErrors())
        with _signals(loop, self._stop.set, self._toggle_pause, self._reload):
            return await self._run(loop)

    async def _run(self, loop: asyncio.AbstractEventLoop) -> int:
        settings = self._settings
        check_options(settings, streaming=True)
        source = self._source = _make_source(settings)
        if source is None and settings.outputs.to:
            raise ConfigError(
                "--to sends what the daemon itself hears, and --input is none: name an input, or drop --to"
            )
        outputs = Outputs(settings.outputs, subtitle_options(settings))
        if source is not None:
            keep = self._history.keeper(source=source.name) if self._history is not None else None
            self._log = EventLog(secrets.token_urlsafe(SESSION_NAME_BYTES), settings.server.history_events, keep)
            self._log.subscribe(outputs.handle)
        registry = CollectorRegistry()
        register_process(registry)
        if self._history is not None:
            register_history(registry, self._history)
        register_outputs(registry, outputs)
        services = Services(
            streams=self._streams,
            health=self._health,
            is_live=lambda: not self._stuck(),
            feed=self._log,
            input_now=lambda: self._input,
            recordings=self._recordings,
            history=self._history,
        )
        server = self._server = Server(settings.server, services, registry, default_token_path())
        url = await server.start()
        watching = asyncio.create_task(self._feed_watchdog())
        try:
            with self._drawn():
                await self._transcribe(server, url, registry, loop)
        finally:
            watching.cancel()
            self._recordings.stop()
            await asyncio.to_thread(outputs.close)
            await server.stop()
            if self._engine is not None:
                await asyncio.to_thread(self._engine.stop)
        if self._failure is not None and settings.input.exit_at_end:
            raise self._failure
        return 0

    async def _transcribe(
        self, server: Server, url: str, registry: CollectorRegistry, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Load the model and transcribe the input and what clients send until the daemon is to stop."""
        systemd.notify("STATUS=loading the model")
        if isinstance(self._source, Address | Microphone | Mixed) and not self._settings.input.fallback:
            # Before the model is loaded: it may take minutes to compile for nothing.
            await asyncio.to_thread(self._source.check)
        loaded = await unless_stopped(lambda: load_chosen(self._settings), self._stop)
        if loaded is None:
            return
        settings, model = loaded
        self._model = model
        engine = self._engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
        register_engine(registry, engine)
        engine.start()
        self._enrichment = Enrichment(settings, model, engine)
        self._streams.serve_with(engine, model, self._enrichment)
        self._recordings.serve_with(model, engine.wait_idle, self._enrichment.glossary)
        await server.serve_model(model.name, model.tokenizer.known_languages)
        # Before the input begins: a short file may have ended at once, and would say so first.
        logger.info("listening on %s", url)
        live = self._start_input(engine, model, loop) if self._log is not None else None
        self._status = "ok"
        systemd.notify("READY=1", f"STATUS=listening on {url}")
        await self._stop.wait()
        self._status = "stopping"
        systemd.notify("STOPPING=1", "STATUS=making final what was said last")
        server.drain()
        self._recordings.stop()
        if live is not None:
            await self._flush(live)

    def _start_input(
        self, engine: Engine[EncodedWindow], model: WhisperModel, loop: asyncio.AbstractEventLoop
    ) -> SessionRunner:
        """Start the source, or what stands in for it, and its session. Raises StreamerError."""
        settings, log, source = self._settings, self._log, self._source
        assert log is not None
        assert source is not None

        def finished() -> None:
            if live.failing:
                self._failure = StreamerError(live.failing)
            log.close()
            log.call_behind(partial(loop.call_soon_threadsafe, self._end_input))

        live = open_session(
            settings,
            model,
            log,
            kind=_kind(source),
            reserved=True,
            on_finished=finished,
            label=source.labelled if isinstance(source, Mixed) else lambda event: event,
            enrichment=self._enrichment,
        )
        engine.add(live)
        self._input = live
        logger.info("input: %s", source.name)
        try:
            source.start(self._callbacks(source, live, log))
        except AudioDeviceError as error:
            if settings.input.source != "mic" or not settings.input.fallback:
                raise
            logger.warning("%s", error)
            logger.warning("playing %s instead", settings.input.fallback)
            self._source = source = FileReplay(Path(settings.input.fallback), settings.input.speed)
            live.input = dataclasses.replace(live.input, kind=_kind(source))
            source.start(self._callbacks(source, live, log))
        return live

    def _callbacks(self, source: Source, live: SessionRunner, log: EventLog) -> SourceCallbacks:
        """Return what passes a source's audio to a session."""

        def ended(error: StreamerError | None) -> None:
            if error is not None:
                log.append(Error(code=error.code, message=str(error), fatal=True))
                self._failure = error  # what the daemon ends with
                if not self._settings.input.exit_at_end:
                    logger.error("%s", error)
            live.end()

        stopped = self._source_stopped.is_set
        return SourceCallbacks(
            on_audio=live.write if source.realtime else lambda samples: write_all(live, samples, stopped),
            on_gap=live.write_gap,
            on_error=lambda error: tell_error(log, error),
            on_end=ended,
        )

    def _end_input(self) -> None:
        """Note that all text of the input is final, which may be the end of the daemon."""
        self._input_over.set()
        if self._settings.input.exit_at_end:
            self._stop.set()

    def _toggle_pause(self) -> None:
        """Pause the input, or go on where it is paused."""
        own = self._input
        if own is None:
            logger.warning("there is no input to pause (it may not have begun yet)")
        elif own.paused:
            own.resume()
            logger.info("the input goes on")
        else:
            own.pause()
            logger.info("the input is paused; SIGUSR1 once more to go on")

    def _reload(self) -> None:
        """Read the settings again, and take over those that can change while the daemon runs."""
        systemd.notify_reloading()
        try:
            settings = self._read_settings()
            changed = [name for name in RELOADABLE if settings[name] != self._reloaded[name]]
            late = [name for name in SETTINGS if name not in RELOADABLE and settings[name] != self._settings[name]]
            # All is read, and may be refused, before anything of it is in use.
            take_glossary = self._enrichment.reread() if self._enrichment is not None else lambda: None
            # The address, for one, stays: rules must not be made for another.
            new = {name.partition(".")[2]: settings[name] for name in RELOADABLE if name.startswith("server.")}
            front = msgspec.structs.replace(self._settings.server, **new)
            if self._server is not None:
                self._server.reload(front)
                self._streams.reload(front)
            take_glossary()
            set_levels(settings.log)
            self._reloaded = settings
            logger.info("the settings were read again; changed: %s", ", ".join(changed) or "none")
            if late:
                logger.warning("these settings take effect at the next start: %s", ", ".join(late))
        except StreamerError as error:
            logger.warning("the settings stay as they were: %s", error)
        if self._status == "ok":
            systemd.notify("READY=1")

    async def _feed_watchdog(self) -> None:
        """Tell the service manager that all is well, where it wants to know, for as long as that is so."""
        interval_s = systemd.watchdog_s()
        while interval_s is not None:
            if self._stuck():
                logger.error("the engine is stuck: the service manager is told so by silence")
            else:
                systemd.notify("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    def _stuck(self) -> bool:
        """Whether a thread of the engine has died, or is at something that will not end."""
        if self._engine is None or self._model is None:
            return False
        return self._engine.turn_s > (STUCK_RECOVERING_S if self._model.recovering else STUCK_S)

    async def _flush(self, live: SessionRunner) -> None:
        """Stop listening and make final what was said."""
        assert self._log is not None
        assert self._source is not None
        self._source_stopped.set()
        live.ring.wake()
        await asyncio.to_thread(self._source.stop)
        live.end()
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._input_over.wait()
        except TimeoutError:
            logger.error("what was said last did not become final within %d s; the rest is a gap", FLUSH_TIMEOUT_S)
            live.cut_short("overload")
            self._log.close()

    def _health(self) -> Mapping[str, object]:
        model = self._model
        failure = self._failing()
        return {
            "status": "failing" if failure and self._status == "ok" else self._status,
            **({"failure": failure} if failure else {}),
            **({"enrichment": told} if (added := self._enrichment) and (told := str(added.health)) else {}),
            **({"notice": told} if model is not None and (told := limits(model.origin)) else {}),
            "version": __version__,
            "input": self._source.name if self._source is not None else "none",
            "model": model.name if model is not None else self._settings.model.name,
            "device": dict(model.runtime.devices) if model is not None else {},
            "uptime_s": round(time.monotonic() - self._started, 1),
        }

    def _failing(self) -> str:
        """Say in a few words what keeps text from coming; nothing where all is well."""
        source = self._source.failure if self._source is not None else ""
        engine = self._engine.failing if self._engine is not None else ""
        return source or engine or ("" if self._failure is None else str(self._failure))

    def _drawn(self) -> contextlib.AbstractContextManager[None]:
        """Draw the input's captions in the terminal meanwhile, where there are any to draw."""
        if self._log is None or not self._captions:
            return contextlib.nullcontext()
        return drawn_captions(self._log, TerminalSink(Console()), limit=self._settings.server.queue_events)


def _load_beside(settings: Settings, name: str) -> WhisperModel:
    """Load a model that a request asks for."""
    model, n_beams = settings.model, settings.decoding.beam_size
    return load_model(
        name, device_settings(model), cache_dir=model.cache_dir, n_beams=n_beams, live=False, weights="auto"
    )


def _make_source(settings: Settings) -> Source | None:
    match settings.input.source:
        case "none":
            return None
        case "mic":
            return Microphone(settings.input.microphone)
        case "system":
            return SystemSound()
        case "mic+system":
            return Mixed({"mic": Microphone(settings.input.microphone), "system": SystemSound()})
        case "-":
            return StdinPcm(
                standard_input(),
                settings.input.stdin_format,
                settings.input.stdin_sample_rate,
                settings.input.stdin_channels,
            )
        case url if is_address(url):
            return Address(url, settings.input.speed)
        case path:
            return FileReplay(Path(path), settings.input.speed)


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    pause: Callable[[], None],
    reload: Callable[[], None],
) -> Iterator[None]:
    """Let Ctrl-C and a request to terminate stop the daemon in order; a second one ends it at once.

    SIGUSR1 calls `pause` and SIGHUP `reload` (not on Windows). Where SIGHUP says that the daemon's terminal is gone, it
    stops in order: nobody would know of a microphone that goes on listening.
    """
    stopping = [name for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    others = [name for name in ("SIGUSR1", "SIGHUP") if hasattr(signal, name)]
    previous = {name: signal.getsignal(getattr(signal, name)) for name in (*stopping, *others)}
    terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
    stopped = False

    def on_stop(number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        for name in stopping:  # by the system, whatever the daemon waits for then
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        logger.info("stopping (%s); once more to stop at once", signal.Signals(number).name)
        loop.call_soon_threadsafe(stop)
        if os.name == "posix" and sys.stdout.isatty():
            os.write(sys.stdout.fileno(), SHOW_CURSOR)

    def on_pause(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(pause)

    def on_hangup(number: int, frame: object) -> None:
        if has_hung_up(terminals):
            on_stop(number, frame)
        else:
            loop.call_soon_threadsafe(reload)

    handlers = {**dict.fromkeys(stopping, on_stop), "SIGUSR1": on_pause, "SIGHUP": on_hangup}
    for name in previous:
        signal.signal(getattr(signal, name), handlers[name])
    try:
        yield
    finally:
        for name, handler in previous.items():
            if not (stopped and name in stopping):  # a second one still ends at once
                signal.signal(getattr(signal, name), handler)


def has_hung_up(terminals: Sequence[int]) -> bool:
    """Whether one of these descriptors of terminals has no terminal any more."""
    return not all(os.isatty(descriptor) for descriptor in terminals)


def _kind(source: Source) -> AudioKind:
    if isinstance(source, FileReplay) and not source.realtime:
        return AudioKind.RECORDED
    return AudioKind.LIVE if source.realtime else AudioKind.EITHER
