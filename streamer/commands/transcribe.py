"""Files to text, without a server: `streamer transcribe`."""

import contextlib
import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from streamer import entry_points
from streamer.commands.files import STANDARD_STREAM, Format, Text, find_recordings, opened, plan_texts
from streamer.commands.invocation import Invocation
from streamer.commands.signature import MODEL, Arg, Flags
from streamer.commands.terminal import say
from streamer.errors import AudioFileError, StreamerError, UsageError
from streamer.events import Event, Final
from streamer.outside import one_line
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from rich.console import Console

    from streamer.outputs.subtitles import SubtitleOptions
    from streamer.setup.progress import OnProgress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Files:
    """Recordings that are transcribed, and what their texts are written to."""

    # How many seconds each has, if that is known.
    lengths: Mapping[Path, float | None]

    # Which audio track of each, from 1 on.
    track: int

    plan: Mapping[Path, Sequence[Text]]
    lines: "SubtitleOptions"
    console: "Console"  # on standard error

    def needs_words(self, settings: Settings) -> bool:
        """Return whether finals need words: plain text has no times."""
        timed = any(text.format != "text" for texts in self.plan.values() for text in texts)
        return timed or self.lines.max_len > 0 or settings.speakers.enabled or bool(settings.correction.glossary)

    def shown(self) -> "contextlib.AbstractContextManager[Callable[[Path], OnProgress]]":
        """Show the progress of the files; a terminal that shows the text of the only file needs no bar."""
        from streamer.setup.progress import show_files

        first = next(iter(self.lengths))
        is_seen = len(self.lengths) == 1 and self.plan[first][0].target is None and sys.stdout.isatty()
        return show_files(self.console, {} if is_seen else self.lengths)

    def write(self, path: Path, events: Generator[Event]) -> int:
        """Write the texts of a file; return its exit code. Prints what is wrong with it, and warns if it is empty."""
        from streamer.outputs.subtitles import open_writer

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
        from streamer.audio.sources.file import count_tracks

        try:
            n_tracks = count_tracks(path) if path != STANDARD_STREAM else 1
        except AudioFileError:
            return ""
        others = [str(track) for track in range(1, n_tracks + 1) if track != self.track]
        named = f"audio track {others[0]}" if len(others) == 1 else f"audio tracks {', '.join(others[:10])}"
        return f"; it has {named} too: choose with --track N" if others else ""


class Elsewhere(Protocol):
    """Transcribes files on other machines: what a plug-in's `streamer.sessions` returns if the flags ask for it."""

    def check(self, paths: Sequence[Path], *, streaming: bool) -> None:
        """Raise UsageError for what only this machine could do."""

    def transcribe(self, files: Files) -> Sequence[int]:
        """Transcribe the files, write their texts with `files.write`, and return the exit code of each."""


def transcribe(
    files: Annotated[Sequence[str], Arg("file, folder, or pattern such as 'talks/*.mp4'; - is standard input", "FILE")],
    *,
    format: Annotated[
        Literal[Format, "txt", "all"] | None,
        Arg(
            "what to write; all: txt, vtt, srt, tsv and json (default: what --output ends with, else text)",
            also=("-f", "--output-format"),
        ),
    ] = None,
    stream: Annotated[bool, Arg("through the streaming engine instead of the offline decoder")] = False,
    output: Annotated[str, Arg("where to write; - is standard output; DIR/ is made", "FILE|DIR", ("-o",))] = "-",
    output_dir: Annotated[str | None, Arg("the same, always a directory", "DIR")] = None,
    track: Annotated[int, Arg("which audio track of a file", "N", within=(1, 1_000_000))] = 1,
    invocation: Annotated[Invocation, Flags((*MODEL, "correction.glossary", "speakers.enabled"), decoding="all")],
) -> int:
    """Files to text, without a server.

    Takes audio and video files of any usual format, all in a folder and its subfolders, and patterns.

    Example: streamer transcribe talk.mp4 --model base.en -o talk.srt
    """
    # Late, as the command line itself needs none of them.
    from rich.console import Console

    from streamer.outputs.subtitles import subtitle_options

    settings, console = invocation.settings(), Console(stderr=True)
    if output_dir is not None:  # of an empty name, as an unset variable gives it, the present directory
        output = f"{output_dir or '.'}/"
    paths = find_recordings(files)
    plan = plan_texts(paths, format, None if output == "-" else output, task=settings.decoding.task)
    elsewhere = _elsewhere(settings, invocation.overrides)
    if elsewhere is not None:
        elsewhere.check(paths, streaming=stream)
    _check(settings, streaming=stream)
    # Now: a model may take minutes to compile for nothing.
    lengths, exit_code = _check_files(paths, track, console)
    if not lengths:
        return exit_code
    from streamer.check import check_options  # this late, as it imports OpenVINO

    check_options(settings, streaming=stream)
    work = Files(lengths, track, plan, subtitle_options(settings), console)
    if elsewhere is not None:
        return max(exit_code, *elsewhere.transcribe(work))
    return max(exit_code, _transcribe(work, settings, streaming=stream))


def _check(settings: Settings, *, streaming: bool) -> None:
    """Raise UsageError for settings that cannot be combined."""
    if settings.decoding.task == "both" and streaming:
        raise UsageError(
            "--stream writes no translation beside the text: leave it out, or choose another --task than both"
        )
    if settings.speakers.enabled and streaming:
        raise UsageError(
            "--speakers cannot be combined with --stream, as it reads the whole file first: leave out one of the two"
        )


def _transcribe(work: Files, settings: Settings, *, streaming: bool) -> int:
    """Transcribe the files on this machine; return the exit code of the worst error."""
    from streamer.commands.transcribers import loaded

    exit_code = 0
    with (
        loaded(settings, work.track, streaming=streaming, words=work.needs_words(settings)) as events,
        work.shown() as begin,
    ):
        for path in work.lengths:
            on_progress = begin(path)
            exit_code = max(exit_code, work.write(path, events(path, on_progress)))
            on_progress(1, 1)
    return exit_code


def _elsewhere(settings: Settings, flags: Mapping[str, object]) -> Elsewhere | None:
    """Return what transcribes instead of this machine, if the flags (by settings' dotted names) ask for that."""
    found = (find(settings, flags) for find in entry_points.load_all("streamer.sessions", callable).values())
    return next(filter(None, found), None)


def _check_files(paths: Sequence[Path], track: int, console: "Console") -> tuple[dict[Path, float | None], int]:
    """Return how many seconds the files that hold audio have, if that is known, and the exit code of the others."""
    from streamer.audio.sources.file import check_audio
    from streamer.audio.sources.stdin import standard_input

    lengths: dict[Path, float | None] = {}
    exit_code = 0
    for path in paths:
        try:
            if path == STANDARD_STREAM:
                standard_input()
                lengths[path] = None
            else:
                lengths[path] = check_audio(path, track)
        except AudioFileError as error:
            exit_code = max(exit_code, print_error(console, error))
    return lengths, exit_code


def print_error(console: "Console", error: StreamerError) -> int:
    """Print an error; return its exit code."""
    say(console, f"streamer: error: {one_line(error)}", "red")
    return error.exit_code
