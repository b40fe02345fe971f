"""The composition root: builds the parts, starts them, watches over them and stops them."""

import asyncio
import contextlib
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from rich.console import Console

from streamer import __version__
from streamer.audio.sources import FileReplay, Microphone, Source, SourceCallbacks, StdinPcm, standard_input
from streamer.commands.loading import load
from streamer.errors import AudioDeviceError, StreamerError
from streamer.events import Error
from streamer.live.captions import drawn_captions
from streamer.live.clients import SESSION_NAME_BYTES, ClientStreams
from streamer.live.decoder import make_engine
from streamer.live.sessions import open_session, write_all
from streamer.server.front import Server
from streamer.server.metrics import register_engine
from streamer.settings.check import check_options, check_options_of_model
from streamer.settings.table import Settings
from streamer.sinks.terminal import TerminalSink
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind, SessionRunner
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)


# How long a stop waits for what was said last to become final. A pass over 30 s takes a few seconds on a slow CPU.
FLUSH_TIMEOUT_S = 30.0

# The origin of the model that comes with the program.
EMBEDDED_ORIGIN = "streamer/nano.en"

# A model for people's speech, by the name under which it can be fetched.
FULL_SIZE_MODEL = "base.en"


def run(settings: Settings, *, captions: bool) -> int:
    """Run the daemon until it is told to stop, or its input ends and `input.exit_at_end` is set.

    With `captions` they are drawn on standard output. Returns the exit code. Raises StreamerError where it cannot
    start.
    """
    return asyncio.run(_Daemon(settings, captions=captions).run())


class _Daemon:
    """One run of the daemon."""

    def __init__(self, settings: Settings, *, captions: bool) -> None:
        self._settings = settings
        self._captions = captions
        self._session = secrets.token_urlsafe(SESSION_NAME_BYTES)
        self._started = time.monotonic()
        # What /healthz says.
        self._status = "starting"
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
        # Set from a signal, or when the input has ended and that is the end.
        self._stop = asyncio.Event()
        # What the input ended with.
        self._failure: StreamerError | None = None

    async def run(self) -> int:
        settings = self._settings
        check_options(settings, streaming=True)
        loop = asyncio.get_running_loop()
        source = _make_source(settings)
        if source is not None:
            self._log = EventLog(self._session, settings.server.history_events)
        self._source = source
        registry = CollectorRegistry()
        streams = ClientStreams(settings)
        server = Server(
            host=settings.server.host,
            port=settings.server.port,
            token=settings.server.token,
            origins=settings.server.origins,
            max_subscribers=settings.server.max_subscribers,
            queue_events=settings.server.queue_events,
            feed=self._log,
            input_now=lambda: self._input,
            streams=streams,
            health=self._health,
            registry=registry,
        )
        url = await server.start()
        try:
            with _signals(loop, self._stop.set, self._toggle_pause), self._drawn():
                if isinstance(source, Microphone) and not settings.input.fallback:
                    # Before the model is loaded: it may take minutes to compile for nothing.
                    await asyncio.to_thread(source.check)
                n_beams = settings.decoding.beam_size
                model = await self._unless_stopped(lambda: load(settings.model, n_beams=n_beams))
                if model is None:
                    return 0
                self._model = model
                check_options_of_model(settings.decoding, model)
                engine = self._engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
                register_engine(registry, engine)
                engine.start()
                live = self._start_input(engine, model, loop) if self._log is not None else None
                streams.serve_with(engine, model)
                self._status = "ok"
                logger.info("listening on %s", url)
                if self._source is not None:
                    logger.info("input: %s", self._source.name)
                if isinstance(self._source, Microphone) and model.origin == EMBEDDED_ORIGIN:
                    logger.warning(
                        "nano.en is no model for people's everyday speech: --model %s fetches one that is,"
                        " about 290 MB",
                        FULL_SIZE_MODEL,
                    )
                await self._stop.wait()
                self._status = "stopping"
                if live is not None:
                    await self._flush(live)
        finally:
            await server.stop()
            if self._engine is not None:
                await asyncio.to_thread(self._engine.stop)
        if self._failure is not None and settings.input.exit_at_end:
            raise self._failure
        return 0

    async def _unless_stopped(self, load: Callable[[], WhisperModel]) -> WhisperModel | None:
        """Load in a thread that is left behind when the daemon is stopped: compiling may take minutes."""
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[WhisperModel] = loop.create_future()

        def settle(model: WhisperModel | None, error: Exception | None) -> None:
            if loaded.cancelled():
                return
            if model is not None:
                loaded.set_result(model)
            elif error is not None:
                loaded.set_exception(error)

        def work() -> None:
            try:
                outcome: tuple[WhisperModel | None, Exception | None] = (load(), None)
            except Exception as error:  # noqa: BLE001 - raised again where it is awaited
                outcome = (None, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, *outcome)

        threading.Thread(target=work, name="load", daemon=True).start()
        stopped = asyncio.create_task(self._stop.wait())
        both: list[asyncio.Future[Any]] = [loaded, stopped]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if loaded.done():
            return loaded.result()
        loaded.cancel()
        return None

    def _start_input(
        self, engine: Engine[EncodedWindow], model: WhisperModel, loop: asyncio.AbstractEventLoop
    ) -> SessionRunner:
        """Start the source, or what stands in for it, and its session. Raises StreamerError."""
        settings, log, source = self._settings, self._log, self._source
        assert log is not None
        assert source is not None

        def finished() -> None:
            log.close()
            if live.failing:
                self._failure = StreamerError(live.failing)
            loop.call_soon_threadsafe(self._input_over.set)
            if settings.input.exit_at_end:
                loop.call_soon_threadsafe(self._stop.set)

        live = open_session(
            settings,
            model,
            log,
            kind=_kind(source),
            reserved=True,
            on_finished=finished,
        )
        engine.add(live)
        self._input = live

        def ended(error: StreamerError | None) -> None:
            if error is not None:
                log.append(Error(code=error.code, message=str(error), fatal=True))
                self._failure = error  # what the daemon ends with
                if not settings.input.exit_at_end:
                    logger.error("%s", error)
            live.end()

        def callbacks(source: Source) -> SourceCallbacks:
            return SourceCallbacks(
                on_audio=live.write
                if source.realtime
                else lambda samples: write_all(live, samples, self._source_stopped.is_set),
                on_gap=live.write_gap,
                on_error=lambda error: _tell_error(log, error),
                on_end=ended,
            )

        try:
            source.start(callbacks(source))
        except AudioDeviceError as error:
            if settings.input.source != "mic" or not settings.input.fallback:
                raise
            logger.warning("%s", error)
            logger.warning("playing %s instead", settings.input.fallback)
            self._source = source = FileReplay(Path(settings.input.fallback), settings.input.speed)
            live.kind = _kind(source)
            source.start(callbacks(source))
        return live

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


