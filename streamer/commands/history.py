"""`streamer history list`, `show`, `export`, `search` and `delete`: what was kept, read from its file.

No daemon is needed; one may write the file meanwhile.
"""

import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from streamer.commands.files import STANDARD_STREAM, Format, Output, format_of, opened
from streamer.commands.signature import Arg, Flags
from streamer.commands.terminal import make_console
from streamer.constants import SAMPLE_RATE
from streamer.errors import UsageError
from streamer.events import Final, Gap, Translation
from streamer.outside import printable
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from rich.text import Text

    from streamer.history.reader import HistoryFile, KeptSession

LAST = "last"  # names the newest session
SHOWN_CHARS = 8  # of a session's name: enough to distinguish it from all others


# Arguments of these commands.
Session = Annotated[str, Arg("the beginning of a session's name, or last", "SESSION")]
Limit = Annotated[int, Arg("at most this many", "N", within=(1, 1_000_000))]
Original = Annotated[bool, Arg("texts as they were said first, not as corrected")]
HistorySettings = Annotated[Settings, Flags(("server.history",))]


def list_sessions(*, limit: Limit = 50, settings: HistorySettings) -> int:
    """List the newest sessions, the newest last.

    Example: streamer history list --limit 10
    """
    from rich.table import Table
    from rich.text import Text

    from streamer.history.audio import find_spans

    file = find_history(settings)
    in_use = file.in_use
    table = Table(box=None, pad_edge=False)
    for title in ("Session", "Began", "Ended", "Events", "Audio", "Source", "Model"):
        table.add_column(title, justify="right" if title == "Events" else "left", no_wrap=True)
    for session in reversed(file.sessions(limit)):
        ended = "is open" if session.ended is None and in_use else local_time(session.ended or session.started)
        n_samples = sum(end - start for start, end in find_spans(file, session.id))
        audio = clock(n_samples / SAMPLE_RATE) if n_samples else ""
        table.add_row(
            *(short_name(session.id), local_time(session.started), ended, str(session.n_events), audio),
            *(Text(printable(text)) for text in (session.source, session.ready.model)),
        )
    make_console().print(table)
    return 0


def show(name: Session, *, original: Original = False, settings: HistorySettings) -> int:
    """Print a session's text, with times of its audio.

    Example: streamer history show last
    """
    from streamer.outputs.subtitles.cues import file_line
    from streamer.outputs.subtitles.revised import speaker_of, turns

    file = find_history(settings)
    session = find_session(file, name)
    sys.stdout.write(f"# {local_time(session.started)}, {printable(session.source)}\n")
    for event in file.transcript(session, newest=not original):
        if isinstance(event, Final):
            for turn in turns(event):
                if text := file_line(turn.text):
                    name = f"{speaker}: " if (speaker := file_line(speaker_of(turn))) else ""
                    sys.stdout.write(f"{clock(turn.start)}  {name}{text}\n")
        elif isinstance(event, Translation):
            sys.stdout.write(f"{'':8}  [{file_line(event.language)}] {file_line(event.text)}\n")
        elif isinstance(event, Gap):
            sys.stdout.write(f"{clock(event.start)}  {missing(event)}\n")
    return 0


def missing(gap: Gap) -> str:
    """Return a line that stands for a gap."""
    from streamer.outputs.subtitles.cues import file_line

    return f"[{gap.end - gap.start:.1f} s missing: {file_line(gap.reason)}]"


def export(
    name: Session,
    *,
    format: Annotated[Format | None, Arg("what to write (default: what --output ends with, else text)")] = None,
    output: Output = STANDARD_STREAM,
    original: Original = False,
    settings: Annotated[Settings, Flags(("output.subtitle_style", "server.history"))],
) -> int:
    """Write a session as `transcribe` would have, in any of its formats.

    Example: streamer history export last -o talk.srt
    """
    from streamer.outputs.subtitles import open_writer, subtitle_options

    file = find_history(settings)
    session = find_session(file, name)
    with opened(output) as stream:
        chosen = format or format_of(output)
        writer = open_writer(chosen, stream, subtitle_options(settings))
        # JSON Lines have each event as it came, those that correct finals included.
        for event in file.transcript(session, newest=not original and chosen != "jsonl"):
            writer.handle(event)
        writer.close()
    return 0


