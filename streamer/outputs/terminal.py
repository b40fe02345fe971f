"""Live captions in a terminal."""

import sys

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from streamer.events import End, Error, Event, Final, Gap, Partial, Revision, Speakers, Translation
from streamer.outputs.subtitles.revised import revised, speaker_of, turns
from streamer.outside import one_line, printable

MAX_LIVE_LINES = 6  # of a partial, however long the sentence is
UNSTABLE_STYLE = "dim"
LATER_STYLE = "cyan"  # of revisions, translations and names of speakers
MAX_REMEMBERED = 50  # finals, for their revisions


class TerminalSink:
    """Writes finals as lines that scroll up, with the current partial below them, redrawn as it changes.

    A revised final is written once more, behind `~`.

    If the console is not a terminal, only the finals are written, one a line and flushed at once, for a pipe.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

        # The redrawn region; None without a terminal that can redraw.
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(
                Group(),
                console=console,
                auto_refresh=False,
                transient=True,
                vertical_overflow="crop",
                # Log lines go above the captions, except if they go to a file.
                redirect_stderr=sys.stderr.isatty(),
            )
        # The newest finals as last written, by session and number.
        self._finals: dict[tuple[str, int], Final] = {}
        # Whether the region is on screen: from the first event to close().
        self._started = False

    def handle(self, event: Event) -> None:
        """Show the next event."""
        if self._live is None:
            if isinstance(event, Final) and (text := _line(event)):
                self._console.file.write(text + "\n")
                self._console.file.flush()
            return
        if not self._started:
            self._started = True
            self._live.start()
        match event:
            case Partial():
                self._live.update(_Tail(_caption(event)), refresh=True)
            case Final():
                self._finals[event.session, event.seq] = event
                if len(self._finals) > MAX_REMEMBERED:
                    del self._finals[next(iter(self._finals))]
                self._settle(Text(_line(event)))
            case Revision() if (final := self._finals.get((event.session, event.of))) is not None:
                newer = self._finals[event.session, event.of] = revised(final, event)
                if (line := _line(newer)) != _line(final):
                    self._console.print(Text(f"~ {line}", LATER_STYLE))
            case Speakers(same=(label, other)):
                self._console.print(Text(f"~ {one_line(label)} is {one_line(other)}", LATER_STYLE))
            case Translation():
                self._console.print(Text(one_line(event.text), f"{LATER_STYLE} italic"))
            case Gap():
                self._settle(
                    Text(
                        f"[{event.start:.1f} s to {event.end:.1f} s not transcribed: {one_line(event.reason)}]",
                        "yellow",
                    )
                )
            case Error():
                self._settle(Text(one_line(f"{event.code}: {event.message}"), "red" if event.fatal else "yellow"))
            case End():
                self._live.update(Group(), refresh=True)

    def close(self) -> None:
        """Remove the region from the terminal."""
        if self._live is not None and self._started:
            self._started = False
            self._live.update(Group())
            self._live.stop()

    def _settle(self, line: Text) -> None:
        """Print a line above the region in place of the partial."""
        assert self._live is not None
        # Cleared first, so that the text is never on screen twice.
        self._live.update(Group(), refresh=True)
        if line.plain:
            self._console.print(line)


def _line(final: Final) -> str:
    spoken = ((one_line(speaker_of(turn) or final.speaker), one_line(turn.text)) for turn in turns(final))
    return "\n".join(f"{speaker}: {text}" if speaker and text else text for speaker, text in spoken)


def _caption(partial: Partial) -> Text:
    text = printable(partial.text)
    stable = max(0, partial.stable)
    return Text.assemble(text[:stable].lstrip(), (text[stable:] if stable else text.lstrip(), UNSTABLE_STYLE))


class _Tail:
    """The last lines of a text, as many as fit on the screen."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mark = "… "
        lines = self._text.wrap(console, max(1, options.max_width - len(mark)))
        # A terminal scrolls when its last line is filled, so that one stays free.
        room = max(1, min(MAX_LIVE_LINES, console.size.height - 1))
        for i, line in enumerate(lines[-room:]):
            yield Text.assemble(mark, line) if i == 0 and len(lines) > room else line
