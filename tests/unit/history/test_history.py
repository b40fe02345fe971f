"""What was published as final is in the file, whatever happens to the program or the disk, until it is deleted."""

import asyncio
import contextlib
import logging
import random
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from streamer.engine.eventlog import EventLog
from streamer.engine.journal import Journal
from streamer.errors import ConfigError, HistoryError
from streamer.events import Error, Event, Final, Gap, Ready, Revision, Speakers, Speech, Translation
from streamer.history import database, reader, writer
from streamer.history.audio import find_spans
from streamer.history.database import history_path
from streamer.history.reader import MARKS, HistoryFile, KeptSession
from streamer.history.writer import History, open_history
from streamer.server.metrics import register_history
from streamer.settings.table import ServerSettings
from tests.builders import ready
from tests.refusals import Refusal, refusals
from tests.unit.history.support import Disk, locked
from tests.unit.outputs.finals import labelled
from tests.unit.test_events import SAMPLES
from tests.waiting import WAIT_S, until, wait_until
from tests.wire.harness import numbered_final, numbered_partial, wait_published

GAP = Gap(start=3.0, end=4.0, reason="overload")

# What people may type into a field to search with.
HOSTILE = ['"', "'", "*", "(", ")", "NEAR(", "AND", "^a", "text:a", "a*", '"a', "-a", "+", ":", "\\", "ä", "%"]
HOSTILE += ["a AND", "NOT NOT", "x' OR 1=1 --", "a\0b", "{a b}", "a" * 10_000, "a;DROP TABLE texts"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writer, "RETRY_S", 0.02)
    return tmp_path / "data" / "history.db"


def opened_log(history: History, session: str = "s1", *, own: bool = True) -> EventLog:
    log = Journal(session, 10_000, keep=history.keeper(source="mic", own=own))
    log.append(ready())
    wait_published(log)
    return log


def followed_log(history: History, session: str = "s1") -> tuple[EventLog, list[Event]]:
    """Return a log whose session is in the history's file, and a list that its further events are added to."""
    log = opened_log(history, session)
    wait_until(lambda: history.session(log.session) is not None)
    published: list[Event] = []
    log.subscribe(published.append)
    return log, published


def said(history: History, session: str, *texts: str, own: bool = True, end: bool = True) -> KeptSession:
    """Keep a session with texts."""
    log = opened_log(history, session, own=own)
    for i, text in enumerate(texts):
        log.append(numbered_final(i + 1, text, start=10.0 * i))
    if end:
        log.close()
    wait_published(log)
    wait_until(lambda: any(each.id == session and (each.ended or not end) for each in history.sessions(9)))
    return kept(history, session)


def kept(history: HistoryFile, session: str = "s1") -> KeptSession:
    found = history.session(session)
    assert found is not None
    return found


def events(history: HistoryFile, session: str = "s1") -> list[Event]:
    return list(history.transcript(kept(history, session)))


def texts(history: HistoryFile, session: str = "s1") -> list[str]:
    return [event.text for event in events(history, session) if isinstance(event, Final)]


def found(history: HistoryFile, text: str) -> list[str]:
    """Return the snippets of a search, with their marks as brackets."""
    begin, end = MARKS
    return [hit.snippet.replace(begin, "[").replace(end, "]") for hit in history.search(text, 10)]


def change(history: HistoryFile, statement: str) -> None:
    """Change the file as another program would."""
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute(statement)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def age(history: HistoryFile, where: str) -> None:
    """Make events an hour older."""
    change(history, f"UPDATE events SET at = at - 3600 WHERE {where}")


def wal(history: HistoryFile) -> Path:
    return history.path.with_name(history.path.name + "-wal")


def test_what_lasts_is_kept_and_nothing_else(history: History) -> None:
    log = opened_log(history)
    log.append(Speech(state="start", time=0.1))
    log.append(numbered_partial(1, "good"))
    spoken = log.append(numbered_final(1, "good morning"))
    gap = log.append(GAP)
    log.append(Error(code="device", message="m", fatal=False))
    log.close()
    wait_published(log)
    opening, *rest = events(history)
    assert isinstance(opening, Ready)
    assert rest == [spoken, gap]
    session = kept(history)
    assert (session.own, session.source, session.ready) == (True, "mic", opening)
    assert (session.n_events, session.end_s) == (2, 4.0)
    assert session.ended is not None
    assert 0 <= session.ended - session.started < 60


