"""The daemon's own input: a microphone, the computer's sound or an application's, a file, a pipe or an address."""

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from streamer.after.postprocessing import PostProcessing
from streamer.audio.sources.address import Address, is_address
from streamer.audio.sources.application import PREFIX, Application
from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.audio.sources.file import FileReplay
from streamer.audio.sources.microphone import Microphone
from streamer.audio.sources.mixed import Mixed
from streamer.audio.sources.stdin import StdinPcm, standard_input
from streamer.audio.sources.system import SystemSound
from streamer.daemon.sessions import SessionSource, open_session, tell_error, write_all
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind
from streamer.engine.journal import KeepAudio, no_audio
from streamer.engine.live_session import LiveSession
from streamer.errors import AudioDeviceError, StreamerError
from streamer.events import Error, Event
from streamer.settings.table import InputSettings, Settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

BATTERY_CHECK_S = 30.0  # between two looks at the battery

# How long a stop waits for what was said last to become final. A pass over 30 s takes a few seconds on a slow CPU.
FLUSH_TIMEOUT_S = 30.0


def make_source(settings: InputSettings) -> Source | None:
    """Return the source that the settings name; None for `none`. Raises StreamerError if there is no such audio."""
    match settings.source:
        case "none":
            return None
        case "mic":
            return Microphone(settings.microphone)
        case "system":
            return SystemSound()
        case "mic+system":
            return Mixed({"mic": Microphone(settings.microphone), "system": SystemSound()})
        case name if name.startswith(PREFIX):
            return Application(name.removeprefix(PREFIX))
        case both if both.startswith(f"mic+{PREFIX}"):
            application = Application(both.removeprefix(f"mic+{PREFIX}"))
            return Mixed({"mic": Microphone(settings.microphone), "app": application})
        case "-":
            form = (settings.stdin_format, settings.stdin_sample_rate, settings.stdin_channels)
            return StdinPcm(standard_input(), *form)
        case url if is_address(url):
            return Address(url, settings.speed)
        case path:
            return FileReplay(Path(path), settings.speed)


class SpokenInto(Follower):
    """Labels finals with the source, of two that are mixed, that somebody spoke into."""

    def __init__(self, source: Mixed) -> None:
        self._source = source

    def label(self, event: Event) -> Event:
        return self._source.labelled(event)


