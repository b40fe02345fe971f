"""`streamer history`: what was kept, read from its file, and transcribed again."""

import contextlib
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.engine.journal import Journal
from streamer.events import Final, Gap, Revision, Translation
from streamer.history import writer
from streamer.history.reader import HistoryFile
from streamer.history.writer import History
from tests.builders import final, ready, timed_words
from tests.daemon import SAMPLE, Outcome, recording
from tests.unit.commands.support import keep, keep_mornings, wait_published
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a history with three sessions, of which no daemon writes."""
    keep_mornings(tmp_path / "history.db", "abc1", "abd2", "-xyz3")
    return tmp_path / "history.db"


@pytest.fixture
def run(path: Path, run_here: Run) -> Run:
    return lambda action, *arguments: run_here("history", action, *arguments, "--history", path)


@pytest.fixture
def daemon(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """A daemon that writes the same file, and has said something."""
    monkeypatch.setattr(writer, "PUBLISH_TIMEOUT_S", WAIT_S)  # it is in the file when it is published
    with contextlib.closing(History(path)) as history:
        log = Journal("now4", 100, keep=history.keeper(source="mic"))
        log.append(ready())
        log.append(final("right now", segment=1))
        wait_published(log)
        yield history


def sessions(path: Path) -> list[str]:
    return [session.id for session in HistoryFile(path).sessions(9)]


def test_sessions_are_listed_newest_last(run: Run) -> None:
    head, *lines = run("list").stdout.splitlines()
    assert head.split() == ["Session", "Began", "Ended", "Events", "Audio", "Source", "Model"]
    assert [line.split()[0] for line in lines] == ["abc1", "abd2", "xyz3"]
    assert lines[0].split()[-3:] == ["3", "mic", "nano.en"]
    assert run("list", "--limit", "1").stdout.splitlines()[1].startswith("xyz3")


@pytest.mark.parametrize(("name", "found"), [("abd", "abd2"), ("last", "-xyz3"), ("xyz", "-xyz3")])
def test_a_session_is_shown_by_the_beginning_of_its_name(run: Run, name: str, found: str) -> None:
    assert run("show", name).stdout.splitlines()[1:] == [
        f"00:01:01  Good morning from {found}",
        "00:01:10  [1.5 s missing: overload]",
        "00:01:20  a good day",
    ]


def test_a_session_is_exported_in_any_format(run: Run, tmp_path: Path) -> None:
    assert run("export", "abc", "--format", "srt").stdout.startswith("1\n00:01:01,000 --> ")
    assert run("export", "abc").stdout == "Good morning from abc1\na good day\n"
    output = tmp_path / "out.json"
    assert run("export", "abc", "-o", output).stdout == ""
    gaps = json.loads(output.read_text(encoding="utf-8"))["gaps"]
    assert gaps == [{"start": 70.0, "end": 71.5, "reason": "overload"}]


def test_words_are_found_in_all_sessions(run: Run) -> None:
    lines = run("search", "morning", "GOOD").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["abc1", "abd2", "xyz3"]
    assert lines[0].endswith("00:01:01  Good morning from abc1")
    assert run("search", '"good day"', "--limit", "1").stdout.startswith("xyz3")
    assert run("search", "evening") == Outcome(1, "", "")


def test_a_session_is_deleted_when_that_was_confirmed(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, left in ((" \n", 3), ("n\n", 3), ("what\n", 3), ("Y\n", 2), ("yes\n", 1)):
        asked = io.StringIO(answer)
        monkeypatch.setattr(asked, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", asked)
        before = sessions(path)
        done = run("delete", "last")
        assert (done.exit_code, len(sessions(path))) == (0 if len(before) > left else 2, left)
        assert (done.stdout == "deleted 2 texts\n") == (len(before) > left)


def test_what_is_older_than_a_date_is_deleted(run: Run, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET at = 1e9 WHERE session = 'abc1' OR seq = 2")
    assert run("delete", "--before", "2002-01-01", "--yes").stdout == "deleted 4 texts\n"
    assert sessions(path) == ["-xyz3", "abd2"]


def test_it_works_beside_a_daemon_whose_open_session_is_not_deleted(run: Run, daemon: History) -> None:
    assert "is open" in run("list").stdout.splitlines()[-1]
    assert run("list").stdout.count("is open") == 1
    assert "right now" in run("show", "last").stdout
    assert run("delete", "now", "--yes").exit_code == 2
    assert run("delete", "abc", "--yes").exit_code == 0
    assert len(daemon.sessions(9)) == 3


def test_what_a_killed_daemon_left_open_can_be_deleted(run: Run, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM events WHERE type = 'end'")
    assert "open" not in run("list").stdout
    assert run("delete", "last", "--yes").exit_code == 0


def test_corrected_text_and_speakers_are_shown_and_what_was_said_first_on_request(run: Run, path: Path) -> None:
    spoken = [msgspec.structs.replace(word, speaker=f"S{k}") for k, word in enumerate(final("from Siobhan").words, 1)]
    newer = Revision(of=2, by="glossary", text="from Siobhan", words=tuple(spoken), edits=())
    keep(path, "new5", final("from Shavon"), newer, Translation(of=2, text="von Siobhan", language="de"))
    newest = ["00:00:00  S1: from", "00:00:00  S2: Siobhan", "          [de] von Siobhan"]
    assert run("show", "last").stdout.splitlines()[1:] == newest
    assert run("show", "last", "--original").stdout.splitlines()[1:] == ["00:00:00  from Shavon", newest[2]]
    assert run("export", "last").stdout == "S1: from\nS2: Siobhan\n"
    assert run("export", "last", "--original").stdout == "from Shavon\n"
    lines = map(json.loads, run("export", "last", "--format", "jsonl").stdout.splitlines())
    assert [line["type"] for line in lines] == ["ready", "final", "revision", "translation"]


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
    again: str, printed: list[str], tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = again.split()
    words = [(f" {word}", float(at), float(at)) for at, word in zip(spoken[::2], spoken[1::2], strict=True)]

    def transcribe(*_: object) -> Iterator[Final]:
        yield final(again, words=timed_words(*words))

    monkeypatch.setattr("streamer.offline.transcribe", transcribe)
    keep(tmp_path / "h.db", "abc1", *LINES, audio=(0, np.zeros(SAMPLE_RATE, dtype=np.float32)))
    done = run_here("history", "redo", "abc", "--model", SAMPLE.parent, "--history", tmp_path / "h.db")
    head, *lines = done.stdout.splitlines()
    assert head.endswith("mic: - nano.en, + nano.en")
    assert [line.removeprefix("00:00:") for line in lines] == printed


def test_audio_stands_where_it_was_in_the_session(tmp_path: Path, run_here: Run) -> None:
    audio = (20 * SAMPLE_RATE, recording(SAMPLE, 0.0, 4.0))
    events = Gap(start=10.0, end=11.5, reason="overload"), final("The Common mission", start=20.0)
    keep(tmp_path / "h.db", "abc1", *events, audio=audio)
    assert "  00:00:04  mic" in run_here("history", "list", "--history", tmp_path / "h.db").stdout
    done = run_here("history", "redo", "abc", "--model", SAMPLE.parent, "--history", tmp_path / "h.db")
    _, *lines = done.stdout.splitlines()
    assert lines[:2] == ["00:00:10 - [1.5 s missing: overload]", "00:00:20 - The Common mission"]
    assert lines[2].startswith("00:00:20 + The Commission")
