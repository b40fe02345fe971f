"""The terminal sink, rendered by rich on a terminal of a known size, and piped."""

import io

import pytest
from rich.console import Console

from streamer.events import End, Error, Event, Gap, Speech
from streamer.outputs.terminal import MAX_LIVE_LINES, TerminalSink
from tests.builders import final, partial, ready


class Screen:
    """What a terminal shows: as much of the escape sequences as rich uses here, and an error for any other."""

    def __init__(self, width: int = 40, height: int = 12) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            force_terminal=True,
            width=width,
            height=height,
            legacy_windows=False,
            color_system="standard",
            _environ={"TERM": "xterm"},
        )

    def lines(self) -> list[str]:
        rows: list[str] = [""]
        row = 0
        column = 0
        data = self.file.getvalue()
        i = 0
        while i < len(data):
            char = data[i]
            i += 1
            if char == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif char == "\r":
                column = 0
            elif char == "\x1b":
                assert data[i] == "["
                j = next(j for j in range(i + 1, len(data)) if data[j].isalpha())
                code, count = data[j], data[i + 1 : j]
                i = j + 1
                if code == "A":
                    row = max(0, row - int(count))
                elif code == "K":
                    assert count == "2"
                    rows[row] = ""
                else:
                    assert code in "mhl", repr(data[i - 5 : i])
            else:
                rows[row] = rows[row].ljust(column)[:column] + char + rows[row][column + 1 :]
                column += 1
        while rows and not rows[-1].strip():
            rows.pop()
        return [line.rstrip() for line in rows]


def show(*events: Event, screen: Screen | None = None, close: bool = True) -> Screen:
    screen = screen or Screen()
    sink = TerminalSink(screen.console)
    for event in events:
        sink.handle(event)
    if close:
        sink.close()
        sink.close()
    return screen


def test_finals_stay_and_the_open_segment_stands_below() -> None:
    events = [final(" First."), partial(" Sec"), partial(" Second"), final(" Second."), partial(" Thi")]
    assert show(*events, close=False).lines() == ["First.", "Second.", "Thi"]


def test_at_the_end_only_what_is_final_is_left() -> None:
    assert show(partial(" One"), final(" One."), partial(" T"), End()).lines() == ["One."]


def test_unstable_text_is_dim_and_stable_text_is_not() -> None:
    data = show(partial(" so far maybe", stable=7), close=False).file.getvalue()
    assert "so far\x1b[2m maybe" in data
    assert "\x1b[2mmaybe\x1b[0m" in show(partial(" maybe"), close=False).file.getvalue()


def test_a_long_text_shows_its_tail_within_the_screen() -> None:
    text = "".join(f" word{i}" for i in range(200))
    lines = show(partial(text, stable=100), close=False).lines()
    assert len(lines) == MAX_LIVE_LINES
    assert lines[0].startswith("… ")
    assert lines[-1].endswith("word199")
    assert all(len(line) <= 40 for line in lines)
    lines = show(partial(" one two three four five"), screen=Screen(width=8, height=3), close=False).lines()
    assert len(lines) == 2
    assert lines[-1] == "five"


def test_shrinking_text_leaves_nothing_behind() -> None:
    long = "".join(f" word{i}" for i in range(30))
    assert show(partial(long), partial(" short"), close=False).lines() == ["short"]


def test_gaps_and_errors_are_short_lines_and_the_rest_is_silent() -> None:
    lines = show(
        ready(),
        Speech(state="start", time=0.0),
        Gap(start=1.0, end=2.5, reason="over\x1brun"),
        Error(code="dev\x9b2Jice", message="it\nwent away", fatal=False),
        final(""),
        final(" \n"),
        End(),
        screen=Screen(width=80),
    ).lines()
    assert lines == ["[1.0 s to 2.5 s not transcribed: over run]", "dev 2Jice: it went away"]


def test_text_cannot_steer_the_terminal_or_be_taken_for_markup() -> None:
    events = [partial(" [red]a\x1b[2Jb\n"), final(" [bold]x[/bold]\x1b]0;title\x07 \x9b2J end")]
    screen = show(*events)
    assert screen.lines() == ["[bold]x[/bold] ]0;title 2J end"]
    assert "\x1b[2J" not in screen.file.getvalue()
    assert "\x9b" not in screen.file.getvalue()


def test_invalid_stable_counts_do_not_matter() -> None:
    assert show(partial(" ab", stable=99), partial(" abc", stable=-2), close=False).lines() == ["abc"]


def test_a_final_begins_with_its_speaker_if_known() -> None:
    file = io.StringIO()
    sink = TerminalSink(Console(file=file, width=80))
    for text in ("Hello?", ""):
        sink.handle(final(text, speaker="mic"))
    sink.close()
    assert file.getvalue() == "mic: Hello?\n"


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_where_nothing_can_be_redrawn_only_finals_are_written_one_a_line(terminal: str) -> None:
    flushed: list[str] = []

    class Pipe(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    pipe = Pipe()
    console = Console(file=pipe, force_terminal=terminal == "dumb", width=20, _environ={"TERM": terminal})
    sink = TerminalSink(console)
    gap = Gap(start=0, end=1, reason="device")
    for event in (partial(" a"), final(" a rather long final beyond the width\n"), gap):
        sink.handle(event)
    assert flushed == ["a rather long final beyond the width\n"]
    sink.close()
    assert pipe.getvalue() == flushed[-1]
