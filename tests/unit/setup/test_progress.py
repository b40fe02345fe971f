"""Bars of models and files, as a terminal shows them."""

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
from streamer.whisper.hub.progress import Progress

FILES = {Path("a.mp4"): 30.0, Path("b\x1b.m4a"): 10.0, Path("c.aac"): None}


def test_several_files_have_one_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with show_files(console, FILES) as begin:
        begin(Path("a.mp4"))(15 * SAMPLE_RATE, None)
        begin(Path("a.mp4"))(1, 1)
        begin(Path("b\x1b.m4a"))(10 * SAMPLE_RATE, 10 * SAMPLE_RATE)
        begin(Path("c.aac"))(1, None)  # how far that is cannot be known
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("3 of 3 c.aac" in drawn, "67%" in drawn) == (False, False)
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("3 of 3 c.aac" in drawn, "67%" in drawn) == (True, True)


@pytest.mark.parametrize(("files", "logged"), [(dict([*FILES.items()][:1]), 0), ({}, 0), (FILES, 3)])
def test_without_a_terminal_each_of_several_files_is_logged_and_no_bar_is_drawn(
    files: dict[Path, float | None], logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    console = Console(file=io.StringIO())
    with caplog.at_level(logging.INFO), show_files(console, files) as begin:
        for path in files:
            begin(path)(1, 2)
    assert caplog.messages == ["1 of 3 a.mp4", "2 of 3 b .m4a", "3 of 3 c.aac"][:logged]
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


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


def test_a_model_that_is_fetched_and_compiled_has_a_bar_that_a_line_of_the_log_never_meets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with pytest.raises(ZeroDivisionError), show_progress("base") as loading:  # noqa: PT012
        loading.fetched(Progress("waiting"))
        for n_here in (1_000_000, 2_000_000):
            loading.fetched(Progress("model.safetensors", n_here, 2_000_000))
        loading.compiled(4, 5)
        loading.compiled(5, 5)
        print("INFO ready", file=sys.stderr)
        raise ZeroDivisionError
    drawn = terminal.getvalue()
    places = [drawn.index(text) for text in ("waiting", "model.safetensors", "2.0/2.0 MB", "compiling", "5/5")]
    assert places == sorted(places)
    assert ("INFO ready" in drawn, "\x1b[1A\x1b[2K" in drawn, terminal.unguarded) == (True, True, [])
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # the cursor is back


def test_what_is_compiled_later_is_not_drawn_over_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with show_progress("base") as loading:
        pass
    loading.compiled(1, 5)
    assert terminal.getvalue() == ""


def test_without_a_terminal_what_is_done_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with show_progress("base") as loading:
        for doing in ("waiting", "waiting", "unpacking"):
            loading.fetched(Progress(doing))
        loading.fetched(Progress("model.safetensors", 1, 2))
        loading.compiled(1, 5)
    assert caplog.messages == ["base: waiting", "base: unpacking"]
    assert pipe.getvalue() == ""