def test_each_type_of_event_is_kept_or_waits_for_no_disk(history: History) -> None:
    keep = history.keeper(source="mic")
    stored = {event.type: keep(event.stamped(n, "s1"), lambda: None) for n, event in enumerate(SAMPLES, start=1)}
    kept = {"ready", "final", "revision", "speakers", "translation", "gap", "end"}
    passing = {"resumed", "speech", "turn", "partial", "flushed", "error"}
    assert stored == {**dict.fromkeys(kept, True), **dict.fromkeys(passing, False)}


def test_listeners_get_what_is_in_the_file(history: History) -> None:
    log = opened_log(history)
    seen: list[bool] = []
    log.subscribe(lambda event: seen.append(event in events(history)))
    log.append(numbered_final(1, "one"))
    log.append(GAP)
    wait_published(log)
    assert seen == [True, True]


def test_file_and_folder_are_the_users_own(history: History) -> None:
    said(history, "s1", "secret", end=False)
    if sys.platform != "win32":
        modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in history.path.parent.iterdir()}
        assert set(modes) >= {"history.db", "history.db-wal", "history.db-lock"}
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(history.path.parent.stat().st_mode) == 0o700


def test_a_file_has_one_daemon_and_programs_that_look_keep_none_from_starting(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(History(path)) as history:
        assert history.in_use
        with pytest.raises(ConfigError):
            History(path)
    monkeypatch.setattr(database, "READERS_TIMEOUT_S", WAIT_S)
    lock = path.with_name("history.db-lock")
    with closing(sqlite3.connect(lock, check_same_thread=False)) as looking:
        looking.execute("BEGIN")
        looking.execute("SELECT * FROM sqlite_master").fetchall()
        assert not HistoryFile(path).in_use, "another that looks is no daemon"
        threading.Timer(0.1, looking.rollback).start()
        History(path).close()
    lock.unlink()
    before = sorted(path.parent.iterdir())
    assert not HistoryFile(path).in_use
    assert sorted(path.parent.iterdir()) == before, "to look makes no file"


def test_sessions_of_a_daemon_that_was_killed_ended_with_their_last_event(path: Path) -> None:
    with closing(History(path)) as first:
        said(first, "s1", "last", end=False)
    change(first, "DELETE FROM events WHERE type = 'end'")
    with closing(sqlite3.connect(path)) as connection:
        (at,) = connection.execute("SELECT at FROM events WHERE seq = 2").fetchone()
    with closing(History(path)) as second:
        assert kept(second).ended == at
        assert texts(second) == ["last"]


async def test_a_file_that_is_locked_holds_up_neither_the_loop_nor_what_is_published(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 10 * WAIT_S)  # for which an attempt to write stands still
    with closing(History(path)) as history:
        log, published = followed_log(history)
        with locked(path):
            for i in range(20):
                log.append(numbered_partial(i, "text"))
                log.append(numbered_final(i, f"text {i}"))
                await asyncio.sleep(0)
            await until(lambda: len(published) >= 40)
            assert published == sorted(published, key=lambda event: event.seq)
            assert texts(history) == []
        await asyncio.to_thread(wait_until, lambda: len(texts(history)) == 20)
        assert history.n_lost == 0
    assert warnings(caplog) == []


def test_what_is_too_much_to_wait_for_a_locked_file_is_reported_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MAX_PENDING", 5)
    registry = CollectorRegistry()
    with closing(History(path)) as history:
        register_history(registry, history)
        log, published = followed_log(history)
        with locked(path):
            for i in range(20):
                log.append(numbered_final(i, f"text {i}"))
            wait_until(lambda: len(published) == 20)
            second = opened_log(history, "s2")  # a session that begins meanwhile is kept
            second.append(numbered_final(1, "lost"))
            log.close()
        wait_until(lambda: texts(history) == [f"text {i}" for i in range(5)])
        assert history.n_lost == 16
        assert registry.get_sample_value("streamer_history_lost_total") == 16
        wait_until(lambda: len(warnings(caplog)) == 2)  # it loses some, and works again
        second.append(numbered_final(2, "kept"))
        wait_until(lambda: history.session("s2") is not None and texts(history, "s2") == ["kept"])
        assert kept(history).ended is not None


def test_what_cannot_be_deleted_from_a_locked_file_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 0.05)
    with closing(History(path)) as history:
        session, log = said(history, "s1", "a"), opened_log(history, "s2")
        with ThreadPoolExecutor(1) as pool, locked(path):
            log.append(GAP)  # which the deletion waits for
            assert isinstance(pool.submit(history.delete, session).exception(WAIT_S), HistoryError)
        assert texts(history) == ["a"]


