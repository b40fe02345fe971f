"""What `streamer bench` measures: recordings played to the engine of the daemon, and what that costs."""

import contextlib
import logging
import platform
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec
import openvino
import psutil
from rich.console import Console

from streamer.audio.sources.file import Recording, check_audio, read_audio
from streamer.commands.energy import EnergyMeter
from streamer.commands.figures import Run
from streamer.commands.words import word_delays
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.decoder import make_engine
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.errors import InferenceError, TruncatedAudioError
from streamer.events import End, Error, Event, Final
from streamer.offline import transcribe
from streamer.settings.table import Settings
from streamer.setup.loading import load_chosen
from streamer.setup.progress import show_files
from streamer.version import __version__
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options

logger = logging.getLogger(__name__)

# Samples that a session is given at a time: 20 ms, as a browser or a sound card delivers them.
N_FED = SAMPLE_RATE // 50

# Between two measurements of the memory, in seconds.
MEMORY_EVERY_S = 0.02


def measure(settings: Settings, paths: Sequence[Path]) -> tuple[list[Run], dict[str, object], dict[str, float]]:
    """Return what a model made of each recording, what figures depend on, and the cost of the model itself."""
    begin_s = time.perf_counter()
    settings, model = load_chosen(settings)
    load_s = time.perf_counter() - begin_s
    engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
    engine.start()
    try:
        with PeakMemory() as memory:
            runs = [_play(path, engine, settings, model) for path in paths]
        capacity = engine.load.capacity
    finally:
        engine.stop()
    facts = {**_facts(model), "sessions": capacity}
    model.unload()  # to transcribe offline it is loaded anew, with other graphs
    return runs, facts, {"load_s": load_s, "peak_rss_mb": memory.peak_mb}


def with_offline(runs: Sequence[Run], paths: Sequence[Path], settings: Settings) -> list[Run]:
    """Return runs with what `streamer transcribe` writes of their recordings, with the same model and options."""
    settings, model = load_chosen(settings, live=False)
    decoding = decode_options(settings.decoding, model, settings.speech)
    found = []
    for run, path in zip(runs, paths, strict=True):
        logger.info("%s is transcribed offline", path)
        finals = transcribe(model, Recording(path).read(), decoding)
        found.append(msgspec.structs.replace(run, offline=[(final.start, final.text) for final in finals]))
    return found


def _facts(model: WhisperModel) -> dict[str, object]:
    """Return what figures depend on."""
    return {
        "versions": {"streamer": __version__, "openvino": openvino.get_version(), "python": platform.python_version()},
        "model": model.name,
        "weights": model.weights,
        "windows_s": list(model.runtime.windows_s),
        "devices": dict(model.runtime.devices),
        "from_cache": model.from_cache,
    }


def _play(path: Path, engine: Engine[EncodedWindow], settings: Settings, model: WhisperModel) -> Run:
    """Play a recording to an engine and wait for its last event. Raises StreamerError."""
    log = EventLog(path.name, settings.server.history_events)
    live = open_session(settings, model, log, SessionSource(kind=AudioKind.LIVE))
    events: list[tuple[float, Event]] = []
    ended = threading.Event()

    def keep(event: Event) -> None:
        events.append((time.monotonic() - begin_s, event))
        if isinstance(event, End) or (isinstance(event, Error) and event.fatal):
            ended.set()

    stats = engine.stats
    computing_s = stats.encode_s + stats.decode_s
    energy = EnergyMeter()
    cpu_s, begin_s = time.process_time(), time.monotonic()
    log.subscribe(keep)
    engine.add(live)
    try:
        n_samples = _feed(live, path, begin_s, ended, energy)
        while not ended.wait(0.2):  # in steps, so that Ctrl-C gets through on every system
            pass
    finally:
        live.close()
    for _, event in events:
        if isinstance(event, Error) and event.fatal:
            raise InferenceError(f"{path}: {event.message}")
    finals = [event for _, event in events if isinstance(event, Final) and event.text]
    return Run(
        segments=[(final.start, final.text) for final in finals],
        language=finals[0].language if finals else "",
        audio_s=n_samples / SAMPLE_RATE,
        wall_s=stats.encode_s + stats.decode_s - computing_s,
        cpu_s=time.process_time() - cpu_s,
        energy_j=energy.joules(),
        delays_s=word_delays(events),
    )


def _feed(live: LiveSession, path: Path, begin_s: float, ended: threading.Event, energy: EnergyMeter) -> int:
    """Write a recording to a session until it has ended, each piece when it has been spoken; return the samples."""
    logger.info("%s is played at real-time pace", path)
    n_samples = 0
    with show_files(Console(stderr=True), {path: check_audio(path)}) as begin:
        on_progress = begin(path)
        with contextlib.suppress(TruncatedAudioError):  # what it holds is measured
            for block in read_audio(path, on_error=lambda error: logger.warning("%s", error)):
                for first in range(0, len(block), N_FED):
                    piece = block[first : first + N_FED]
                    n_samples += len(piece)
                    if ended.wait(max(0.0, begin_s + n_samples / SAMPLE_RATE - time.monotonic())):
                        return n_samples
                    live.write(piece)
                energy.joules()  # often, so that no counter begins anew unseen
                on_progress(n_samples, None)
        live.end()
    return n_samples


class PeakMemory:
    """The highest resident memory of a process since the block was entered."""

    def __init__(self, pid: int | None = None) -> None:
        """Prepare; `pid` is a process's number (default: this one)."""
        self._process = psutil.Process(pid)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._peak_bytes = 0

    @property
    def peak_mb(self) -> float:
        """In units of 2**20 bytes."""
        return self._peak_bytes / 2**20

    def __enter__(self) -> Self:
        self._measure()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._left.wait(MEMORY_EVERY_S):
            self._measure()

    def _measure(self) -> None:
        with contextlib.suppress(psutil.Error):  # it has ended
            self._peak_bytes = max(self._peak_bytes, self._process.memory_info().rss)
