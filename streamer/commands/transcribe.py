"""Files to text, without a server: `streamer transcribe`."""

import asyncio
import contextlib
import logging
import queue
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from streamer import entry_points
from streamer.after.correct.spelling import Spelling
from streamer.after.postprocessing import open_glossary
from streamer.after.speakers.live import RecordedSpeakers, label_final
from streamer.audio.sources.file import Recording, check_audio, count_tracks, read_audio
from streamer.audio.sources.stdin import standard_input
from streamer.check import check_options
from streamer.commands.files import STANDARD_INPUT, Text, find_recordings, opened, plan_texts
from streamer.commands.invocation import Invocation
from streamer.commands.terminal import say
from streamer.daemon.sessions import SessionSource, open_session, ready_event, tell_error, write_all
from streamer.engine.decoder import make_engine
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.errors import AudioFileError, InferenceError, StreamerError, TruncatedAudioError, UsageError
from streamer.events import End, Event, Final, Gap, seconds
from streamer.offline import transcribe
from streamer.outputs.subtitles import SubtitleOptions, open_writer, subtitle_options
from streamer.outside import one_line
from streamer.settings.table import Settings
from streamer.setup.loading import load_chosen
from streamer.setup.progress import OnProgress, show_files
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import resolve_decoding

MOST_NAMED_GAPS = 5  # of a recording, in its warning

logger = logging.getLogger(__name__)

# Transcribes a file: yields the events of its session, and reports progress. Raises TruncatedAudioError after the last
# event of a truncated file.
Transcriber = Callable[[Path, OnProgress], Generator[Event]]


@dataclass(frozen=True, slots=True)
class Files:
    """Recordings that are transcribed, and what their texts are written to."""

    # How many seconds each has, if that is known.
    lengths: Mapping[Path, float | None]

    # Which audio track of each, from 1 on.
    track: int

    plan: Mapping[Path, Sequence[Text]]
    lines: SubtitleOptions
    console: Console

    def needs_words(self, settings: Settings) -> bool:
        """Return whether finals need words: plain text has no times."""
        timed = any(text.format != "text" for texts in self.plan.values() for text in texts)
        return timed or self.lines.max_len > 0 or settings.speakers.enabled or bool(settings.correction.glossary)

    def shown(self) -> contextlib.AbstractContextManager[Callable[[Path], OnProgress]]:
        """Show the progress of the files; a terminal that shows the text of the only file needs no bar."""
        first = next(iter(self.lengths))
        is_seen = len(self.lengths) == 1 and self.plan[first][0].target is None and sys.stdout.isatty()
        return show_files(self.console, {} if is_seen else self.lengths)

    def write(self, path: Path, events: Generator[Event]) -> int:
        """Write the texts of a file; return its exit code. Prints what is wrong with it, and warns if it is empty."""
        n_finals = 0
        try:
            with contextlib.closing(events), contextlib.ExitStack() as stack:
                texts = self.plan[path]
                streams = [stack.enter_context(opened(text.target)) for text in texts]
                writers = [open_writer(text.format, to, self.lines) for text, to in zip(texts, streams, strict=True)]
                for writer in writers:
                    stack.callback(writer.close)
                for event in events:
                    n_finals += isinstance(event, Final)
                    for text, writer in zip(texts, writers, strict=True):
                        if not text.task or not isinstance(event, Final) or text.task == (event.task or "transcribe"):
                            writer.handle(event)
        except StreamerError as error:
            return print_error(self.console, error)
        if not n_finals:
            logger.warning("%s: no speech found, its text is empty%s", one_line(path.name), self._other_tracks(path))
        return 0

    def _other_tracks(self, path: Path) -> str:
        """Return which other audio tracks a file has, and how to choose one."""
        try:
            n_tracks = count_tracks(path) if path != STANDARD_INPUT else 1
        except AudioFileError:
            return ""
        others = [str(track) for track in range(1, n_tracks + 1) if track != self.track]
        named = f"audio track {others[0]}" if len(others) == 1 else f"audio tracks {', '.join(others[:10])}"
        return f"; it has {named} too: choose with --track N" if others else ""