@pytest.mark.parametrize("free", [True, False])
def test_what_still_waits_at_the_end_is_written_or_counted(
    free: bool, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(writer, "RETRY_S", 100.0)
    with closing(History(path)) as history:
        log, _ = followed_log(history)
        with locked(path):
            for i in range(3):
                log.append(numbered_final(i, f"text {i}"))
            wait_until(lambda: history.n_failures > 0)
            if not free:
                history.close()
    assert (history.n_lost, len(texts(history))) == ((0, 3) if free else (3, 0))
    assert free or "3 texts" in warnings(caplog)[-1]
    assert not history.keeper(source="mic")(numbered_final(9, "too late"), lambda: None)


@pytest.mark.parametrize(
    ("breaking", "mending"),
    [("PRAGMA max_page_count = 30", "PRAGMA max_page_count = 1000000"), ("DROP TABLE events", "")],
    ids=["a full disk", "a damaged file"],
)
def test_a_disk_that_takes_nothing_is_one_warning_and_captions_go_on(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    breaking: str,
    mending: str,
) -> None:
    disk = Disk(monkeypatch)
    with closing(History(path)) as history:
        log, published = followed_log(history)
        disk.execute(breaking)
        for i in range(20):
            log.append(numbered_final(i, f"{'word ' * 2000}{i}"))
        wait_until(lambda: len(published) == 20 and history.n_failures > 2)
        assert len(warnings(caplog)) == 1
        if mending:
            disk.execute(mending)
            wait_until(lambda: len(texts(history)) == 20)


def test_a_keeper_that_raises_stops_no_captions(caplog: pytest.LogCaptureFixture) -> None:
    def keep(event: Event, publish: Callable[[], None]) -> bool:
        raise ValueError(event.type)

    log = Journal("s1", 10, keep=keep)
    assert log.append(numbered_final(1, "a")).seq == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_an_event_that_cannot_be_written_does_not_stop_the_others(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    keep, done = history.keeper(source="mic"), threading.Event()
    assert keep(ready().stamped(1, "s1"), lambda: None)
    assert keep(numbered_final(1, "half a character \ud800").stamped(2, "s1"), lambda: None)
    assert keep(numbered_final(2, "a whole text").stamped(3, "s1"), done.set)
    assert done.wait(WAIT_S)
    assert texts(history) == ["a whole text"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_source_whose_name_is_not_utf_8_costs_no_text(history: History) -> None:
    log = Journal("s1", 100, keep=history.keeper(source="/recordings/\udcff.wav"))
    log.append(ready())
    log.append(numbered_final(1, "a text"))
    wait_published(log)
    assert texts(history) == ["a text"]
    assert kept(history).source == "/recordings/ .wav"


def test_many_threads_write_and_read_at_once(history: History) -> None:
    logs = [opened_log(history, f"s{i}") for i in range(4)]

    def write(log: EventLog) -> list[int]:
        return [log.append(numbered_final(i, f"text {i}")).seq for i in range(50)]

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, log) for log in logs]
        while not all(each.done() for each in writing):
            assert all(session.n_events <= 50 for session in history.sessions(10))
    for log in logs:
        wait_published(log)
        assert texts(history, log.session) == [f"text {i}" for i in range(50)]


FILES: dict[str, Callable[[Path], object]] = {
    "none": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "in a file": lambda path: path.parent.touch(),
    "text": lambda path: path.write_bytes(b"no database" * 100),
    "other": lambda path: sqlite3.connect(path).execute("CREATE TABLE t (a)"),
    "newer": lambda path: sqlite3.connect(path).executescript(
        f"PRAGMA application_id = {database.APPLICATION_ID}; PRAGMA user_version = 99"
    ),
}


STEPS: dict[str, Callable[[Path], object]] = {"check": lambda path: HistoryFile(path).check(), "start": History}


@refusals("history")
def test_what_is_no_history_of_this_version_is_refused(refusal: Refusal, tmp_path: Path) -> None:
    path = tmp_path / "a" / "history.db"
    if refusal.given["file"] != "in a file":
        path.parent.mkdir()
    FILES[refusal.given["file"]](path)
    before = sorted(tmp_path.rglob("*"))
    with refusal.expected(tmp_path):
        STEPS[refusal.given["to"]](path)
    assert refusal.given["to"] == "start" or sorted(tmp_path.rglob("*")) == before


def test_the_setting_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = history_path("auto")
    assert path.name == "history.db"
    assert path.parent.name == "streamer"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert history_path("~/a.db") == tmp_path / "a.db"


def test_the_settings_say_whether_anything_is_kept(path: Path) -> None:
    with open_history(ServerSettings()) as none:
        assert none is None
    registry = CollectorRegistry()
    with open_history(ServerSettings(history=str(path))) as history:
        assert history is not None
        register_history(registry, history)
        history.n_failures = 3
        assert registry.get_sample_value("streamer_history_failures_total") == 3
        assert history.in_use
    assert not HistoryFile(path).in_use


# Appends finals through an event log, each when the one before was published, and prints the number of each that was.
# On a slow machine an event would be published before it is stored.
WRITER = """
import sys, threading
from pathlib import Path
from streamer.history import writer
from streamer.history.writer import History
writer.PUBLISH_TIMEOUT_S = 60.0
from streamer.engine.journal import Journal
from tests.builders import final, ready
history = History(Path(sys.argv[1]))
log = Journal(sys.argv[2], 1000, keep=history.keeper(source="mic"))
log.append(ready())
published = threading.Semaphore(0)
log.call_behind(published.release)
published.acquire()
log.subscribe(lambda event: (print(event.seq, flush=True), published.release()))
for i in range(1_000_000):
    log.append(final(f"text {i}", segment=i))
    published.acquire()
"""


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_published(path: Path) -> None:
    chance = random.Random(14)
    for i in range(10):
        process = subprocess.Popen([sys.executable, "-c", WRITER, path, f"s{i}"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.05))
        process.kill()
        n_published = 2 + process.stdout.read().count(b"\n")
        process.stdout.close()
        process.wait()
        written = texts(HistoryFile(path), f"s{i}")
        assert n_published - 1 <= len(written) <= n_published
        assert written == [f"text {i}" for i in range(len(written))]
    assert len(HistoryFile(path).sessions(20)) == 10
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_session_is_named_by_the_beginning_of_its_name(history: History) -> None:
    for name in ("abc", "abd", "-xyz", "a%_"):
        said(history, name)
    assert [session.id for session in history.named("abc")] == ["abc"]
    assert [session.id for session in history.named("ab")] == ["abd", "abc"]
    assert [session.id for session in history.named("xy")] == ["-xyz"]
    assert [session.id for session in history.named("-xy")] == ["-xyz"]
    assert [session.id for session in history.named("a%")] == ["a%_"]
    for none in ("q", "", "-", "--"):
        assert history.named(none) == [], none


def test_events_of_a_later_version_are_left_out(history: History) -> None:
    said(history, "s1", "a", "b", "c")
    change(history, "UPDATE events SET event = json_set(event, '$.type', 'shout') WHERE seq IN (2, 3)")
    assert texts(history) == ["c"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET at = 'x'",
        "UPDATE events SET source = x'ff'",
        "UPDATE events SET event = json_remove(event, '$.model') WHERE type = 'ready'",
        "UPDATE events SET event = json_set(event, '$.sample_rate', 'x') WHERE type = 'ready'",
        "DROP TABLE events",
    ],
)
def test_a_damaged_file_is_one_typed_error(history: History, damage: str) -> None:
    session = said(history, "s1", "a")
    change(history, "UPDATE events SET event = json_remove(event, '$.text') WHERE type = 'final'")
    with pytest.raises(HistoryError):
        events(history)
    change(history, damage)
    reads: list[Callable[[], object]] = [lambda: history.sessions(1)]
    if damage.startswith("DROP"):
        reads += [lambda: history.search("a", 1), lambda: history.delete(session)]
    for read in reads:
        with pytest.raises(HistoryError):
            read()


