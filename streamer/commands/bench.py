"""What `streamer bench` shows: delay, flicker and cost of live captions on this machine, with this model."""

import contextlib
import dataclasses
import logging
import platform
import queue
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino
import psutil
from rich.console import Console
from rich.table import Table

from streamer import __version__
from streamer.arrays import Float32Array
from streamer.audio.constants import FRAMES_PER_SECOND, SAMPLE_RATE
from streamer.audio.sources.file import check_audio, read_audio
from streamer.bench.figures import Figures, pool
from streamer.bench.measure import Reference, SpokenWord, measure
from streamer.bench.recorder import Recorder
from streamer.bench.report import as_json, print_figures
from streamer.bench.text import plain
from streamer.bench.timeline import Timeline
from streamer.bench.word_times import words_of
from streamer.commands.auto import choose_model
from streamer.commands.files import check_recordings, check_target, find_recordings, opened, read_spoken
from streamer.commands.loading import load
from streamer.commands.progress import OnProgress, show_files
from streamer.commands.timing import times_s
from streamer.errors import InferenceError, TruncatedAudioError, UsageError
from streamer.events import End, Error, Event
from streamer.live.decoder import make_engine
from streamer.live.sessions import open_session
from streamer.settings.check import check_options, check_options_of_model
from streamer.settings.table import Settings
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind
from streamer.whisper.device.devices import describe_device, the_core
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.shipped import SAMPLE_OF, shipped

logger = logging.getLogger(__name__)

# Times that each call is measured; the median counts.
N_CALLS = 9

# Samples that a session is given at a time: 20 ms, as a browser or a sound card delivers them.
N_FED = SAMPLE_RATE // 50


def bench(settings: Settings, names: Sequence[str], *, json_path: Path | None, console: Console) -> int:
    """Play files at real-time pace through the engine of the daemon and print what came of it.

    names : files, folders with all below them, and patterns; without any the sample of the shipped model is played

    Returns the exit code. Raises StreamerError.
    """
    check_options(settings, streaming=True)
    paths = find_recordings(names) if names else [_sample()]
    check_recordings(paths)
    texts = {path: _text_beside(path) for path in paths}
    check_target(json_path, "--json")
    settings = choose_model(settings, live=True)
    model = load(settings.model, n_beams=settings.decoding.beam_size)
    check_options_of_model(settings.decoding, model)
    me = psutil.Process()
    start = {
        "start_s": time.time() - me.create_time(),
        "from_cache": model.from_cache,
        "loaded_rss_mb": me.memory_info().rss / 2**20,
    }
    calls = measure_calls(model)
    _print_calls(model, calls, console)
    engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
    engine.start()
    try:
        played = {}
        for path in paths:
            with progress(path) as on_progress:
                played[path] = play(path, settings, model, engine, on_progress)
        capacity = engine.load.capacity
    finally:
        engine.stop()
    columns: dict[str, Figures] = {}
    for path, each in played.items():
        columns[_unlike(path.name, columns)] = _figures(each, path, texts[path], settings, model)
    every = pool(list(columns.values()))
    if len(columns) > 1:
        columns["all"] = every
    print_figures(columns, console, title="Live captions; a word ends where the model's own alignment puts it")
    _print_sessions(settings, every, capacity, console)
    how = "all graphs were in the cache" if model.from_cache else "not all graphs were in the cache"
    console.print(
        f"Ready {start['start_s']:.1f} s after the program began ({how}), with {start['loaded_rss_mb']:.0f} MB.",
        highlight=False,
    )
    if json_path is not None:
        more = {
            "model": model.name,
            "weights": model.weights,
            "windows_s": list(model.runtime.windows_s),
            "beams": settings.decoding.beam_size or model.n_beams,
            "devices": dict(model.runtime.devices),
            "versions": {
                "streamer": __version__,
                "openvino": openvino.get_version(),
                "python": platform.python_version(),
            },
            "processor": {"name": describe_device(the_core(), "CPU").full_name, "cores": psutil.cpu_count()},
            "calls_s": calls,
            "sessions": capacity,
            "pace_s": settings.stream.pace_s,
            "max_pace_s": settings.stream.max_pace_s,
            **start,
        }
        with opened(json_path, "--json") as stream:
            stream.write(as_json(columns, **more))
    return 0


def measure_calls(model: WhisperModel) -> dict[str, float]:
    """Return what each call of the model takes, in seconds: the median of some, the device warm."""
    runtime = model.runtime
    noise = np.random.default_rng(0)
    calls = {}
    for window_s in runtime.windows_s:
        mel = noise.standard_normal((model.dims.n_mels, window_s * FRAMES_PER_SECOND), dtype=np.float32)
        encoded = runtime.encode(mel, 0)
        times = times_s(lambda mel=mel: runtime.encode(mel, 0), N_CALLS)  # type: ignore[misc]
        calls[f"encoder and cross-KV, {window_s} s of audio"] = statistics.median(times)
        runtime.decoder.use(encoded)
    token = model.tokenizer.special.start_of_transcript
    for n in dict.fromkeys((1, runtime.decoder.block_tokens)):
        name = "decoder, one token" if n == 1 else f"decoder, {n} tokens at once"
        times = times_s(lambda n=n: runtime.decoder.feed([token] * n), N_CALLS, runtime.decoder.begin)  # type: ignore[misc]
        calls[name] = statistics.median(times)
    runtime.decoder.begin()
    return calls


