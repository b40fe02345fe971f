"""The bar over files, as a terminal shows it."""

import io
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from streamer import log
from streamer.constants import SAMPLE_RATE
from streamer.setup.progress import show_files, show_progress


def test_several_files_have_one_bar() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with show_files(console, {Path("a.mp4"): 30.0, Path("b\x1b.m4a"): 10.0, Path("c.aac"): None}) as begin:
        begin(Path("a.mp4"))(15 * SAMPLE_RATE, None)
        begin(Path("a.mp4"))(1, 1)
        begin(Path("b\x1b.m4a"))(10 * SAMPLE_RATE, 10 * SAMPLE_RATE)
        begin(Path("c.aac"))
    assert "3 of 3 c.aac" in screen.getvalue()
    assert "67%" in screen.getvalue()


def test_without_a_terminal_each_of_several_files_is_logged_and_no_bar_is_drawn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    screen = io.StringIO()
    with caplog.at_level(logging.INFO), show_files(Console(file=screen), {Path("a.mp4"): 30.0}) as begin:
        begin(Path("a.mp4"))(1, 2)
    assert not caplog.messages
    files = {Path("a.mp4"): 30.0, Path("b\x1b.m4a"): None}
    with caplog.at_level(logging.INFO), show_files(Console(file=screen), files) as begin:
        for path in files:
            begin(path)(1, 2)
    assert caplog.messages == ["1 of 2 a.mp4", "2 of 2 b .m4a"]
    assert screen.getvalue() == ""


def _is_free() -> bool:
    is_free = log.writing.acquire(blocking=False)
    if is_free:
        log.writing.release()
    return is_free


class Terminal(io.StringIO):
    """Notes whether a line of the log could be written while the bar is drawn or removed, not above it."""

    def __init__(self) -> None:
        super().__init__()
        self.unguarded: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with ThreadPoolExecutor() as another:
            may_write = another.submit(_is_free).result()
        if sys.stderr is self or ("\x1b[1A" in text and may_write):
            self.unguarded.append(text)
        return super().write(text)


def test_a_line_of_the_log_never_meets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with show_progress("base") as loading:
        loading.compiled(5, 5)
        print("INFO ready", file=sys.stderr)
    assert "INFO ready" in terminal.getvalue()
    assert "\x1b[1A\x1b[2K" in terminal.getvalue()
    assert terminal.unguarded == []


def test_what_is_compiled_later_is_not_drawn_over_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with show_progress("base") as loading:
        pass
    loading.compiled(1, 5)
    assert terminal.getvalue() == ""