def test_words_and_phrases_are_found_newest_first(history: History) -> None:
    said(history, "s1", "Good morning, everybody.", "A good day for a morning walk.")
    said(history, "s2", "Grüße aus Köln")
    assert found(history, "MORNING good") == ["A [good] day for a [morning] walk.", "[Good] [morning], everybody."]
    assert found(history, '"good morning"') == ["[Good morning], everybody."]
    assert found(history, "koln") == ["Grüße aus [Köln]"]
    assert found(history, "evening") == []
    (hit,) = history.search("walk", 10)
    assert (hit.session, hit.seq, hit.start_s) == ("s1", 3, 10.0)
    newest, oldest = history.search("good", 2)
    assert history.search("good", 2, before=newest.number) == [oldest]


FOUND = {
    "天气很好": ["今天，[天气很好]。"],
    "很好": ["今天，天气[很好]。"],
    "好很": [],
    "openvino 早上好": ["[早上好][OpenVINO] です"],
    "で": ["早上好OpenVINO [で]す"],
    "ต้อนรับ": ["ยินดี[ต้อนรับ]สู่ประเทศไทย"],
    "ตอนรบ": [],  # other vowels and tones
    "학교": ["[학교] 갑니다"],
    "हिन्दी": ["[हिन्दी] में"],
    "北京": ["[北京]"],
    "亰": [],
}