def _make_source(settings: Settings) -> Source | None:
    match settings.input.source:
        case "none":
            return None
        case "mic":
            return Microphone(settings.input.microphone)
        case "-":
            return StdinPcm(
                standard_input(),
                settings.input.stdin_format,
                settings.input.stdin_sample_rate,
                settings.input.stdin_channels,
            )
        case path:
            return FileReplay(Path(path), settings.input.speed)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], pause: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and a request to terminate stop the daemon in order; a second one ends it at once.

    SIGUSR1 (not on Windows) calls `pause`.
    """
    stopping = [name for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    pausing = [name for name in ("SIGUSR1",) if hasattr(signal, name)]
    previous = {name: signal.getsignal(getattr(signal, name)) for name in (*stopping, *pausing)}

    def on_stop(number: int, _frame: object) -> None:
        logger.info("stopping (%s); once more to stop at once", signal.Signals(number).name)
        for name in stopping:
            signal.signal(getattr(signal, name), previous[name])
        loop.call_soon_threadsafe(stop)

    def on_pause(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(pause)

    for name in stopping:
        signal.signal(getattr(signal, name), on_stop)
    for name in pausing:
        signal.signal(getattr(signal, name), on_pause)
    try:
        yield
    finally:
        for name, handler in previous.items():
            signal.signal(getattr(signal, name), handler)


def _kind(source: Source) -> AudioKind:
    if isinstance(source, FileReplay) and not source.realtime:
        return AudioKind.RECORDED
    return AudioKind.LIVE if source.realtime else AudioKind.EITHER


def _tell_error(log: EventLog, error: StreamerError) -> None:
    logger.warning("%s", error)
    log.append(Error(code=error.code, message=str(error), fatal=False))
