"""The terminal as it changes; `test_captions.py` has what it shows in the end."""

import io
import logging
import random
import sys
import unicodedata

import pytest
from rich.console import Console

from streamer.events import Gap, Revision
from streamer.outputs.terminal import Terminal, TerminalSink
from tests.builders import final, partial
from tests.unit.outputs.finals import labelled, worded
from tests.unit.outputs.screen import Screen, show


def revision(of: int, text: str) -> Revision:
    return Revision(of=of, by="second_pass", text=text, words=(), edits=())


def test_unstable_text_is_dim_and_nothing_steers_the_terminal() -> None:
    data = show(partial(" so far maybe", stable=7), close=False).written
    assert "so far\x1b[2m maybe" in data
    assert "\x1b[2mmaybe\x1b[0m" in show(partial(" maybe"), close=False).written
    steering = show(partial(" a\x1b[2Jb"), final("x\x1b]0;title\x07 \x9b2J end")).written
    assert not any(code in steering for code in ("\x1b[2J", "\x9b", "\x1b]"))


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


def test_unstable_text_never_leaves_the_screen() -> None:
    text = "".join(f" word{i}" for i in range(200))
    screen = show(partial(text), close=False)
    assert len(screen.lines()) == 11
    assert screen.lines()[0] == "…"
    assert screen.lines()[-1].endswith("word199")
    assert show(partial(text), partial(" short"), close=False).lines() == ["short"]
    assert "".join(show(partial(text), final(text)).lines()).replace(" ", "") == text.replace(" ", "")


def test_what_is_logged_stands_above_the_sentence_that_is_being_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", stderr := Tty())
    screen = Screen(height=5)
    sink = Terminal(screen.console)
    sink.handle(final("One."))
    assert sys.stderr.isatty()
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
    sink = TerminalSink(Terminal(screen.console), 100)
    sink.deliver(final("one").stamped(1, "s"))
    assert sys.stderr is not stderr

    def write(text: str) -> int:
        raise error

    monkeypatch.setattr(screen, "write", write)
    sink.deliver(final("two").stamped(2, "s"))
    assert sys.stderr is stderr
    sink.deliver(final("three").stamped(3, "s"))
    sink.close()
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("size", [(20, 12), (61, 12), (40, 6), (30, 20)])
def test_another_size_of_the_terminal_leaves_nothing_behind(size: tuple[int, int]) -> None:
    said = [f"This is sentence number {word} of them." for word in ("one", "two", "three", "four", "five")]
    screen = Screen()
    sink = Terminal(screen.console)
    for number, text in enumerate(said):
        sink.handle(partial(text, start=number))
        if number == 3:
            screen.resize(*size)
        sink.handle(final(text, start=number))
    sink.close()
    assert " ".join(screen.lines()).split() == " ".join(said).split()


def test_what_is_typed_is_not_left_in_the_text() -> None:
    screen = Screen(width=20)
    sink = Terminal(screen.console)
    sink.handle(final("This is nineteen ch."))
    screen.write("^C")
    sink.close()
    assert screen.lines() == ["This is nineteen", "ch."]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_each_final_is_there_once(seed: int) -> None:
    rng = random.Random(seed)
    screen = Screen(*rng.choice([(80, 24), (40, 10), (20, 8)]))
    sink = Terminal(screen.console)
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


def test_a_pipe_has_the_names_of_speakers() -> None:
    pipe = io.StringIO()
    sink = Terminal(Console(file=pipe))
    sink.handle(final("Yes.", speaker="Ann"))
    sink.handle(labelled(worded((" No.", 0.0, 0.5), (" Why?", 0.5, 1.0)), "S1", "S2"))
    assert pipe.getvalue() == "Ann: Yes.\nS1: No.\nS2: Why?\n"


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
        sink = Terminal(console, corrections=corrections)
        for event in events:
            sink.handle(event)
        sink.close()
    text = "a rather long final beyond the width\n"
    assert flushed == [text, text + text, text + text + "~ corrected\n"]
    assert pipe.getvalue() == flushed[-1]