@pytest.fixture
def many_scripts(history: History) -> Path:
    """The path of a history with texts in many scripts, one of them corrected, that is closed."""
    said(history, "s1", "今天，天气很好。", "早上好OpenVINO です", "ยินดีต้อนรับสู่ประเทศไทย", "학교 갑니다", "हिन्दी में")
    log = opened_log(history, "s2")
    of = log.append(numbered_final(1, "北亰")).seq
    log.append(Revision(of=of, by="glossary", text="北京", words=(), edits=()))
    history.close()
    return history.path


def test_words_are_found_in_any_script(many_scripts: Path) -> None:
    assert {text: found(HistoryFile(many_scripts), text) for text in FOUND} == FOUND


@pytest.mark.parametrize("audio", ["", "DROP TABLE audio;"], ids=["", "before audio"])
@pytest.mark.parametrize("opened", ["a daemon", "a command"])
def test_a_file_of_version_2_is_brought_up_to_date(many_scripts: Path, audio: str, opened: str) -> None:
    with closing(sqlite3.connect(many_scripts)) as connection:
        texts = "DROP TABLE texts; CREATE VIRTUAL TABLE texts USING fts5 (text); PRAGMA user_version = 2"
        connection.executescript(audio + texts)
    if opened == "a daemon":
        History(many_scripts).close()
    else:
        HistoryFile(many_scripts).check()
    assert {text: found(HistoryFile(many_scripts), text) for text in FOUND} == FOUND
    with closing(History(many_scripts, audio=True)) as history:
        said(history, "s3", "new")
        assert find_spans(history, "s3") == []
        assert history.delete(kept(history, "s1")) == 5


