"""The terminal sink, drawn by rich on a terminal of a known size, and piped."""

import io
import logging
import random
import re
import sys
import unicodedata

import pytest
from rich.console import Console

from streamer.events import End, Error, Event, Gap, Revision, Speakers, Speech, Translation
from streamer.outputs.screen import MAX_LINE_CHARS
from streamer.outputs.terminal import DaemonTerminal, TerminalSink
from tests.builders import final, partial, ready


class Screen:
    """What a terminal shows: as much of the escape sequences as rich uses here, and an error for any other.

    Text that would run into the next row is an error too.
    """

    def __init__(self, width: int = 40, height: int = 12) -> None:
        self.console = Console(
            file=self,  # type: ignore[arg-type]
            force_terminal=True,
            width=width,
            height=height,
            legacy_windows=False,
            color_system="standard",
            _environ={"TERM": "xterm"},
        )
        self.written = ""
        # A character a cell; behind a wide one an empty one. Rows that have left the screen are above `top`.
        self._rows: list[list[str]] = [[]]
        self._top = self._row = self._column = 0

    def write(self, text: str) -> int:
        self.written += text
        for escape, code, char in re.findall(r"(\x1b\[([^a-zA-Z]*[a-zA-Z]))|(.)", text, re.DOTALL):
            if escape:
                self._obey(code[-1], code[:-1])
            elif char == "\n":
                self._row, self._column = self._row + 1, 0
                self._rows += [[] for _ in range(self._row + 1 - len(self._rows))]
                self._top = max(self._top, self._row + 1 - self.console.height)
            elif char == "\r":
                self._column = 0
            else:
                self._put(char)
        return len(text)

    def flush(self) -> None:
        pass

    def _obey(self, code: str, count: str) -> None:
        if code == "A":
            self._row = max(self._top, self._row - int(count))
        elif code == "K":
            assert count == "2"
            self._rows[self._row] = []
        else:
            assert code in "mhl"

    def _put(self, char: str) -> None:
        row = self._rows[self._row]
        if unicodedata.combining(char):
            row[self._column - 1] += char
            return
        cells = [char, ""] if unicodedata.east_asian_width(char) in "WF" else [char]
        assert self._column + len(cells) <= self.console.width, "a row is too long"
        row += [" "] * (self._column - len(row))
        row[self._column : self._column + len(cells)] = cells
        self._column += len(cells)

    def resize(self, width: int, height: int) -> None:
        """Divide rows that are too long, as most terminals do."""
        rows: list[list[str]] = []
        for i, row in enumerate(self._rows):
            rows += [row[at : at + width] for at in range(0, max(1, len(row)), width)]
            if i == self._row:
                self._row = len(rows) - 1
        self._rows = rows
        self._top = max(0, len(rows) - height)
        self.console.size = (width, height)

    def lines(self) -> list[str]:
        """Return all rows, those that have left the screen too, except empty ones at the end."""
        lines = ["".join(row).rstrip() for row in self._rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def show(*events: Event, screen: Screen | None = None, close: bool = True, corrections: bool = False) -> Screen:
    """Show events, numbered from 1 on."""
    screen = screen or Screen()
    sink = TerminalSink(screen.console, corrections=corrections)
    for number, event in enumerate(events, 1):
        sink.handle(event if event.seq else event.stamped(number, "s"))
    if close:
        sink.close()
        sink.close()
    return screen


def revision(of: int, text: str) -> Revision:
    return Revision(of=of, by="second_pass", text=text, words=(), edits=())


def test_finals_stay_and_the_open_segment_stands_below() -> None:
    events = [final(" First."), partial(" Sec"), partial(" Second"), final(" Second."), partial(" Thi")]
    assert show(*events, close=False).lines() == ["First.", "Second.", "Thi"]


def test_at_the_end_only_what_does_not_change_is_left() -> None:
    assert show(partial(" One"), final(" One."), partial(" T"), End()).lines() == ["One."]
    assert show(final(" One."), partial(" Two three", stable=4)).lines() == ["One.", "Two"]


def test_unstable_text_is_dim_and_stable_text_is_not() -> None:
    data = show(partial(" so far maybe", stable=7), close=False).written
    assert "so far\x1b[2m maybe" in data
    assert "\x1b[2mmaybe\x1b[0m" in show(partial(" maybe"), close=False).written


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["It left the White House in", "1953."], ["It left the White House in 1953."]),
        (["Yes. No! Why? So", "it is."], ["Yes.", "No!", "Why?", "So it is."]),
        (["Mr.", "Smith saw J. F. Kennedy", "on 3. May."], ["Mr. Smith saw J. F. Kennedy on 3. May."]),
        (["He said “No.”", "Then he left."], ["He said “No.”", "Then he left."]),
        (["Well...", "and so on."], ["Well... and so on."]),
        (["今日は", "晴れ。明日は", "雨？「はい。」と言う。"], ["今日は晴れ。", "明日は雨？", "「はい。」と言う。"]),
        (["कल आना।", "ठीक है।"], ["कल आना।", "ठीक है।"]),
        (["هل أنت هنا؟", "نعم"], ["هل أنت هنا؟", "نعم"]),
        (["네. 그래요", "정말"], ["네.", "그래요 정말"]),
    ],
)
def test_a_line_ends_with_its_sentence_and_not_with_a_final(texts: list[str], expected: list[str]) -> None:
    finals = [final(text, start=0.0, end=1.0) for text in texts]
    assert show(*finals, screen=Screen()).lines() == expected
    # As a partial, the next text stands where it will stand as a final.
    parts = [event for text in texts for event in (partial(text, start=0.0, end=1.0), final(text, start=0.0, end=1.0))]
    assert show(*parts, screen=Screen()).lines() == expected


