"""What was told as final is in the file, whatever happens to the program or the disk."""

import asyncio
import logging
import random
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from streamer.errors import ConfigError
from streamer.events import Error, Event, Final, Gap, Ready, Speech
from streamer.server import history as history_module
from streamer.server import history_file as history_file_module
from streamer.server.history import History, open_history
from streamer.server.history_file import HistoryFile
from streamer.server.metrics import register_history
from streamer.settings.table import ServerSettings
from streamer.stream.eventlog import EventLog
from tests.server.support import WAIT_S, final, partial, ready, wait_published

GAP = Gap(start=3.0, end=4.0, reason="overload")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(history_module, "RETRY_S", 0.02)
    return tmp_path / "data" / "history.db"


def opened_log(history: History, session: str = "s1", *, own: bool = True) -> EventLog:
    log = EventLog(session, 1000, keep=history.keeper(source="mic", own=own))
    log.append(ready())
    wait_published(log)
    return log


def followed_log(history: History) -> tuple[EventLog, list[Event]]:
    """Return a log whose session is in the history's file, and a list that its further events are added to."""
    log = opened_log(history)
    wait_until(lambda: history.file.session(log.session) is not None)
    published: list[Event] = []
    log.subscribe(published.append)
    return log, published


def kept(file: HistoryFile, session: str = "s1") -> list[Event]:
    found = file.session(session)
    assert found is not None
    return [event for events in file.transcript(found) for event in events]


def texts(file: HistoryFile, session: str = "s1") -> list[str]:
    return [event.text for event in kept(file, session) if isinstance(event, Final)]


def test_what_lasts_is_kept_and_nothing_else(history: History) -> None:
    log = opened_log(history)
    log.append(Speech(state="start", time=0.1))
    log.append(partial(1, "good"))
    spoken = log.append(final(1, "good morning"))
    gap = log.append(GAP)
    log.append(Error(code="device", message="m", fatal=False))
    log.close()
    wait_published(log)
    opening, *events = kept(history.file)
    assert isinstance(opening, Ready)
    assert events == [spoken, gap]
    session = history.file.session("s1")
    assert session is not None
    assert (session.own, session.source, session.model, session.language) == (True, "mic", "nano.en", "en")
    assert (session.n_events, session.end_s) == (2, 4.0)
    assert session.ended is not None
    assert 0 <= session.ended - session.started < 60


def test_listeners_are_told_what_is_in_the_file(history: History) -> None:
    log = opened_log(history)
    seen: list[bool] = []
    log.subscribe(lambda event: seen.append(event in kept(history.file)))
    log.append(final(1, "one"))
    log.append(GAP)
    wait_published(log)
    assert seen == [True, True]


def test_file_and_folder_are_the_users_own(history: History, path: Path) -> None:
    log = opened_log(history)
    log.append(final(1, "secret"))
    wait_published(log)
    if sys.platform != "win32":
        modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
        assert set(modes) >= {path.name, f"{path.name}-wal", f"{path.name}-lock"}
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_another_daemon_on_the_same_file_is_refused_in_one_line(history: History, path: Path) -> None:
    assert history.file.in_use
    with pytest.raises(ConfigError, match="in use by another daemon: name another") as caught:
        History(path)
    assert "\n" not in str(caught.value)
    history.close()
    assert not HistoryFile(path).in_use
    History(path).close()