class OwnInput:
    """A source of audio, its session, and the log of its events."""

    def __init__(self, settings: Settings, source: Source, log: EventLog, keep: KeepAudio = no_audio) -> None:
        """Publish to `log` what a source says; `keep` keeps its audio."""
        self.log = log
        self._keep = keep

        # What turns the audio into text; None before the model is loaded.
        self.session: LiveSession | None = None

        # What the input ended with.
        self.failure: StreamerError | None = None

        self._settings = settings
        self._source = source

        # Set when the source is to stop: it must no longer wait for room in the buffer.
        self._stopped = threading.Event()

        # Set when everything that was said is final, with what else is set then.
        self._over = asyncio.Event()
        self._ends: tuple[asyncio.Event, ...] = (self._over,)
        self._loop = asyncio.get_running_loop()

        # Pauses the session while the battery is low; None if it may always compute.
        self._saving: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def failing(self) -> str:
        """What keeps audio from coming, in a few words; empty while it comes."""
        return self._source.failure

    async def check(self) -> None:
        """Raise StreamerError if there is no audio: before the model is loaded, which may take minutes."""
        if isinstance(self._source, Address | Application | Microphone | Mixed) and not self._settings.input.fallback:
            await asyncio.to_thread(self._source.check)

    def start(
        self, engine: Engine[EncodedWindow], model: WhisperModel, enrichment: PostProcessing, end: asyncio.Event
    ) -> None:
        """Start the source, or the fallback that is played instead, and its session; `end` is set when all is final.

        Raises StreamerError.
        """
        self._ends = (self._over, end)
        source, settings = self._source, self._settings.input
        mixed = [SpokenInto(source)] if isinstance(source, Mixed) else []
        live = self.session = open_session(
            self._settings,
            model,
            self.log,
            SessionSource(kind=_kind(source), reserved=True, keep=self._keep, followers=[*mixed, Last(self)]),
            enrichment=enrichment,
        )
        engine.add(live)
        logger.info("input: %s", source.name)
        try:
            source.start(self._callbacks(source, live))
        except AudioDeviceError as error:
            if settings.source != "mic" or not settings.fallback:
                raise
            logger.warning("%s", error)
            logger.warning("playing %s instead", settings.fallback)
            self._source = source = FileReplay(Path(settings.fallback), settings.speed)
            live.input = dataclasses.replace(live.input, kind=_kind(source))
            source.start(self._callbacks(source, live))
        if settings.min_battery and _kind(source) is AudioKind.LIVE:
            self._saving = asyncio.create_task(save_battery(live, settings.min_battery))

    def toggle_pause(self) -> None:
        """Pause, or go on if it is paused."""
        if self.session is None:
            logger.warning("there is no input to pause (it may not have begun yet)")
        elif self.session.paused:
            self.session.do("resume")
            logger.info("the input goes on")
        else:
            self.session.do("pause")
            logger.info("the input is paused; SIGUSR1 once more to go on")

    def finished(self) -> None:
        """Note that everything is final, and published. Called by any thread."""
        if self.session is not None and self.session.failing:
            self.failure = StreamerError(self.session.failing)
        for event in self._ends:
            self._loop.call_soon_threadsafe(event.set)

    async def flush(self) -> None:
        """Stop the source, and wait until what was said is final, no longer than `FLUSH_TIMEOUT_S`."""
        assert self.session is not None
        if self._saving is not None:
            self._saving.cancel()
        self._stopped.set()
        self.session.ring.wake()
        await asyncio.to_thread(self._source.stop)
        self.session.end()
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._over.wait()
        except TimeoutError:
            logger.error("what was said last did not become final within %d s; the rest is a gap", FLUSH_TIMEOUT_S)
            self.session.cut_short("overload")
            self.log.close()

    def _callbacks(self, source: Source, live: LiveSession) -> SourceCallbacks:
        """Return what passes a source's audio to a session."""

        def ended(error: StreamerError | None) -> None:
            if error is not None:
                self.log.append(Error(code=error.code, message=str(error), fatal=True))
                self.failure = error
                if not self._settings.input.exit_at_end:  # the daemon ends with it
                    logger.error("%s", error)
            live.end()

        stopped = self._stopped.is_set
        return SourceCallbacks(
            on_audio=live.write if source.realtime else lambda samples: write_all(live, samples, stopped),
            on_gap=live.write_gap,
            on_error=lambda error: tell_error(self.log, error),
            on_end=ended,
        )


class Last(Follower):
    """Follows an input's session behind all others: when these have finished, and all is published, it is over."""

    def __init__(self, own: OwnInput) -> None:
        self._own = own

    def finish(self, then: Callable[[], object]) -> None:
        then()
        self._own.log.call_behind(self._own.finished)


async def save_battery(live: LiveSession, least: int) -> None:
    """Pause while the machine runs on a battery below `least` percent; a user may go on nevertheless."""
    saving = False
    while True:
        charge = charge_left()
        low = charge is not None and charge < least
        if low and not saving and not live.paused:
            saving = True
            live.do("pause")
            logger.warning("the input pauses: the battery is at %d %%, below input.min_battery (%d)", charge, least)
        elif saving and not low:
            saving = False
            if live.paused:
                live.do("resume")
                logger.info("the input goes on: the battery is charged enough, or the machine is plugged in")
        await asyncio.sleep(BATTERY_CHECK_S)


def charge_left() -> float | None:
    """Return the charge of the battery that the machine runs on, in percent; None if it is plugged in or has none."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, ValueError):  # a system that psutil has none for, or cannot read
        return None
    if battery is None or battery.power_plugged is not False:  # it may be None: not known
        return None
    return float(battery.percent)


def _kind(source: Source) -> AudioKind:
    if isinstance(source, FileReplay) and not source.realtime:
        return AudioKind.RECORDED
    return AudioKind.LIVE if source.realtime else AudioKind.EITHER
