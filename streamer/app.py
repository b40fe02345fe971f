"""The composition root: builds the parts, starts them, supervises them and stops them."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping

import msgspec
import psutil
from prometheus_client import CollectorRegistry
from rich.console import Console

from streamer import descriptors, signals, systemd
from streamer.after.postprocessing import PostProcessing
from streamer.check import check_options
from streamer.daemon.clients import SESSION_NAME_BYTES, ClientStreams
from streamer.daemon.local import LocalBackend
from streamer.daemon.own_input import OwnInput, make_source
from streamer.daemon.recordings import Recordings
from streamer.daemon.sessions import open_log
from streamer.engine.decoder import make_engine
from streamer.engine.engine import Engine
from streamer.engine.yielding import watch_beside_live
from streamer.errors import ConfigError, StreamerError
from streamer.history.writer import History, open_history
from streamer.log import set_levels
from streamer.outputs.outputs import Outputs
from streamer.outputs.terminal import Terminal, TerminalSink
from streamer.server.context import Services
from streamer.server.front import Server
from streamer.server.metrics import (
    register_engine,
    register_history,
    register_model,
    register_outputs,
    register_process,
)
from streamer.settings.load import default_token_path
from streamer.settings.registry import SETTINGS, value_of
from streamer.settings.table import Settings
from streamer.setup.loading import device_settings, load_chosen
from streamer.setup.models import Models, unless_stopped
from streamer.version import __version__
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.shipped import limits

logger = logging.getLogger(__name__)


# A thread of the engine that runs no further graph for this long is stuck: a run takes seconds. While a model is
# started again after its device failed, which is compiled anew, it may take longer.
STUCK_S = 120.0
STUCK_RECOVERING_S = 900.0

# Between two checks whether the model is idle.
IDLE_CHECK_S = 5.0

# Settings that SIGHUP can change while the daemon runs.
RELOADABLE = (
    *("server.token", "server.token_file", "server.origins", "server.proxies"),
    *("server.max_streams", "server.max_subscribers", "server.resume_s"),
    *("server.max_connections", "server.max_connections_per_address"),
    *("server.max_recordings", "server.max_upload_mb"),
    *("server.header_timeout_s", "server.first_message_s", "server.idle_s"),
    *("log.level", "log.access"),
)


def run(settings: Settings, *, captions: bool, corrections: bool, read_settings: Callable[[], Settings]) -> int:
    """Run the daemon until it is stopped, or until its input ends if `input.exit_at_end` is set.

    captions : whether the input's captions are drawn on standard output
    corrections : whether corrections are printed there, as lines of their own
    read_settings : called at SIGHUP

    Returns the exit code. Raises StreamerError if it cannot start.
    """
    descriptors.raise_limit()
    if settings.model.unload_s:
        # oneDNN keeps what it has made for graphs when they are freed, 40 MB. Graphs have caches of their own.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0")
    with open_history(settings.server) as history:
        daemon = Daemon(settings, history, captions=captions, corrections=corrections, read_settings=read_settings)
        return asyncio.run(daemon.run())


class Daemon:
    """One run of the daemon."""

    def __init__(
        self,
        settings: Settings,
        history: History | None = None,
        *,
        captions: bool,
        corrections: bool = False,
        read_settings: Callable[[], Settings],
    ) -> None:
        # The daemon's own input; None if it has none.
        self.input: OwnInput | None = None

        # Set by a signal, or when the input has ended and the daemon is to end with it.
        self.stop = asyncio.Event()

        self._settings = settings
        self._read_settings = read_settings
        self._reloaded = settings  # what SIGHUP has read last
        self._history = history
        self._captions = captions
        self._corrections = corrections
        self._started = time.monotonic()

        # As /healthz shows it.
        self._status = "starting"

        self._server: Server | None = None
        # Clients wait for it: a daemon that the first of them has started is to serve that one.
        self._ready = asyncio.Event()
        self._backend = LocalBackend(settings, history, self._ready)
        self._streams = ClientStreams(settings.server, self._backend)
        models = Models(settings.model, lambda name: _load_beside(settings, name))
        self._recordings = Recordings(settings, models, self._ready)

        # None before the model is loaded.
        self._engine: Engine[EncodedWindow] | None = None
        self._model: WhisperModel | None = None
        self._enrichment: PostProcessing | None = None

    async def run(self) -> int:
        """Run until `stop` is set; return the exit code. Raises StreamerError."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(descriptors.LoopErrors())
        with signals.handled(loop, self.stop.set, self._toggle_pause, self._reload):
            return await self._run()

    async def _run(self) -> int:
        settings = self._settings
        check_options(settings, streaming=True)
        source = make_source(settings.input)
        if source is None and settings.outputs.to:
            raise ConfigError(
                "--to sends the text of the daemon's own input, and --input is none: name one, or drop --to"
            )
        outputs = Outputs(settings)
        if source is not None:
            name = secrets.token_urlsafe(SESSION_NAME_BYTES)
            log, keep_audio = open_log(name, settings.server, self._history, source=source.name)
            if self._captions:
                terminal = Terminal(Console(), corrections=self._corrections)
                outputs.add("terminal", TerminalSink(terminal, settings.server.history_events))
            log.subscribe(outputs.put)
            self.input = OwnInput(settings, source, log, keep_audio)
        registry = CollectorRegistry()
        register_process(registry)
        if self._history is not None:
            register_history(registry, self._history)
        register_outputs(registry, outputs)
        services = Services(
            streams=self._streams,
            health=self._health,
            is_live=lambda: not self._stuck(),
            input=self.input,
            recordings=self._recordings,
            history=self._history,
        )
        server = self._server = Server(settings.server, services, registry, default_token_path(), systemd.sockets())
        if not server.activated:
            self._ready.set()
        url = await server.start()
        watching = asyncio.create_task(self._feed_watchdog())
        try:
            await self._transcribe(server, url, registry)
        finally:
            watching.cancel()
            self._ready.set()
            self._recordings.stop()
            await asyncio.to_thread(outputs.close)
            await server.stop()
            if self._engine is not None:
                await asyncio.to_thread(self._engine.stop)
        if settings.input.exit_at_end and self.input is not None and self.input.failure is not None:
            raise self.input.failure
        return 0

    async def _transcribe(self, server: Server, url: str, registry: CollectorRegistry) -> None:
        """Load the model and transcribe the input and what clients send until the daemon is to stop."""
        systemd.notify("STATUS=loading the model")
        if self.input is not None:
            await self.input.check()
        loaded = await unless_stopped(lambda: load_chosen(self._settings, at_once=True), self.stop)
        if loaded is None:
            return
        settings, model = loaded
        self._model = model
        engine = self._engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
        register_engine(registry, engine)
        register_model(registry, lambda: model.loaded)
        engine.start()
        watch_beside_live(model, engine.wait_idle)
        self._enrichment = PostProcessing(settings, model, engine)
        self._backend.serve_with(engine, model, self._enrichment)
        self._recordings.serve_with(model, engine.wait_idle, self._enrichment.glossary)
        self._ready.set()
        await server.serve_model(model.name, model.tokenizer.known_languages)
        # Before the input begins: a short file may have ended at once, and would say so first.
        logger.info("listening on %s", url)
        if self.input is not None:
            end = self.stop if settings.input.exit_at_end else asyncio.Event()
            self.input.start(engine, model, self._enrichment, end)
        self._status = "ok"
        systemd.notify("READY=1", f"STATUS=listening on {url}")
        idling = asyncio.create_task(self._unload_when_idle(server, engine, model, self._enrichment))
        await self.stop.wait()
        idling.cancel()
        self._status = "stopping"
        systemd.notify("STOPPING=1", "STATUS=making final what was said last")
        server.drain()
        self._recordings.stop()
        if self.input is not None:
            await self.input.flush()

    async def _unload_when_idle(
        self, server: Server, engine: Engine[EncodedWindow], model: WhisperModel, enrichment: PostProcessing
    ) -> None:
        """Free the models after `model.unload_s` without a session; stop if the service manager starts us again."""

        def unload() -> None:
            n_before = psutil.Process().memory_info().rss
            enrichment.unload()
            self._recordings.unload()
            if model.unload():
                n_after = psutil.Process().memory_info().rss
                logger.info(
                    "%s left memory after %g s without a session: %.0f MB instead of %.0f",
                    *(model.name, unload_s, n_after / 1e6, n_before / 1e6),
                )

        while unload_s := self._settings.model.unload_s:
            idle_s = min(engine.idle_s, self._recordings.idle_s)
            if idle_s >= unload_s and server.activated and not server.n_connections:
                logger.info("no client for %g s: the next one starts the daemon again", unload_s)
                server.close_listeners()
                self.stop.set()
            elif idle_s >= unload_s:
                await asyncio.to_thread(unload)
            await asyncio.sleep(min(max(unload_s - idle_s, 1.0), IDLE_CHECK_S))

    def _toggle_pause(self) -> None:
        if self.input is not None:
            self.input.toggle_pause()
        else:
            logger.warning("there is no input to pause")

    def _reload(self) -> None:
        """Read the settings again, and take over those that can change while the daemon runs."""
        systemd.notify_reloading()
        try:
            settings = self._read_settings()
            changed = [name for name in RELOADABLE if value_of(settings, name) != value_of(self._reloaded, name)]
            fixed = [name for name in SETTINGS if name not in RELOADABLE]
            late = [name for name in fixed if value_of(settings, name) != value_of(self._settings, name)]
            # All is read, and may be refused, before anything of it is in use.
            take_glossary = self._enrichment.reread() if self._enrichment is not None else lambda: None
            # The address, for one, stays: rules must not be made for another.
            new = {
                name.partition(".")[2]: value_of(settings, name) for name in RELOADABLE if name.startswith("server.")
            }
            front = msgspec.structs.replace(self._settings.server, **new)
            if self._server is not None:
                self._server.reload(front)
                self._streams.settings = front
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
        """Notify the service manager's watchdog, if it has one, for as long as the engine is not stuck."""
        interval_s = systemd.watchdog_s()
        while interval_s is not None:
            if self._stuck():
                logger.error("the engine is stuck: the service manager's watchdog is no longer notified")
            else:
                systemd.notify("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    def _stuck(self) -> bool:
        """Return whether a thread of the engine has died, or works on something that will not end."""
        if self._engine is None or self._model is None:
            return False
        return self._engine.stalled_s > (STUCK_RECOVERING_S if self._model.recovering else STUCK_S)

    def _health(self) -> Mapping[str, object]:
        model = self._model
        failure = self._failing()
        enrichment = str(self._enrichment.health) if self._enrichment is not None else ""
        notice = limits(model.origin) if model is not None else ""
        return {
            "status": "failing" if failure and self._status == "ok" else self._status,
            **({"failure": failure} if failure else {}),
            **({"enrichment": enrichment} if enrichment else {}),
            **({"notice": notice} if notice else {}),
            "version": __version__,
            "input": self.input.name if self.input is not None else "none",
            "model": model.name if model is not None else self._settings.model.name,
            "device": dict(model.runtime.devices) if model is not None else {},
            **({"model_state": model.state} if model is not None else {}),
            "uptime_s": round(time.monotonic() - self._started, 1),
        }

    def _failing(self) -> str:
        """Return in a few words what keeps text from coming; empty if nothing does."""
        own = self.input
        engine = self._engine.failing if self._engine is not None else ""
        ended = str(own.failure) if own is not None and own.failure is not None else ""
        return (own.failing if own is not None else "") or engine or ended


def _load_beside(settings: Settings, name: str) -> WhisperModel:
    """Load a model that a request asks for."""
    model, n_beams = settings.model, settings.decoding.beam_size
    return load_model(
        name,
        LoadOptions(
            device_settings(model),
            cache_dir=model.cache_dir,
            n_beams=n_beams,
            live=False,
            at_once=True,
            weights="auto",
        ),
    )