def test_sessions_of_a_daemon_that_was_killed_ended_with_their_last_text(path: Path) -> None:
    with closing(History(path)) as first:
        opened_log(first).append(final(1, "last"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE sessions SET ended = NULL")
        (at,) = connection.execute("SELECT at FROM events").fetchone()
    with closing(History(path)) as second:
        session = second.file.session("s1")
        assert session is not None
        assert session.ended == at


def test_a_file_that_is_locked_stops_no_captions_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "WRITE_TIMEOUT_S", 0.05)
    with closing(History(path)) as history:
        log, told = followed_log(history)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for i in range(20):
                log.append(final(i, f"text {i}"))
            wait_until(lambda: len(told) == 20)
            wait_until(lambda: history.n_failures > 2)
            other.execute("ROLLBACK")
        wait_until(lambda: len(texts(history.file)) == 20)
        log.append(final(21, "again"))
        wait_until(lambda: texts(history.file)[-2:] == ["text 19", "again"])
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.split(" (")[0] for line in lines] == [
        f"the history {path} cannot be written",
        f"the history {path} is written again",
    ]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_file_that_is_locked_holds_up_neither_the_loop_nor_what_is_published(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "WRITE_TIMEOUT_S", 10 * WAIT_S)  # for which an attempt to write stands still
    with closing(History(path)) as history, closing(sqlite3.connect(path, isolation_level=None)) as other:
        log, told = followed_log(history)
        other.execute("BEGIN EXCLUSIVE")
        for i in range(20):
            log.append(partial(i, "text"))
            log.append(final(i, f"text {i}"))
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            while len(told) < 40:
                await asyncio.sleep(0.01)
        assert told == sorted(told, key=lambda event: event.seq)
        assert texts(history.file) == []
        other.execute("ROLLBACK")
        await asyncio.to_thread(wait_until, lambda: len(texts(history.file)) == 20)
        assert history.n_lost == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_too_much_to_wait_for_a_locked_file_is_reported_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "WRITE_TIMEOUT_S", 5.0)
    monkeypatch.setattr(history_module, "MAX_PENDING", 5)
    registry = CollectorRegistry()
    with closing(History(path)) as history, closing(sqlite3.connect(path, isolation_level=None)) as other:
        register_history(registry, history)
        log, told = followed_log(history)
        other.execute("BEGIN EXCLUSIVE")
        for i in range(20):
            log.append(final(i, f"text {i}"))
        assert "more than 5 texts wait until the history" in caplog.text
        wait_until(lambda: len(told) == 20)
        other.execute("ROLLBACK")
        wait_until(lambda: texts(history.file)[-5:] == [f"text {i}" for i in range(15, 20)])
        assert history.n_lost > 0
        assert history.n_lost + len(texts(history.file)) == 20
        assert registry.get_sample_value("streamer_history_lost_total") == history.n_lost
        wait_until(lambda: f"{history.n_lost} texts were too many to wait, and are missing" in caplog.text)


def test_what_cannot_be_written_before_the_end_is_reported_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "WRITE_TIMEOUT_S", 0.05)
    with closing(History(path)) as history:
        log, _ = followed_log(history)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for i in range(3):
                log.append(final(i, f"text {i}"))
            history.close()
    assert history.n_lost == 3
    assert "could not be written: 3 texts are missing" in caplog.text


def test_a_full_disk_stops_no_captions(history: History, caplog: pytest.LogCaptureFixture) -> None:
    log = opened_log(history)
    (n_pages,) = history._connection.execute("PRAGMA page_count").fetchone()
    history._connection.execute(f"PRAGMA max_page_count = {n_pages}")
    long = "word " * 2000
    for i in range(20):
        log.append(final(i, f"{long}{i}"))
    wait_until(lambda: "disk is full" in caplog.text)
    history._connection.execute("PRAGMA max_page_count = 1000000")
    wait_until(lambda: len(texts(history.file)) == 20)


def test_what_waits_for_the_disk_is_bounded(
    history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "MAX_PENDING", 5)
    history._connection.execute("PRAGMA query_only = ON")  # as a file system that became read-only
    log = opened_log(history)
    for i in range(20):
        log.append(final(i, f"text {i}"))
    wait_until(lambda: "readonly" in caplog.text)
    wait_published(log)
    history._connection.execute("PRAGMA query_only = OFF")
    wait_until(lambda: history.file.session("s1") is not None)
    assert texts(history.file) == [f"text {i}" for i in range(16, 20)]  # with the session's beginning
    wait_until(lambda: "16 texts were too many to wait" in caplog.text)
    assert "the oldest are given up" in caplog.text
    assert history.n_lost == 16


def test_what_still_waits_is_written_at_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "RETRY_S", 100.0)
    with closing(History(path)) as history:
        history._connection.execute("PRAGMA query_only = ON")
        opened_log(history).append(final(1, "late"))
        history._connection.execute("PRAGMA query_only = OFF")
    assert texts(HistoryFile(path)) == ["late"]
    history.close()
    assert not history.keeper(source="mic")(final(2, "too late"), lambda: None)
    assert texts(HistoryFile(path)) == ["late"]


