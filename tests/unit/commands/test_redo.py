"""`streamer history redo`: a session is transcribed again, and both texts stand beside each other."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.commands.redo import _beside
from streamer.engine.journal import Journal
from streamer.events import Gap
from streamer.history.history import History
from tests.daemon import SAMPLE, Outcome
from tests.wire.support import final, ready, wait_published


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [(1.0, "one two", ""), (5.0, "three", "")]),
        ("1.2 one 1.8 two 5.1 three", [(1.0, "one two", "one two"), (5.0, "three", "three")]),
        ("0.2 one 2.9 two 4.1 tree", [(1.0, "one two", "one two"), (5.0, "three", "tree")]),
        ("3.6 between 5.5 three", [(1.0, "one two", ""), (3.6, "", "between"), (5.0, "three", "three")]),
        ("9 behind 9.5 it", [(1.0, "one two", ""), (5.0, "three", ""), (9.0, "", "behind it")]),
    ],
)
def test_words_belong_to_the_line_at_their_time_or_are_a_line(
    words: str, expected: list[tuple[float, str, str]]
) -> None:
    spoken = words.split()
    again = [(float(at), f" {word}") for at, word in zip(spoken[::2], spoken[1::2], strict=True)]
    found = _beside([(1.0, 2.0, "one two"), (5.0, 6.0, "three")], again)
    assert [line for line in found if any(line[1:])] == expected


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A history with the first 4 s of the sample, behind 20 s whose audio is missing."""
    samples, _ = soundfile.read(SAMPLE, dtype="float32")
    path = tmp_path / "history.db"
    with closing(History(path).start(audio=True)) as history:
        log = Journal("abc1", 100, keep=history.keeper(source="mic"))
        log.append(ready())
        wait_published(log)
        history.audio_keeper("abc1")(20 * 16_000, np.asarray(samples[: 4 * 16_000]))
        log.append(Gap(start=10.0, end=11.5, reason="overload"))
        log.append(final(1, "The Common mission", start=20.0))
        log.close()
    return path


def test_what_reads_otherwise_is_printed_twice(path: Path, run_here: Callable[..., Outcome]) -> None:
    redo = run_here("history", "redo", "abc", "--model", SAMPLE.parent, "--history", path)
    assert redo.exit_code == 0, redo.stderr
    head, *lines = redo.stdout.splitlines()
    assert head.endswith("mic: - nano.en, + nano.en")
    assert lines[0] == "00:00:10 - [1.5 s missing: overload]"
    assert lines[1] == "00:00:20 - The Common mission"
    assert lines[2].startswith("00:00:20 + The Commission")


def test_sessions_with_audio_are_marked_in_the_list(path: Path, run_here: Callable[..., Outcome]) -> None:
    listed = run_here("history", "list", "--history", path)
    assert "  00:00:04  mic" in listed.stdout


def test_what_cannot_be_done_is_one_line(path: Path, tmp_path: Path, run_here: Callable[..., Outcome]) -> None:
    missing = run_here("history", "redo", "last", "--model", tmp_path / "no", "--history", path)
    assert missing.exit_code == 2
    assert missing.stdout == ""
    assert missing.stderr.count("\n") == 1
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM audio")
    gone = run_here("history", "redo", "last", "--model", SAMPLE.parent, "--history", path)
    assert (gone.exit_code, gone.stdout) == (2, "")
    assert gone.stderr.startswith("streamer: error: no audio of session abc1 is kept: expected one of a daemon with")
    assert gone.stderr.count("\n") == 1
