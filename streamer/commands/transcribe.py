"""Files to text, without a server: `streamer transcribe`."""

import contextlib
import functools
import logging
import queue
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from streamer.audio.sources.file import Recording, check_audio, read_audio
from streamer.audio.sources.stdin import standard_input
from streamer.commands.auto import choose_model
from streamer.commands.files import STANDARD_INPUT, Text, find_recordings, opened, plan_texts
from streamer.commands.loading import load
from streamer.commands.progress import OnProgress, show_files
from streamer.correct.spelling import Spelling
from streamer.errors import AudioFileError, InferenceError, StreamerError, TruncatedAudioError, UsageError
from streamer.events import End, Event, Final, Gap
from streamer.live.decoder import make_engine
from streamer.live.enrich import open_glossary
from streamer.live.sessions import open_session, ready_event, tell_error, write_all
from streamer.live.speakers import RecordedSpeakers, label_final
from streamer.outside import one_line
from streamer.settings.apply import ResolvedDecoding, resolve_decoding
from streamer.settings.check import check_options, check_options_of_model
from streamer.settings.table import Settings
from streamer.sinks.subtitles import SubtitleOptions, open_writer, subtitle_options
from streamer.stream.engine import Engine
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind
from streamer.transcribe import transcribe
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)


def transcribe_files(
    settings: Settings,
    files: Sequence[str | Path],
    *,
    format: str | None,
    streaming: bool,
    output: str | Path | None,
    folder: Path | None = None,
    track: int = 1,
) -> int:
    """Transcribe files, folders and patterns to text, to standard output, or to the files that `plan_texts` returns.

    track : which audio track of each file, from 1 on

    With `streaming` they go through the streaming engine as fast as it can. Returns the exit code: that of the worst
    error among the files. Raises StreamerError if nothing can be transcribed at all.
    """
    lines = subtitle_options(settings)
    paths = find_recordings([str(file) for file in files])
    plan = plan_texts(paths, format, output, folder, task=settings.decoding.task)
    if settings.decoding.task == "both" and streaming:
        raise UsageError("task is both, and --stream writes one text: leave out one of the two")
    if settings.speakers.enabled and streaming:
        raise UsageError("--speakers needs a whole file before its first word: leave out --stream")
    console = Console(stderr=True)
    # Now: a model may take minutes to compile for nothing.
    lengths, exit_code = check_files(paths, track, console)
    if not lengths:
        return exit_code
    check_options(settings, streaming=streaming)
    settings = choose_model(settings, live=False)
    model = load(settings.model, n_beams=settings.decoding.beam_size, live=streaming)
    check_options_of_model(settings.decoding, model)
    with contextlib.ExitStack() as stack:
        if streaming:
            engine = make_engine(model, settings.decoding)
            engine.start()
            stack.callback(engine.stop)
            work: _Streaming | _Offline = _Streaming(settings, model, engine, track)
        else:
            words = needs_words(settings, plan[paths[0]], lines)
            decoding = resolve_decoding(settings.decoding, model, settings.speech, words=words)
            work = _Offline(settings, model, decoding, track)
        # Who sees the text of a file come needs no bar.
        is_seen = len(lengths) == 1 and plan[next(iter(lengths))][0].target is None and sys.stdout.isatty()
        begin = stack.enter_context(show_files(console, {} if is_seen else lengths))
        exit_codes = [_transcribe_file(work, path, plan[path], lines, begin, console) for path in lengths]
    return max(exit_code, *exit_codes)


def needs_words(settings: Settings, texts: Sequence[Text], lines: SubtitleOptions) -> bool:
    """Return whether finals need words: plain text has no times."""
    timed = any(text.format != "text" for text in texts)
    return timed or lines.max_len > 0 or settings.speakers.enabled or bool(settings.correction.glossary)


def check_files(paths: Sequence[Path], track: int, console: Console) -> tuple[dict[Path, float | None], int]:
    """Return how many seconds the files that hold audio have, if that is known, and the exit code of the others."""
    lengths: dict[Path, float | None] = {}
    exit_code = 0
    for path in paths:
        try:
            if path == STANDARD_INPUT:
                standard_input()
                lengths[path] = None
            else:
                lengths[path] = check_audio(path, track)
        except AudioFileError as error:
            exit_code = max(exit_code, print_error(console, error))
    return lengths, exit_code


def _transcribe_file(
    work: "_Streaming | _Offline",
    path: Path,
    texts: Sequence[Text],
    lines: SubtitleOptions,
    begin: Callable[[Path], OnProgress],
    console: Console,
) -> int:
    """Transcribe one file and return its exit code; print what is wrong with it, and warn if it has no words."""
    n_finals = 0
    try:
        with writing(texts, lines) as write_text:

            def write(event: Event) -> None:
                nonlocal n_finals
                n_finals += isinstance(event, Final)
                write_text(event)

            work.transcribe(path, write, begin(path))
    except StreamerError as error:
        return print_error(console, error)
    if not n_finals:
        logger.warning("%s: no speech found, its text is empty", one_line(path.name))
    return 0


