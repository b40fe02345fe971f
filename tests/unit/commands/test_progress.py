"""The bar over files, as a terminal shows it."""

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from streamer.audio.constants import SAMPLE_RATE
from streamer.commands.progress import show_files


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