class Elsewhere(Protocol):
    """Transcribes files on other machines: what a plug-in's `streamer.sessions` returns if the flags ask for it."""

    def check(self, paths: Sequence[Path], *, streaming: bool) -> None:
        """Raise UsageError for what only this machine could do."""

    async def transcribe(self, files: Files) -> Sequence[int]:
        """Transcribe the files, write their texts with `files.write`, and return the exit code of each."""


def transcribe_files(
    settings: Settings,
    files: Sequence[str | Path],
    *,
    format: str | None,
    streaming: bool,
    output: str | Path | None,
    track: int = 1,
    invocation: Invocation | None = None,
) -> int:
    """Transcribe files, folders and patterns to text, to standard output, or to the files that `plan_texts` returns.

    track : which audio track of each file, from 1 on
    streaming : whether they go through the streaming engine, as fast as it can
    invocation : its flags may have them transcribed on other machines

    Returns the exit code: that of the worst error among the files. Raises StreamerError if nothing can be transcribed
    at all.
    """
    lines = subtitle_options(settings)
    paths = find_recordings([str(file) for file in files])
    plan = plan_texts(paths, format, output, task=settings.decoding.task)
    elsewhere = _elsewhere(settings, invocation.overrides if invocation is not None else {})
    if elsewhere is not None:
        elsewhere.check(paths, streaming=streaming)
    if settings.decoding.task == "both" and streaming:
        raise UsageError(
            "--stream writes no translation beside the text: leave it out, or choose another --task than both"
        )
    if settings.speakers.enabled and streaming:
        raise UsageError(
            "--speakers cannot be combined with --stream, as it reads the whole file first: leave out one of the two"
        )
    console = Console(stderr=True)
    # Now: a model may take minutes to compile for nothing.
    lengths, exit_code = _check_files(paths, track, console)
    if not lengths:
        return exit_code
    check_options(settings, streaming=streaming)
    work = Files(lengths, track, plan, lines, console)
    if elsewhere is not None:
        return max(exit_code, *asyncio.run(elsewhere.transcribe(work)))
    settings, model = load_chosen(settings, live=streaming)
    with contextlib.ExitStack() as stack:
        if streaming:
            engine = make_engine(model, settings.decoding)
            engine.start()
            stack.callback(engine.stop)
            transcriber = _streaming(settings, model, engine, track)
        else:
            transcriber = _offline(settings, model, track, words=work.needs_words(settings))
        begin = stack.enter_context(work.shown())
        for path in lengths:
            on_progress = begin(path)
            exit_code = max(exit_code, work.write(path, transcriber(path, on_progress)))
            on_progress(1, 1)
    return exit_code


def _elsewhere(settings: Settings, flags: Mapping[str, object]) -> Elsewhere | None:
    """Return what transcribes instead of this machine, if the flags (by settings' dotted names) ask for that."""
    found = (find(settings, flags) for find in entry_points.load_all("streamer.sessions", callable).values())
    return next(filter(None, found), None)


def _check_files(paths: Sequence[Path], track: int, console: Console) -> tuple[dict[Path, float | None], int]:
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


def print_error(console: Console, error: StreamerError) -> int:
    """Print an error; return its exit code."""
    say(console, f"streamer: error: {one_line(error)}", "red")
    return error.exit_code