@dataclass(frozen=True, slots=True)
class Played:
    """What a session showed of a recording."""

    timeline: Timeline
    words: Sequence[SpokenWord]  # of its finals
    wait_s: float  # the silence that it waits for

    def figures(self, reference: Reference | None = None) -> Figures:
        """Return its figures beside what was said, or where that is not known, beside the words of its finals."""
        figures = measure(self.timeline, reference or Reference(None, self.words), plain, wait_s=self.wait_s)
        if reference is None:  # beside its own words nothing is missing
            figures.joins, figures.lost_s = None, None
        return figures


def play(
    path: Path,
    settings: Settings,
    model: WhisperModel,
    engine: Engine[EncodedWindow],
    on_progress: OnProgress,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Played:
    """Play a file at real-time pace. Raises StreamerError."""
    wait_s = settings.speech.min_silence_s
    recorder = Recorder(wait_s)
    log = EventLog(path.name, settings.server.history_events)
    live = open_session(settings, model, log, kind=AudioKind.LIVE, on_finished=log.close)
    events: queue.SimpleQueue[tuple[float, Event]] = queue.SimpleQueue()
    log.subscribe(lambda event: events.put((time.monotonic(), event)))
    me = psutil.Process()
    peak_bytes = me.memory_info().rss
    before = dataclasses.replace(engine.stats)
    cpu_s = time.process_time()
    engine.add(live)
    begin_s = time.monotonic()
    n_samples = 0
    ended = False

    def take(wait_until_s: float) -> None:
        """Take events until a moment, or until the last of them."""
        nonlocal ended
        while not ended:
            try:
                when_s, event = events.get(timeout=max(0.0, wait_until_s - time.monotonic()))
            except queue.Empty:
                return
            recorder.take(event, when_s - begin_s)
            on_event(event)
            if isinstance(event, Error) and event.fatal:
                raise InferenceError(f"{path}: {event.message}")
            ended = isinstance(event, End)

    try:
        with contextlib.suppress(TruncatedAudioError):  # what it holds is measured
            for block in read_audio(path, on_error=lambda error: logger.warning("%s", error)):
                for first in range(0, len(block), N_FED):
                    piece = block[first : first + N_FED]
                    n_samples += len(piece)
                    # It can be heard when its last sample has been spoken.
                    take(begin_s + n_samples / SAMPLE_RATE)
                    live.write(piece)
                on_progress(n_samples, None)
                peak_bytes = max(peak_bytes, me.memory_info().rss)
        live.end()
        while not ended:
            take(time.monotonic() + 0.2)  # in steps, so that Ctrl-C gets through on every system
    finally:
        live.close()
    settled_tokens = engine.stats.settled_tokens - before.settled_tokens
    timeline = recorder.timeline(
        "streamer",
        path.name,
        n_samples / SAMPLE_RATE,
        cpu_s=time.process_time() - cpu_s,
        peak_rss_mb=peak_bytes / 2**20,
        encoder_calls=engine.stats.encodes - before.encodes,
        decoder_calls=engine.stats.decoder_calls - before.decoder_calls,
        decoder_tokens=engine.stats.decoder_tokens - before.decoder_tokens + settled_tokens,
        settled_tokens=settled_tokens,
    )
    return Played(timeline, recorder.final_words, wait_s)


def _figures(played: Played, path: Path, text: str | None, settings: Settings, model: WhisperModel) -> Figures:
    """Return the figures of a recording; where its text is known, beside the times that a forced alignment finds."""
    if text is None:
        return played.figures()
    blocks: list[Float32Array] = []
    with contextlib.suppress(TruncatedAudioError):
        for block in read_audio(path):
            blocks.append(block)
    words = words_of(model, np.concatenate(blocks), text, plain, language=settings.decoding.language)
    return played.figures(Reference(text, words))


def _print_calls(model: WhisperModel, calls: Mapping[str, float], console: Console) -> None:
    devices = model.runtime.devices
    table = Table("One call", "Device", "ms", title=f"{model.name}", title_justify="left")
    for name, time_s in calls.items():
        stages = ("encoder", "cross_kv") if name.startswith("encoder") else ("decoder",)
        table.add_row(name, " and ".join(dict.fromkeys(devices[stage] for stage in stages)), f"{1000 * time_s:.1f}")
    console.print(table, markup=False)


def _print_sessions(settings: Settings, figures: Figures, capacity: int | None, console: Console) -> None:
    if capacity is None:
        return
    some = "one session" if capacity == 1 else f"{capacity} sessions"
    console.print(
        f"This machine would keep at most {some} of unbroken speech in real time, with a pass every"
        f" {settings.stream.max_pace_s:g} s; one takes {figures.cpu_s / figures.audio_s:.2f} of a processor core."
        " With many at once a pass takes longer than it took here.",
        highlight=False,
    )


def _sample() -> Path:
    """Return the shipped model's sample. Raises UsageError where it is not there."""
    sample = shipped().get(SAMPLE_OF, Path()) / "sample.flac"
    if not sample.is_file():
        raise UsageError(f"the sample that comes with {SAMPLE_OF} is missing: name a file of speech to measure with")
    return sample


def _text_beside(path: Path) -> str | None:
    """Return the text of a recording, from the file beside it; None where there is none. Raises UsageError."""
    beside = path.with_suffix(".txt")
    if beside == path or not beside.is_file():
        return None
    return read_spoken(beside)


def _unlike(name: str, names: Mapping[str, object]) -> str:
    """Return a name that is not among others: files of different folders may be called the same."""
    return name if name not in names else _unlike(f"{name}'", names)


@contextlib.contextmanager
def progress(path: Path) -> Iterator[OnProgress]:
    logger.info("%s is played at real-time pace", path)
    with show_files(Console(stderr=True), {path: check_audio(path)}) as begin:
        yield begin(path)
