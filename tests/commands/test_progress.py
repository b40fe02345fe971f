"""The bar over files, as a terminal shows it."""

import io
from pathlib import Path

from rich.console import Console

from streamer.audio.constants import SAMPLE_RATE
from streamer.commands.progress import show_files


def test_several_files_have_one_bar() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with show_files(console, {Path("a.mp4"): 30.0, Path("b\x1b.m4a"): 10.0, Path("c.aac"): None}) as begin:
        begin(Path("a.mp4"))(15 * SAMPLE_RATE, None)
        begin(Path("b\x1b.m4a"))(10 * SAMPLE_RATE, 10 * SAMPLE_RATE)
        begin(Path("c.aac"))
    assert "3 of 3 c.aac" in screen.getvalue()
    assert "67%" in screen.getvalue()


def test_who_is_no_terminal_sees_no_bar() -> None:
    screen = io.StringIO()
    with show_files(Console(file=screen), {Path("a.mp4"): 30.0}) as begin:
        begin(Path("a.mp4"))(1, 2)
    assert screen.getvalue() == ""