def _offline(settings: Settings, model: WhisperModel, track: int, *, words: bool) -> Transcriber:
    """Return what transcribes as openai-whisper does: window after window.

    words : whether finals need words
    """
    decoding = resolve_decoding(settings.decoding, model, settings.speech, words=words)
    glossary = open_glossary(settings, model)
    speakers = RecordedSpeakers(settings) if settings.speakers.enabled else None

    def transcribed(path: Path, on_progress: OnProgress) -> Generator[Event]:
        recording = Recording(path, track)
        blocks = recording.read()
        diarization = None
        if speakers is not None:
            blocks, diarization = speakers.recognize(blocks)
        log = EventLog(path.name, settings.server.history_events)
        yield log.append(ready_event(model, settings.decoding.language))
        unclear: list[Gap] = []
        n_published = 0

        def note_unclear(start: int, end: int) -> None:
            unclear.append(Gap(start=seconds(start), end=seconds(end), reason="unclear"))

        for final in transcribe(
            model,
            blocks,
            decoding,
            on_progress=lambda position: on_progress(position, recording.n_samples),
            on_language=lambda language, probabilities: _log_language(path, language, probabilities),
            on_unclear=note_unclear,
        ):
            due = [gap for gap in unclear[n_published:] if gap.start < final.start]
            n_published += len(due)
            for gap in due:
                yield log.append(gap)
            if diarization is not None:
                final = label_final(final, diarization)
            if glossary is not None:
                final = glossary.spelled(final, settings.decoding.task)
            yield log.append(final)
        for gap in unclear[n_published:]:
            yield log.append(gap)
        yield log.append(End(time=seconds(recording.n_samples)))
        if unclear:
            _warn_of_gaps(path, unclear)
        if recording.truncated is not None:
            raise recording.truncated

    return transcribed


def _streaming(settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow], track: int) -> Transcriber:
    """Return what transcribes as live captions are made, as fast as the engine takes the audio.

    It raises InferenceError after the last event of a file of which something could not be transcribed.
    """
    glossary = open_glossary(settings, model)
    language = model.choose_language(settings.decoding.language, settings.decoding.task)

    def transcribed(path: Path, on_progress: OnProgress) -> Generator[Event]:
        log = EventLog(path.name, settings.server.history_events)
        followers = [Spelling(glossary, language)] if glossary is not None else []
        live = open_session(settings, model, log, SessionSource(kind=AudioKind.RECORDED, followers=followers))
        # Events are written by this thread, so that an output that cannot be written to ends the command.
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        gaps: list[Gap] = []
        unclear: list[Gap] = []

        def arrive(event: Event) -> None:
            if isinstance(event, Gap):
                (unclear if event.reason == "unclear" else gaps).append(event)
            events.put(event)

        truncated: TruncatedAudioError | None = None
        try:
            yield from log.subscribe(arrive, after=0).backlog
            engine.add(live)
            for block in read_audio(path, lambda error: tell_error(log, error), track):
                write_all(live, block)
                on_progress(live.position, None)
                while not events.empty():
                    yield events.get()
                if live.over:
                    break  # it has failed
        except TruncatedAudioError as error:
            truncated = error
        except BaseException:
            live.close()
            raise
        live.end()
        event: Event | None = None
        while not isinstance(event, End):
            try:
                event = events.get(timeout=0.2)  # in steps, so that Ctrl-C gets through on every system
                yield event
            except queue.Empty:
                on_progress(live.position, live.ring.head)
        if unclear:
            _warn_of_gaps(path, unclear)
        if truncated is not None:
            raise truncated
        if gaps or live.failing:
            lost_s = sum(gap.end - gap.start for gap in gaps)
            raise InferenceError(
                f"{lost_s:.1f} s of {path} could not be transcribed: expected all of it; the messages above say why"
            )

    return transcribed


def _warn_of_gaps(path: Path, gaps: Sequence[Gap]) -> None:
    named = [f"{gap.start:.1f} to {gap.end:.1f} s" for gap in gaps[:MOST_NAMED_GAPS]]
    if others := len(gaps) - len(named):
        named.append(f"and {others} more")
    logger.warning("%s: speech without text: %s", one_line(path.name), ", ".join(named))


def _log_language(path: Path, language: str, probabilities: Mapping[str, float]) -> None:
    others = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[1:3]
    beside = "".join(f", {code} {probabilities[code]:.0%}" for code in others)
    logger.info("%s: language %s %.0f%%%s", one_line(path.name), language, 100 * probabilities[language], beside)