def test_an_upgrade_that_fails_changes_nothing(many_scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(many_scripts)) as connection:
        connection.executescript("PRAGMA user_version = 2")
    with monkeypatch.context() as failing:
        failing.setattr(database, "indexed", lambda text: 1 // 0)
        with pytest.raises(HistoryError):
            HistoryFile(many_scripts).check()
    assert found(HistoryFile(many_scripts), "北京") == ["[北京]"]
    HistoryFile(many_scripts).check()
    assert found(HistoryFile(many_scripts), "北京") == ["[北京]"]


def test_nothing_that_is_searched_for_is_a_syntax_error(history: History) -> None:
    said(history, "s1", "a plain text")
    for text in HOSTILE:
        with contextlib.suppress(ConfigError):  # there is no word in it
            history.search(text, 10)


def test_no_text_controls_a_terminal(history: History) -> None:
    said(history, "s1", "red \x1b[31m alert \x02 \u009b")
    (snippet,) = found(history, "alert")
    assert snippet.isprintable()


def test_what_is_learnt_later_is_read_and_found_with_the_text(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE_EVENTS", 2)
    log = opened_log(history)
    of = log.append(labelled(numbered_final(1, "with Shavon"), "S1", "S2")).seq
    words = labelled(numbered_final(1, "with Siobhan"), "S1", "S2").words
    for event in (
        Revision(of=of, by="glossary", text="with Chevron", words=words, edits=()),
        Revision(of=of, by="glossary", text="with Siobhan", words=words, edits=()),
        Revision(of=1, by="glossary", text="not a final", words=words, edits=()),
        Translation(of=of, text="mit Siobhan", language="de"),
        Speakers(same=("S2", "S1")),
    ):
        log.append(event)
    wait_published(log)
    newest = list(history.transcript(kept(history), newest=True))
    assert [getattr(event, "text", "") for event in newest] == ["", "with Siobhan", "mit Siobhan"]
    assert [word.speaker for word in newest[1].words] == ["S1", "S1"]  # type: ignore[attr-defined]
    assert [event.type for event in events(history)][2:5] == ["revision"] * 3
    assert found(history, "siobhan") == ["with [Siobhan]"]
    assert found(history, "shavon") == found(history, "chevron") == found(history, "not") == []


def test_a_transcript_that_is_deleted_while_it_is_read_does_not_seem_complete(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE_EVENTS", 2)
    session = said(history, "s1", *"abcd")
    read = history.transcript(session)
    assert [next(read).type for _ in range(2)] == ["ready", "final"]
    history.delete(session)
    with pytest.raises(HistoryError):
        next(read)


@pytest.mark.parametrize("seed", [3, 4, 8])
def test_nothing_is_left_of_what_was_deleted_also_between_what_stays(history: History, seed: int) -> None:
    rng = random.Random(seed)

    def of(name: str) -> list[str]:
        return [f"{name} {'more ' * rng.randrange(300)}{name}" for _ in range(40)]

    session, stays, later = (
        said(history, f"s{i}", *of(name)) for i, name in enumerate(("zanzibar", "other", "zanzibar"))
    )
    n_bytes = history.path.stat().st_size + wal(history).stat().st_size
    assert [history.delete(each) for each in (session, later)] == [40, 40]
    assert (history.session(session.id), found(history, "zanzibar")) == (None, [])
    assert len(texts(history, stays.id)) == len(history.search("other", 99)) == 40
    for path in (history.path, wal(history)):
        assert b"zanzi" not in path.read_bytes().lower()
    assert history.path.stat().st_size < n_bytes / 2


def test_what_is_too_old_goes_by_itself(path: Path) -> None:
    with closing(History(path)) as history:
        said(history, "s1", "old", "new")
    change(history, "UPDATE events SET at = at - 3 * 86400 WHERE seq = 2")
    with closing(History(path, days=2.0)) as history:
        wait_until(lambda: texts(history) == ["new"])
        assert history.search("old", 10) == []


def test_an_error_stands_for_what_was_too_old(history: History) -> None:
    session = said(history, "s1", "a", "b", "c", "d")
    for seq in (3, 4):
        age(history, f"seq <= {seq}")
        history.delete_before(session.started - 60.0)
        opening, lost, first, *_ = events(history)
        assert isinstance(lost, Error)
        assert (opening.type, lost.seq, lost.code, first.seq) == ("ready", seq, "history_lost", seq + 1)


def test_the_oldest_goes_if_there_is_too_much(path: Path) -> None:
    with closing(History(path)) as history:
        said(history, "s1", *(f"text {i} " + "more " * 100 for i in range(1000)))
        said(history, "s2", "the newest")
    n_bytes = path.stat().st_size
    with closing(History(path, megabytes=n_bytes / 2e6)) as history:
        wait_until(lambda: kept(history).n_events < 800)
        history.close()
    assert path.stat().st_size <= n_bytes / 2
    assert 300 < kept(history).n_events < 800
    assert texts(history)[-1].startswith("text 999")
    assert texts(history, "s2") == ["the newest"]
    with closing(History(path, megabytes=0.001)) as history:  # which no history is
        wait_until(lambda: history.sessions(9) == [])
