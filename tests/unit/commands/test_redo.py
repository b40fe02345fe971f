"""`streamer history redo`: a session is transcribed again, and both texts stand beside each other."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.commands import redo
from streamer.constants import SAMPLE_RATE
from streamer.events import Final, Gap
from tests.builders import final, timed_words
from tests.daemon import SAMPLE, Outcome, recording
from tests.unit.commands.support import keep

LINES = [final("one two", start=1.0, end=2.0), final("three", start=5.0, end=6.0, segment=1)]


@pytest.mark.parametrize(
    ("again", "printed"),
    [
        ("", ["01 - one two", "05 - three"]),
        ("1.2 one 1.8 two 5.1 three", ["01   one two", "05   three"]),
        ("0.2 one 2.9 two 4.1 tree", ["01   one two", "05 - three", "05 + tree"]),
        ("3.6 between 5.5 three", ["01 - one two", "03 + between", "05   three"]),
        ("9 behind 9.5 it", ["01 - one two", "05 - three", "09 + behind it"]),
    ],
)
def test_words_belong_to_the_line_at_their_time_or_are_a_line(
    again: str, printed: list[str], tmp_path: Path, run_here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = again.split()
    words = [(f" {word}", float(at), float(at)) for at, word in zip(spoken[::2], spoken[1::2], strict=True)]

    def transcribe(*_: object) -> Iterator[Final]:
        yield final(again, words=timed_words(*words))

    monkeypatch.setattr(redo, "transcribe", transcribe)
    keep(tmp_path / "h.db", "abc1", *LINES, audio=(0, np.zeros(SAMPLE_RATE, dtype=np.float32)))
    done = run_here("history", "redo", "abc", "--model", SAMPLE.parent, "--history", tmp_path / "h.db")
    head, *lines = done.stdout.splitlines()
    assert head.endswith("mic: - nano.en, + nano.en")
    assert [line.removeprefix("00:00:") for line in lines] == printed


def test_audio_stands_where_it_was_in_the_session(tmp_path: Path, run_here: Callable[..., Outcome]) -> None:
    audio = (20 * SAMPLE_RATE, recording(SAMPLE, 0.0, 4.0))
    events = Gap(start=10.0, end=11.5, reason="overload"), final("The Common mission", start=20.0)
    keep(tmp_path / "h.db", "abc1", *events, audio=audio)
    assert "  00:00:04  mic" in run_here("history", "list", "--history", tmp_path / "h.db").stdout
    done = run_here("history", "redo", "abc", "--model", SAMPLE.parent, "--history", tmp_path / "h.db")
    _, *lines = done.stdout.splitlines()
    assert lines[:2] == ["00:00:10 - [1.5 s missing: overload]", "00:00:20 - The Common mission"]
    assert lines[2].startswith("00:00:20 + The Commission")