def test_a_line_ends_with_a_long_pause_a_speaker_a_gap_and_a_session_and_does_not_grow_for_ever() -> None:
    events: list[Event] = [
        final("so then", start=0.0),
        final("one", start=9.0, speaker="mic"),
        final("two", start=9.5, speaker="system"),
        Gap(start=10.0, end=11.0, reason="overrun"),
        final("three", start=11.0, speaker="system"),
        ready(),
        final("four", start=0.0),
    ]
    expected = ["so then", "mic: one", "system: two", "[10.0 s to 11.0 s not transcribed: overrun]", "system: three"]
    assert show(*events, screen=Screen(width=80)).lines() == [*expected, "four"]
    words = "word " * (MAX_LINE_CHARS // 4)
    lines = show(final(words), final("and more", start=25.0), screen=Screen(width=80)).lines()
    assert lines[-1] == "and more"


@pytest.mark.parametrize("width", [20, 21, 40])
@pytest.mark.parametrize(
    ("text", "begins_no_row"),
    [
        ("Donaudampfschifffahrtselektrizitätenhauptbetriebswerk und mehr", ""),
        ("私があまりあけすけに、陛下に申し上げたので、それが、皇帝のお気にさわったらしいのです", "、。っ"),
        ("e\u0301" * 50, "\u0301"),
        ("wide 👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍👍", ""),
    ],
)
def test_rows_are_as_wide_as_what_is_in_them(text: str, begins_no_row: str, width: int) -> None:
    lines = show(partial(text), final(text), screen=Screen(width=width)).lines()
    assert "".join(lines).replace(" ", "") == unicodedata.normalize("NFC", text).replace(" ", "") or (
        "".join(lines).replace(" ", "") == text.replace(" ", "")
    )
    assert len(lines) > 1
    assert all(line[0] not in begins_no_row for line in lines)


def test_joiners_are_kept() -> None:
    text = "می\u200cخواهم"
    assert text in show(final(text)).written


def test_unstable_text_never_leaves_the_screen() -> None:
    text = "".join(f" word{i}" for i in range(200))
    screen = show(partial(text), close=False)
    assert len(screen.lines()) == 11
    assert screen.lines()[0] == "…"
    assert screen.lines()[-1].endswith("word199")
    assert show(partial(text), partial(" short"), close=False).lines() == ["short"]
    assert "".join(show(partial(text), final(text)).lines()).replace(" ", "") == text.replace(" ", "")


def test_a_correction_changes_its_line_in_place() -> None:
    said = [
        final("Now and perhaps the most", end=1.0),
        final("dramatic. But", start=1.0, end=2.0),
        partial("so", start=2.0),
    ]
    corrected = [revision(1, "Flying. Is perhaps by far the most"), revision(2, "dramatic. And")]
    assert show(*said, *corrected, close=False).lines() == ["Flying.", "Is perhaps by far the most dramatic.", "And so"]
    assert show(*said, revision(1, ""), close=False).lines() == ["dramatic.", "But so"]


def test_a_correction_of_what_has_left_the_screen_is_not_shown() -> None:
    finals = [final(f"Line {i} here.", start=float(i)) for i in range(20)]
    lines = show(*finals, *(revision(i + 1, f"New {i} here.") for i in range(20)), screen=Screen(height=5)).lines()
    assert lines == [f"Line {i} here." for i in range(15)] + [f"New {i} here." for i in range(15, 20)]


def test_corrections_are_printed_if_that_is_wanted() -> None:
    same = Speakers(same=("S2\x1b[2J", "S1"))
    later = [revision(1, "Siobhan and"), revision(1, "Siobhan and"), same, revision(99, "gone"), final("you.")]
    expected = ["~ Siobhan and", "~ S2 [2J is S1", "Shavon and you."]
    assert show(final("Shavon and"), *later, corrections=True).lines() == expected


def test_a_translation_stands_below_its_sentence() -> None:
    events = [final("Guten Tag."), final("Wie geht"), Translation(of=1, text="Good day.", language="en"), partial("es")]
    assert show(*events, close=False).lines() == ["Guten Tag.", "Good day.", "Wie geht es"]


def test_what_is_logged_stands_above_the_sentence_that_is_being_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    screen = Screen(height=5)
    sink = TerminalSink(screen.console)
    sink.handle(final("One."))
    print("INFO first", file=sys.stderr)
    sink.handle(final("Two goes"))
    print("INFO second", file=sys.stderr)
    sink.handle(partial("on."))
    print("INFO third\x1b[2J and", "so on", file=sys.stderr)
    assert screen.lines() == ["One.", "INFO first", "INFO second", "INFO third [2J and so on", "Two goes on."]
    sink.handle(final("on and " * 40))
    sink.handle(partial("on and on", 9))
    print("INFO fourth", file=sys.stderr)  # the beginning of the sentence has left the screen
    sink.handle(final("on."))
    sink.close()
    print("last", file=sys.stderr)
    assert screen.lines()[-1] == "INFO fourth"
    assert stderr.getvalue() == "last\n"


@pytest.mark.parametrize("error", [OSError("it hung up"), ValueError("I/O operation on closed file")])
def test_a_daemons_terminal_that_is_gone_is_written_to_no_further(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.INFO)
    screen, stderr = Screen(), Screen()
    monkeypatch.setattr(stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", stderr)
    sink = DaemonTerminal(screen.console)
    sink.handle(final("one").stamped(1, "s"))
    assert sys.stderr is not stderr

    def write(text: str) -> int:
        raise error

    monkeypatch.setattr(screen, "write", write)
    sink.handle(final("two").stamped(2, "s"))
    assert sys.stderr is stderr
    sink.handle(final("three").stamped(3, "s"))
    sink.close()
    assert caplog.messages == [f"captions are no longer drawn ({error})"]


def test_what_is_typed_is_not_left_in_the_text() -> None:
    screen = Screen(width=20)
    sink = TerminalSink(screen.console)
    sink.handle(final("This is nineteen ch."))
    screen.write("^C")
    sink.close()
    assert screen.lines() == ["This is nineteen", "ch."]


@pytest.mark.parametrize("size", [(20, 12), (61, 12), (40, 6), (30, 20)])
def test_another_size_of_the_terminal_leaves_nothing_behind(size: tuple[int, int]) -> None:
    said = [f"This is sentence number {word} of them." for word in ("one", "two", "three", "four", "five")]
    screen = Screen()
    sink = TerminalSink(screen.console)
    for number, text in enumerate(said):
        sink.handle(partial(text, start=number))
        if number == 3:
            screen.resize(*size)
        sink.handle(final(text, start=number))
    sink.close()
    assert " ".join(screen.lines()).split() == " ".join(said).split()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_each_final_is_there_once(seed: int) -> None:
    rng = random.Random(seed)
    screen = Screen(*rng.choice([(80, 24), (40, 10), (20, 8)]))
    sink = TerminalSink(screen.console)
    words = ["alpha", "beta.", "Gamma", "delta", "Mr.", "so?", "supercalifragilisticexpialidocious"]
    texts: dict[int, list[str]] = {}
    for number in range(1, 60, 3):
        spoken = rng.choices(words, k=rng.randint(1, 30))
        stable = 0
        for _ in range(4):
            stable = rng.randint(stable, len(spoken))
            text = " ".join([*spoken[:stable], *rng.choices(words, k=rng.randint(1, 12))])
            sink.handle(partial(text, len(" ".join(spoken[:stable])), start=number, words=()))
        texts[number] = [" ".join(spoken)]
        sink.handle(final(texts[number][0], start=number, words=(), end=number + 3).stamped(number, "s"))
        of = rng.choice([*texts][-4:])
        texts[of].append(" ".join(f"New{word}" for word in texts[of][0].split()))
        sink.handle(revision(of, texts[of][-1]).stamped(number + 1, "s"))
    sink.close()
    shown = "".join(screen.lines()).replace(" ", "")
    for either in texts.values():
        text = next(text for text in (text.replace(" ", "") for text in either) if shown.startswith(text))
        shown = shown.removeprefix(text)
    assert shown == ""


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
    assert "\x1b[2J" not in screen.written
    assert "\x9b" not in screen.written


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
    gap = Gap(start=0, end=1, reason="device")
    events = (partial(" a"), final(" a rather long final beyond the width\n"), revision(0, "corrected"), gap)
    for corrections in (False, True):
        sink = TerminalSink(console, corrections=corrections)
        for event in events:
            sink.handle(event)
        sink.close()
    text = "a rather long final beyond the width\n"
    assert flushed == [text, text + text, text + text + "~ corrected\n"]
    assert pipe.getvalue() == flushed[-1]