def search(
    words: Annotated[Sequence[str], Arg('words, or "phrases"', "WORDS")],
    *,
    limit: Limit = 50,
    settings: HistorySettings,
) -> int:
    """Find words in all sessions.

    Prints the newest texts that have all WORDS; those within quotation marks follow each other. The exit code is 1 if
    none is found.

    Example: streamer history search budget
    """
    from rich.text import Text

    console = make_console()
    hits = find_history(settings).search(" ".join(words), limit)
    for hit in reversed(hits):
        place = f"{short_name(hit.session)}  {local_time(hit.at)}  {clock(hit.start_s)}  "
        console.print(Text(place) + _highlighted(hit.snippet), soft_wrap=True)
    return 0 if hits else 1


def delete(
    name: Annotated[str | None, Arg("the beginning of a session's name, or last", "SESSION")] = None,
    *,
    before: Annotated[str | None, Arg("delete what was said before, such as 2026-05-31", "DATE")] = None,
    yes: Annotated[bool, Arg("do not ask")] = False,
    settings: HistorySettings,
) -> int:
    """Delete a session, or all text from before a date, when that was confirmed.

    Example: streamer history delete --before 2026-05-31
    """
    if (name is None) == (before is None):
        raise UsageError("expected either a session to delete or --before DATE")
    file = find_history(settings)
    if before is not None:
        until = _time(before)
        _confirm(f"all text from before {local_time(until)}", yes=yes)
        n_deleted = file.delete_before(until)
    else:
        assert name is not None
        session = find_session(file, name)
        if session.ended is None and file.in_use:
            raise UsageError(
                f"session {short_name(session.id)} is open: stop the daemon first, or delete what is older with"
                " --before"
            )
        what = f"session {short_name(session.id)} of {local_time(session.started)}, {session.n_events} events"
        _confirm(what, yes=yes)
        n_deleted = file.delete(session)
    sys.stdout.write(f"deleted {n_deleted} texts\n")
    return 0


def find_history(settings: Settings) -> "HistoryFile":
    """Return the history that the settings name, or the one of `auto`. Raises ConfigError."""
    from streamer.history.database import AUTO, history_path
    from streamer.history.reader import HistoryFile

    file = HistoryFile(history_path(settings.server.history or AUTO))
    file.check()
    return file


def find_session(file: "HistoryFile", name: str) -> "KeptSession":
    """Return the session whose name begins so, or the newest. Raises UsageError."""
    found = file.sessions(1) if name == LAST else file.named(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"several sessions begin with {name!r:.40}: give more of the name")
    raise UsageError(f"session {name!r:.40} not found: `streamer history list` shows all sessions")


def _confirm(what: str, *, yes: bool) -> None:
    """Ask whether to delete. Raises UsageError if standard input is not a terminal, or the answer is not yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"refusing to delete {what} without confirmation: add --yes")
    sys.stderr.write(f"Delete {what}? This cannot be undone. [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was deleted")


def _highlighted(snippet: str) -> "Text":
    from rich.text import Text

    from streamer.history.reader import MARKS

    text = Text()
    for i, part in enumerate(re.split("|".join(MARKS), snippet)):
        text.append(part, style="bold" if i % 2 else "")
    return text


def short_name(session: str) -> str:
    """Return the beginning of a session's name, without dashes that would make a flag of it."""
    return session.lstrip("-")[:SHOWN_CHARS]


def local_time(at: float) -> str:
    from streamer.history.reader import shown_time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(shown_time(at)))


def _time(text: str) -> float:
    """Return a date, or date and time, as a wall-clock time; in this machine's time zone if it names none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r:.40} is not a date: expected one such as 2026-05-31 or 2026-05-31T12:00") from None


def clock(time_s: float) -> str:
    minutes, seconds = divmod(int(time_s), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
