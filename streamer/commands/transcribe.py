"""Files to text, without a server: `streamer transcribe`."""

import contextlib
import logging
import queue
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
import soundfile
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.sources import FileReplay, read_audio, standard_input
from streamer.commands.loading import load
from streamer.errors import AudioFileError, InferenceError, StreamerError, TruncatedAudioError, UsageError
from streamer.events import End, Error, Event, Final, Gap
from streamer.live.decoder import make_engine
from streamer.live.sessions import open_session, ready_event, write_all
from streamer.settings.apply import ResolvedDecoding, resolve_decoding
from streamer.settings.check import check_options, check_options_of_model
from streamer.settings.table import Settings
from streamer.sinks.base import Sink
from streamer.sinks.subtitles import SubtitleOptions, open_writer, subtitle_options
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind
from streamer.transcribe import transcribe
from streamer.transcribe.diarise import ChannelLoudness
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)


# As the name of a file: audio in any format we read, on standard input.
STANDARD_INPUT = Path("-")

# Formats of which several texts can follow each other in one stream.
ENDLESS_FORMATS = ("text", "jsonl")

# Told how many samples are done, and of how many, where that is known.
OnProgress = Callable[[int, int | None], None]


def transcribe_files(
    settings: Settings, paths: Sequence[Path], *, format: str, streaming: bool, output: Path | None
) -> int:
    """Transcribe files to text, to standard output, or to `output`: a file, or a directory for several files.

    With `streaming` they go through the streaming engine as fast as it can. Returns the exit code: that of the worst
    error among the files. Raises StreamerError where nothing can be transcribed at all.
    """
    check_options(settings, streaming=streaming)
    lines = subtitle_options(settings)
    targets = _targets(paths, format, output)
    _check_openable(paths)
    if settings.decoding.diarize:
        _check_channels(paths, streaming=streaming)
    model = load(settings.model, n_beams=settings.decoding.beam_size, live=streaming)
    check_options_of_model(settings.decoding, model)
    with contextlib.ExitStack() as stack:
        if streaming:
            engine = make_engine(model, settings.decoding)
            engine.start()
            stack.callback(engine.stop)
            work: _Streaming | _Offline = _Streaming(settings, model, engine)
        else:
            work = _Offline(settings, model, resolve_decoding(settings.decoding, model))
        return max(_transcribe_file(work, path, target, format, lines) for path, target in targets.items())