@contextlib.contextmanager
def writing(texts: Sequence[Text], lines: SubtitleOptions) -> Iterator[Callable[[Event], None]]:
    """Open the texts of a recording; yield what writes an event of its session. Raises UsageError as `opened` does."""
    with contextlib.ExitStack() as stack:
        writers = [open_writer(text.format, stack.enter_context(opened(text.target)), lines) for text in texts]

        def write(event: Event) -> None:
            for text, writer in zip(texts, writers, strict=True):
                if not text.task or not isinstance(event, Final) or text.task == (event.task or "transcribe"):
                    writer.handle(event)

        try:
            yield write
        finally:
            for writer in writers:
                writer.close()


def print_error(console: Console, error: StreamerError) -> int:
    """Print an error; return its exit code."""
    console.print(f"streamer: error: {one_line(error)}", style="red", markup=False, highlight=False, soft_wrap=True)
    return error.exit_code


class _Offline:
    """Transcribes as openai-whisper does: window after window."""

    def __init__(self, settings: Settings, model: WhisperModel, decoding: ResolvedDecoding, track: int) -> None:
        self._settings = settings
        self._model = model
        self._decoding = decoding
        self._track = track
        self._glossary = open_glossary(settings, model)
        self._speakers = RecordedSpeakers(settings) if settings.speakers.enabled else None

    def transcribe(self, path: Path, write: Callable[[Event], None], on_progress: OnProgress) -> None:
        """Transcribe a file. Raises TruncatedAudioError when the text of a truncated file has been written."""
        recording = Recording(path, self._track)
        blocks = recording.read()
        diarization = None
        if self._speakers is not None:
            blocks, diarization = self._speakers.recognize(blocks)
        log = EventLog(path.name, self._settings.server.history_events)
        write(log.append(ready_event(self._model, self._settings.decoding.language)))
        for final in transcribe(
            self._model,
            blocks,
            self._decoding,
            on_progress=lambda position: on_progress(position, recording.n_samples),
            on_language=functools.partial(_log_language, one_line(path.name)),
        ):
            if diarization is not None:
                final = label_final(final, diarization)
            if self._glossary is not None:
                final = self._glossary.spelled(final, self._settings.decoding.task)
            write(log.append(final))
        write(log.append(End()))
        if recording.truncated is not None:
            raise recording.truncated


class _Streaming:
    """Transcribes as live captions are made, as fast as the engine takes the audio."""

    def __init__(self, settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow], track: int) -> None:
        self._settings = settings
        self._model = model
        self._engine = engine
        self._track = track
        self._glossary = open_glossary(settings, model)

    def transcribe(self, path: Path, write: Callable[[Event], None], on_progress: OnProgress) -> None:
        """Transcribe a file.

        Raises TruncatedAudioError when the text of a truncated file has been written, InferenceError when that of a
        file has of which something could not be transcribed.
        """
        log = EventLog(path.name, self._settings.server.history_events)
        language = self._model.choose_language(self._settings.decoding.language, self._settings.decoding.task)
        live = open_session(
            self._settings,
            self._model,
            log,
            kind=AudioKind.RECORDED,
            on_finished=log.close,
            label=Spelling(self._glossary, language).label if self._glossary is not None else lambda event: event,
        )
        # Events are written by this thread, so that an output that cannot be written to ends the command.
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        for event in log.subscribe(events.put, after=0).backlog:
            write(event)
        self._engine.add(live)
        truncated: TruncatedAudioError | None = None
        lost_s = 0.0

        def handle(event: Event) -> None:
            nonlocal lost_s
            write(event)
            if isinstance(event, Gap):
                lost_s += event.end - event.start

        try:
            for block in read_audio(path, lambda error: tell_error(log, error), self._track):
                write_all(live, block)
                on_progress(live.position, None)
                while not events.empty():
                    handle(events.get())
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
            handle(event)
            if isinstance(event, End):
                break
        if truncated is not None:
            raise truncated
        if lost_s or live.failing:
            raise InferenceError(
                f"{lost_s:.1f} s of {path} could not be transcribed: expected all of it; the messages above say why"
            )


def _log_language(name: str, language: str, probabilities: Mapping[str, float]) -> None:
    others = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[1:3]
    beside = "".join(f", {code} {probabilities[code]:.0%}" for code in others)
    logger.info("%s: language %s %.0f%%%s", name, language, 100 * probabilities[language], beside)