def test_a_keeper_that_raises_stops_no_captions(caplog: pytest.LogCaptureFixture) -> None:
    def keep(event: Event, publish: Callable[[], None]) -> bool:
        raise ValueError(event.type)

    log = EventLog("s1", 10, keep=keep)
    assert log.append(final(1, "a")).seq == 1
    assert "could not be kept" in caplog.text


def test_an_event_that_nobody_can_write_does_not_stand_in_the_way(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    keep, done = history.keeper(source="mic"), threading.Event()
    assert keep(ready().stamped(1, "s1"), lambda: None)
    assert keep(final(1, "half a character \ud800").stamped(2, "s1"), lambda: None)
    assert keep(final(2, "a whole text").stamped(3, "s1"), done.set)
    assert done.wait(WAIT_S)
    assert texts(history.file) == ["a whole text"]
    assert "a final event could not be kept" in caplog.text
    assert "UnicodeEncodeError" in caplog.text


def test_many_threads_write_and_read_at_once(history: History) -> None:
    logs = [opened_log(history, f"s{i}") for i in range(4)]

    def write(log: EventLog) -> None:
        for i in range(50):
            log.append(final(i, f"text {i}"))

    threads = [threading.Thread(target=write, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert all(session.n_events <= 50 for session in history.file.sessions(10))
    for thread in threads:
        thread.join()
    for log in logs:
        wait_published(log)
    assert all(texts(history.file, log.session) == [f"text {i}" for i in range(50)] for log in logs)


def test_what_is_too_old_goes_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(History(path)) as history:
        log = opened_log(history)
        log.append(final(1, "old"))
        log.append(final(2, "new"))
        log.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET at = at - 3 * 86400 WHERE seq = 2")
    with closing(History(path, days=2.0)) as history:
        wait_until(lambda: texts(history.file) == ["new"])
        assert history.file.search("old", 10) == []


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: path.mkdir(), "is no file|there is no history at"),
        (lambda path: path.write_bytes(b"no database" * 100), "file is not a database"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE t (a)"), "another program's database"),
        (lambda path: newer(path), "has version 99: this streamer knows"),
    ],
    ids=["folder", "text", "other", "newer"],
)
def test_what_is_no_history_is_refused_in_one_line(
    tmp_path: Path, prepare: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "history.db"
    prepare(path)
    for opening in (History, lambda path: HistoryFile(path).check()):
        with pytest.raises(ConfigError, match=said) as caught:
            opening(path)
        assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be opened \("):
        History(tmp_path / "file" / "history.db")


def test_the_setting_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = history_file_module.history_path("auto")
    assert path.name == "history.db"
    assert path.parent.name == "streamer"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert history_file_module.history_path("~/a.db") == tmp_path / "a.db"


def test_the_settings_say_whether_anything_is_kept(path: Path) -> None:
    with open_history(ServerSettings()) as none:
        assert none is None
    registry = CollectorRegistry()
    with open_history(ServerSettings(history=str(path))) as history:
        assert history is not None
        register_history(registry, history)
        history.n_failures = 3
        assert registry.get_sample_value("streamer_history_failures_total") == 3
        assert history.file.in_use
    assert not HistoryFile(path).in_use


# Appends finals through an event log, each when the one before was told, and prints the number of each that was.
WRITER = """
import sys, threading
from pathlib import Path
from streamer.server.history import History
from streamer.stream.eventlog import EventLog
from tests.server.support import final, ready
history = History(Path(sys.argv[1]))
log = EventLog(sys.argv[2], 1000, keep=history.keeper(source="mic"))
log.append(ready())
told = threading.Semaphore(0)
log.call_behind(told.release)
told.acquire()
log.subscribe(lambda event: (print(event.seq, flush=True), told.release()))
for i in range(1_000_000):
    log.append(final(i, f"text {i}"))
    told.acquire()
"""


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_told(path: Path) -> None:
    chance = random.Random(14)
    for i in range(10):
        process = subprocess.Popen([sys.executable, "-c", WRITER, path, f"s{i}"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.05))
        process.kill()
        n_told = 2 + process.stdout.read().count(b"\n")
        process.stdout.close()
        process.wait()
        found = texts(HistoryFile(path), f"s{i}")
        assert n_told - 1 <= len(found) <= n_told
        assert found == [f"text {i}" for i in range(len(found))]
    assert len(HistoryFile(path).sessions(20)) == 10
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def newer(path: Path) -> None:
    History(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