def _transcribe_file(
    work: "_Streaming | _Offline", path: Path, target: Path | None, format: str, lines: SubtitleOptions
) -> int:
    """Transcribe one file and return its exit code; what is wrong with it is told."""
    console = Console(stderr=True)
    try:
        with _opened(target) as stream, _progress(console, path, target) as on_progress:
            writer = open_writer(format, stream, lines)
            try:
                work.transcribe(path, writer, on_progress)
            finally:
                writer.close()
    except StreamerError as error:
        console.print(f"streamer: error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return error.exit_code
    return 0


class _Offline:
    """Transcribes as openai-whisper does: window after window, each heard once."""

    def __init__(self, settings: Settings, model: WhisperModel, decoding: ResolvedDecoding) -> None:
        self._settings = settings
        self._model = model
        self._decoding = decoding

    def transcribe(self, path: Path, writer: Sink, on_progress: OnProgress) -> None:
        """Transcribe a file. Raises TruncatedAudioError when the text of a truncated file has been written."""
        with contextlib.ExitStack() as stack:
            recording = _Recording(path, stack)
            loudness = _hear_channels(path) if self._settings.decoding.diarize else None
            log = EventLog(path.name, self._settings.server.history_events)
            writer.handle(log.append(ready_event(self._model, self._settings.decoding.language)))
            for final in transcribe(
                self._model,
                recording.read,
                self._decoding,
                on_progress=lambda position: on_progress(position, recording.n_samples),
                on_language=_tell_language,
            ):
                writer.handle(log.append(_attributed(final, loudness)))
            writer.handle(log.append(End()))
        if recording.truncated is not None:
            raise recording.truncated


class _Recording:
    """A file's audio, to be read twice; standard input is kept in a temporary file for that."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self.path = path
        # What was wrong at its end: what there is, is transcribed first.
        self.truncated: TruncatedAudioError | None = None
        # Of the first reading.
        self.n_samples = 0
        self._times_read = 0
        # 16 kHz mono in float32.
        self._kept = stack.enter_context(tempfile.TemporaryFile()) if path == STANDARD_INPUT else None  # noqa: SIM115

    def read(self) -> Iterator[Float32Array]:
        """Read the audio in blocks, shape (n,). Raises AudioFileError where there is none."""
        self._times_read += 1
        if self._kept is not None and self._times_read > 1:
            self._kept.seek(0)
            while data := self._kept.read(4 * SAMPLE_RATE):
                yield np.frombuffer(data, dtype=np.float32)
            return
        try:
            for block in read_audio(self.path, on_error=self._tell):
                if self._times_read == 1:
                    self.n_samples += len(block)
                if self._kept is not None:
                    self._kept.write(block.tobytes())
                yield block
        except TruncatedAudioError as error:
            self.truncated = error

    def _tell(self, error: StreamerError) -> None:
        if self._times_read == 1:
            logger.warning("%s", error)


class _Streaming:
    """Transcribes as live captions are made, as fast as the engine takes the audio."""

    def __init__(self, settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow]) -> None:
        self._settings = settings
        self._model = model
        self._engine = engine

    def transcribe(self, path: Path, writer: Sink, on_progress: OnProgress) -> None:
        """Transcribe a file.

        Raises TruncatedAudioError when the text of a truncated file has been written, InferenceError when that of a
        file has of which something could not be transcribed.
        """
        log = EventLog(path.name, self._settings.server.history_events)
        live = open_session(self._settings, self._model, log, kind=AudioKind.RECORDED, on_finished=log.close)
        # Events are written by this thread, so that an output that cannot be written to ends the command.
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        for event in log.subscribe(events.put, after=0).backlog:
            writer.handle(event)
        self._engine.add(live)
        truncated: TruncatedAudioError | None = None
        lost_s = 0.0

        def write(event: Event) -> None:
            nonlocal lost_s
            writer.handle(event)
            if isinstance(event, Gap):
                lost_s += event.end - event.start

        try:
            for block in read_audio(path, on_error=lambda error: _tell_error(log, error)):
                write_all(live, block)
                on_progress(live.position, None)
                while not events.empty():
                    write(events.get())
                if live.over:
                    break  # it has failed
        except TruncatedAudioError as error:
            truncated = error
        except BaseException:
            live.close()
            raise
        live.end()
        while True:
            try:
                event = events.get(timeout=0.2)  # in steps, so that Ctrl-C gets through on every system
            except queue.Empty:
                on_progress(live.position, live.ring.head)
                continue
            write(event)
            if isinstance(event, End):
                break
        if truncated is not None:
            raise truncated
        if lost_s or live.failing:
            raise InferenceError(
                f"{lost_s:.1f} s of {path} could not be transcribed: expected all of it; the messages above say why"
            )


def _tell_error(log: EventLog, error: StreamerError) -> None:
    logger.warning("%s", error)
    log.append(Error(code=error.code, message=str(error), fatal=False))


def _tell_language(language: str, probabilities: Mapping[str, float]) -> None:
    others = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[1:3]
    beside = "".join(f", {code} {probabilities[code]:.0%}" for code in others)
    logger.info("language: %s %.0f%%%s", language, 100 * probabilities[language], beside)


def _attributed(final: Final, loudness: ChannelLoudness | None) -> Final:
    """Return a final with the channel that speaks."""
    if loudness is None:
        return final
    return msgspec.structs.replace(final, speaker=loudness.speaker(final.start, final.end))


def _hear_channels(path: Path) -> ChannelLoudness:
    loudness = ChannelLoudness()
    with soundfile.SoundFile(path) as file:
        for block in file.blocks(blocksize=file.samplerate, dtype="float32", always_2d=True):
            loudness.add(np.nan_to_num(block), file.samplerate)
    return loudness


def _check_channels(paths: Sequence[Path], *, streaming: bool) -> None:
    """Raise ConfigError or UsageError where speakers are to be told apart and cannot be."""
    for path in paths:
        if streaming or path == STANDARD_INPUT:
            raise UsageError(
                "diarize compares the channels of a whole file: expected files, without --stream; leave one out"
            )
        with contextlib.suppress(soundfile.SoundFileError, OSError):  # told when it is read
            found = soundfile.info(path)
            ChannelLoudness().add(np.zeros((0, found.channels), dtype=np.float32), found.samplerate)


def _check_openable(paths: Sequence[Path]) -> None:
    """Raise AudioFileError where no file holds audio, or standard input is closed.

    This is found before a model is loaded, which may take minutes to compile for nothing.
    """
    failure: AudioFileError | None = None
    for path in paths:
        if path == STANDARD_INPUT:
            standard_input()
            return
        try:
            FileReplay(path).stop()
        except AudioFileError as error:
            failure = failure or error
        else:
            return
    if failure is not None:
        raise failure


def _targets(paths: Sequence[Path], format: str, output: Path | None) -> dict[Path, Path | None]:
    """Return the file that the text of each recording goes to; None is standard output.

    Raises UsageError where that would destroy a recording or a text.
    """
    if output is not None and len(paths) > 1 and not output.is_dir():
        raise UsageError(f"{output} is no directory: expected one for {len(paths)} files; make it first")
    if output is None and len(paths) > 1 and format not in ENDLESS_FORMATS:
        raise UsageError(
            f"{len(paths)} files as {format} on standard output would be one broken file: name a directory with"
            f" --output, or choose the format {' or '.join(ENDLESS_FORMATS)}"
        )
    targets: dict[Path, Path | None] = {}
    for path in paths:
        target = _target(output, path, format)
        if target is not None and target in targets.values():
            raise UsageError(
                f"the text of {path} and of another file would both be {target}: expected files of different names;"
                " transcribe them one at a time, each with its own --output"
            )
        with contextlib.suppress(OSError):
            if target is not None and target.samefile(path):
                raise UsageError(f"the text of {path} would replace it: choose another place with --output")
        targets[path] = target
    return targets


def _target(output: Path | None, path: Path, format: str) -> Path | None:
    if output is None or not output.is_dir():
        return output
    stem = "stdin" if path == STANDARD_INPUT else path.stem
    return output / f"{stem}.{'txt' if format == 'text' else format}"


@contextlib.contextmanager
def _opened(target: Path | None) -> Iterator[TextIO]:
    """Open where a text goes: standard output, a pipe or device, or a file that appears when it is complete."""
    if target is None:
        yield sys.stdout
        return
    truncated: TruncatedAudioError | None = None
    try:
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", newline="\n") as stream:
                yield stream  # a pipe or a device cannot be replaced
            return
        target = target.resolve()  # a link stays one
        partial = target.with_name(f"{target.name[:200]}.{uuid.uuid4().hex[:8]}.partial")
        try:
            with partial.open("x", encoding="utf-8", newline="\n") as stream:
                try:
                    yield stream
                except TruncatedAudioError as error:
                    truncated = error  # all that there was is written
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _replace(partial, target)
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written ({error.strerror or error}): choose another place with --output"
        ) from None
    if truncated is not None:
        raise truncated


def _replace(partial: Path, target: Path) -> None:
    try:
        partial.replace(target)
    except OSError as error:
        # Such as on Windows, while another program has the file open: the work of hours is kept.
        raise UsageError(
            f"{target} cannot be replaced ({error.strerror}): the text is in {partial}; close the file and rename it"
        ) from None


@contextlib.contextmanager
def _progress(console: Console, path: Path, target: Path | None) -> Iterator[Callable[[int, int | None], None]]:
    """Show how far a file is transcribed, where a person watches who does not see the text come."""
    if not console.is_terminal or (target is None and sys.stdout.isatty()):
        yield lambda done, total: None
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(path.name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
