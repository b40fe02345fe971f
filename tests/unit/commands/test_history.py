"""`streamer history`: what was kept, read from its file."""

import contextlib
import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer.cli import main
from streamer.engine.journal import Journal
from streamer.events import Gap, Revision, Translation
from streamer.history import history as history_module
from streamer.history.history import History
from tests.unit.outputs.finals import labelled
from tests.wire.support import WAIT_S, final, ready, wait_published


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a history with three sessions, of which no daemon writes."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "history.db"
    with contextlib.closing(History(path).start()) as history:
        for name in ("abc1", "abd2", "-xyz3"):
            log = Journal(name, 100, keep=history.keeper(source="mic"))
            log.append(ready())
            log.append(final(1, f"Good morning from {name}", start=61.0))
            log.append(Gap(start=70.0, end=71.5, reason="overload"))
            log.append(final(2, "a good day", start=80.0))
            log.close()
    return path


@pytest.fixture
def daemon(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """A daemon that writes the same file, and has said something."""
    monkeypatch.setattr(history_module, "PUBLISH_TIMEOUT_S", WAIT_S)  # it is in the file when it is published
    with contextlib.closing(History(path).start()) as history:
        log = Journal("now4", 100, keep=history.keeper(source="mic"))
        log.append(ready())
        log.append(final(1, "right now"))
        wait_published(log)
        yield history


def streamer(path: Path, *args: str) -> int:
    return main(["history", *args, "--history", str(path)])


def test_sessions_are_listed_newest_last(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert streamer(path, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["Session", "abc1", "abd2", "xyz3"]
    assert streamer(path, "list", "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("xyz3")


def test_a_session_is_shown_by_the_beginning_of_its_name(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, found in (("abd", "abd2"), ("last", "-xyz3"), ("xyz", "-xyz3")):
        assert streamer(path, "show", name) == 0
        _, *lines = capsys.readouterr().out.splitlines()
        assert lines == [
            f"00:01:01  Good morning from {found}",
            "00:01:10  [1.5 s missing: overload]",
            "00:01:20  a good day",
        ]
    for name, said in (("ab", "several sessions"), ("q", "there is no session 'q'")):
        assert streamer(path, "show", name) == 2
        assert said in capsys.readouterr().err


def test_a_session_is_exported_in_any_format(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert streamer(path, "export", "abc", "--format", "srt") == 0
    assert capsys.readouterr().out.startswith("1\n00:01:01,000 --> ")
    assert streamer(path, "export", "abc") == 0
    assert capsys.readouterr().out == "Good morning from abc1\na good day\n"
    output = tmp_path / "out.json"
    assert streamer(path, "export", "abc", "--format", "json", "-o", str(output)) == 0
    assert json.loads(output.read_text(encoding="utf-8"))["gaps"] == [
        {"start": 70.0, "end": 71.5, "reason": "overload"}
    ]
    assert streamer(path, "export", "abc", "-o", str(tmp_path)) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_words_are_found_in_all_sessions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert streamer(path, "search", "morning", "GOOD") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["abc1", "abd2", "xyz3"]
    assert lines[0].endswith("00:01:01  Good morning from abc1")
    assert streamer(path, "search", '"good day"', "--limit", "1") == 0
    assert capsys.readouterr().out.startswith("xyz3")
    assert streamer(path, "search", "evening") == 1
    assert streamer(path, "search", "***") == 2
    assert "no word to search for" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("show",), ("export",), ("redo",), ("delete", "--yes")])
@pytest.mark.parametrize("name", ["", "-"])
def test_a_variable_that_is_not_set_names_no_session(
    path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], name: str
) -> None:
    for session in ("abd", "xyz"):
        assert streamer(path, "delete", session, "--yes") == 0
    assert streamer(path, *command, name) == 2
    assert f"there is no session {name!r}" in capsys.readouterr().err
    assert [session.id for session in History(path).sessions(9)] == ["abc1"]


def test_nothing_is_deleted_unasked(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert streamer(path, "delete", "abc") == 2
    assert "add --yes" in capsys.readouterr().err
    for answer in ("", "n\n", "what\n"):
        asked = io.StringIO(answer)
        monkeypatch.setattr(asked, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", asked)
        assert streamer(path, "delete", "abc") == 2
        assert "nothing was deleted" in capsys.readouterr().err
    assert len(History(path).sessions(9)) == 3
    asked = io.StringIO("y\n")
    monkeypatch.setattr(asked, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", asked)
    assert streamer(path, "delete", "abc") == 0
    assert [session.id for session in History(path).sessions(9)] == ["-xyz3", "abd2"]
    assert streamer(path, "delete") == 2
    assert streamer(path, "delete", "last", "--before", "2026-01-01", "--yes") == 2


def test_what_is_older_than_a_date_is_deleted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET at = 1e9 WHERE session = 'abc1' OR seq = 2")
    assert streamer(path, "delete", "--before", "2002-01-01", "--yes") == 0
    assert capsys.readouterr().out == "deleted 4 texts\n"
    assert [session.id for session in History(path).sessions(9)] == ["-xyz3", "abd2"]
    for date in ("tomorrow", "2026-13-01", "99999-01-01"):
        assert streamer(path, "delete", "--before", date, "--yes") == 2
        assert "is no date" in capsys.readouterr().err


def test_it_works_beside_a_daemon(path: Path, daemon: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert streamer(path, "list") == 0
    assert "is open" in capsys.readouterr().out.splitlines()[-1]
    assert streamer(path, "show", "last") == 0
    assert "right now" in capsys.readouterr().out
    assert streamer(path, "delete", "now", "--yes") == 2
    assert "is open: stop the daemon first" in capsys.readouterr().err
    assert streamer(path, "delete", "abc", "--yes") == 0
    assert len(daemon.sessions(9)) == 3


def test_what_a_killed_daemon_left_open_can_be_deleted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM events WHERE type = 'end'")
    assert streamer(path, "delete", "last", "--yes") == 0
    assert "open" not in capsys.readouterr().out


def test_a_history_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.db"
    assert streamer(path, "list") == 2
    assert "there is no history at" in capsys.readouterr().err
    assert not path.exists()


def test_what_was_said_first_is_shown_on_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(History(path).start()) as history:
        log = Journal("new5", 100, keep=history.keeper(source="mic"))
        log.append(ready())
        said = log.append(final(1, "from Shavon"))
        newer = labelled(final(1, "from Siobhan"), "S1", "S2")
        log.append(Revision(of=said.seq, by="glossary", text=newer.text, words=newer.words, edits=()))
        log.append(Translation(of=said.seq, text="von Siobhan", language="de"))
        log.close()
    newest = ["00:00:00  S1: from", "00:00:00  S2: Siobhan", "          [de] von Siobhan"]
    for args, lines in (
        (["show", "last"], newest),
        (["show", "last", "--original"], ["00:00:00  from Shavon", newest[2]]),
    ):
        assert streamer(path, *args) == 0
        assert capsys.readouterr().out.splitlines()[1:] == lines
    for flags, text in (([], "S1: from\nS2: Siobhan\n"), (["--original"], "from Shavon\n")):
        assert streamer(path, "export", "last", *flags) == 0
        assert capsys.readouterr().out == text
    assert streamer(path, "export", "last", "--format", "jsonl") == 0
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()][2] == "revision"
