"""What is read from a history, searched for, and deleted."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from streamer.errors import ConfigError, HistoryError
from streamer.events import Event, Final, Revision, Speakers, Translation
from streamer.server import history_file as module
from streamer.server.history import History
from streamer.server.history_file import HistoryFile, KeptSession, utc
from streamer.stream.eventlog import EventLog
from tests.server.support import final, ready, wait_published
from tests.sinks.finals import labelled

# What people may type into a field to search with.
HOSTILE = [
    '"',
    "'",
    "*",
    "(",
    ")",
    "NEAR(",
    "AND",
    "a AND",
    "NOT NOT",
    "^a",
    "text:a",
    "a*",
    '"a',
    "-a",
    "x' OR 1=1 --",
]
HOSTILE += ["a\0b", "ä", "{a b}", "+", ":", "a" * 10_000, "\\", "%", "a;DROP TABLE texts"]


@pytest.fixture
def file(history: History) -> HistoryFile:
    return history.file


def said(history: History, session: str, *texts: str, own: bool = True, end: bool = True) -> KeptSession:
    """Keep a session with texts."""
    log = EventLog(session, 10_000, keep=history.keeper(source="mic", own=own))
    log.append(ready())
    for i, text in enumerate(texts):
        log.append(final(i + 1, text, start=10.0 * i))
    if end:
        log.close()
    wait_published(log)
    found = history.file.session(session)
    assert found is not None
    return found


def texts(file: HistoryFile, session: KeptSession) -> list[str]:
    return [event.text for event in events(file, session) if isinstance(event, Final)]


def events(file: HistoryFile, session: KeptSession) -> list[Event]:
    return [event for some in file.transcript(session) for event in some]


def found(file: HistoryFile, text: str) -> list[str]:
    return [hit.snippet for hit in file.search(text, 10)]


def test_sessions_are_listed_newest_first_a_page_at_a_time(history: History, file: HistoryFile) -> None:
    for i in range(5):
        said(history, f"s{i}", "a")
    first = file.sessions(2)
    assert [session.id for session in first] == ["s4", "s3"]
    assert [session.id for session in file.sessions(9, before=first[-1].number)] == ["s2", "s1", "s0"]
    assert file.session("s9") is None
    assert file.next_own(first[-1].number) == first[0]
    assert file.next_own(first[0].number) is None


def test_a_clients_stream_is_nobodys_business_while_it_is_open(history: History, file: HistoryFile) -> None:
    said(history, "own", "words of mine", end=False)
    said(history, "over", "words of before", own=False)
    said(history, "open", "words of now", own=False, end=False)
    assert [session.id for session in file.sessions(9)] == ["open", "over", "own"]
    assert [session.id for session in file.sessions(9, public=True)] == ["over", "own"]
    assert file.session("open") is not None
    assert file.session("open", public=True) is None
    assert [hit.session for hit in file.search("words", 9, public=True)] == ["over", "own"]
    assert file.next_own(1) is None


def test_a_session_is_named_by_the_beginning_of_its_name(history: History, file: HistoryFile) -> None:
    for name in ("abc", "abd", "-xyz", "a%_"):
        said(history, name)
    assert [session.id for session in file.named("abc")] == ["abc"]
    assert [session.id for session in file.named("ab")] == ["abd", "abc"]
    assert [session.id for session in file.named("xy")] == ["-xyz"]
    assert [session.id for session in file.named("a%")] == ["a%_"]
    assert file.named("q") == []


def test_a_long_session_comes_in_pages(history: History, file: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_EVENTS", 3)
    session = said(history, "s", *"abcdefgh")
    assert [len(some) for some in file.transcript(session)] == [1, 3, 3, 2]
    assert texts(file, session) == list("abcdefgh")


def test_events_of_a_later_version_are_left_out(history: History, file: HistoryFile) -> None:
    session = said(history, "s", "a", "b", "c")
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute("""UPDATE events SET event = '{"type":"shout"}' WHERE seq IN (2, 3)""")
    assert texts(file, session) == ["c"]


def test_a_damaged_file_is_one_typed_error(history: History, file: HistoryFile) -> None:
    session = said(history, "s", "a")
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute("UPDATE events SET event = '{'")
    with pytest.raises(HistoryError, match="no event"):
        events(file, session)
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute("DROP TABLE events")
    for read in (lambda: file.sessions(1), lambda: file.search("a", 1), lambda: list(file.delete(session))):
        with pytest.raises(HistoryError, match="cannot be used"):
            read()


def test_a_file_that_no_daemon_has_written_is_one_typed_error(history: History, file: HistoryFile) -> None:
    session = said(history, "s", "a")
    for column, value in (("started", "'x'"), ("ready", "'{'"), ("ready", "'{}'"), ("model", "1"), ("source", "x'ff'")):
        with closing(sqlite3.connect(file.path)) as connection, connection:
            (before,) = connection.execute(f"SELECT {column} FROM sessions").fetchone()
            connection.execute(f"UPDATE sessions SET {column} = {value}")
            if column == "model":  # that has the affinity of text
                connection.execute("UPDATE sessions SET model = x'31'")
        with pytest.raises(HistoryError, match="no daemon has written"):
            file.sessions(1)
        with closing(sqlite3.connect(file.path)) as connection, connection:
            connection.execute(f"UPDATE sessions SET {column} = ?", (before,))
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute("UPDATE events SET start_s = 'x', at = 9e999")
    with pytest.raises(HistoryError, match="no daemon has written"):
        file.search("a", 1)
    assert file.sessions(1) == [session]
    assert utc(float("inf")).startswith("3000")


def test_events_that_disagree_with_their_numbers_are_no_endless_session(history: History, file: HistoryFile) -> None:
    session = said(history, "s", "a", "b")
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute("""UPDATE events SET event = replace(event, '"seq":3', '"seq":1')""")
    with pytest.raises(HistoryError, match="is damaged: event 3"):
        list(file.transcript(session))


def test_words_and_phrases_are_found_newest_first(history: History, file: HistoryFile) -> None:
    said(history, "s1", "Good morning, everybody.", "A good day for a morning walk.")
    said(history, "s2", "Grüße aus Köln")
    assert found(file, "MORNING good") == ["A [good] day for a [morning] walk.", "[Good] [morning], everybody."]
    assert found(file, '"good morning"') == ["[Good morning], everybody."]
    assert found(file, "koln") == ["Grüße aus [Köln]"]
    assert found(file, "evening") == []
    (hit,) = file.search("walk", 10, marks=("<", ">"))
    assert (hit.session, hit.seq, hit.start_s) == ("s1", 3, 10.0)
    assert hit.snippet.endswith("<walk>.")
    newest, oldest = file.search("good", 2)
    assert file.search("good", 2, before=newest.number) == [oldest]


def test_what_stands_between_spaces_and_punctuation_is_a_word_in_any_script(
    history: History, file: HistoryFile
) -> None:
    said(history, "s1", "今天，天气很好。", "早上好 OpenVINO です")
    assert found(file, "天气很好") == ["今天，[天气很好]。"]
    assert found(file, "很好") == []
    assert found(file, "openvino 早上好") == ["[早上好] [OpenVINO] です"]


def test_nothing_that_is_searched_for_is_a_syntax_error(history: History, file: HistoryFile) -> None:
    said(history, "s1", "a plain text")
    for text in HOSTILE:
        try:
            file.search(text, 10)
        except ConfigError as error:
            assert "no word to search for" in str(error)  # noqa: PT017 - either will do


def test_no_text_steers_a_terminal(history: History, file: HistoryFile) -> None:
    said(history, "s1", "red \x1b[31m alert \x02 \u009b")
    (snippet,) = found(file, "alert")
    assert snippet.isprintable()


def test_nothing_is_left_of_what_was_deleted(history: History, file: HistoryFile) -> None:
    session = said(history, "s1", *(f"Zanzibar {i} " + "much more text " * 20 for i in range(300)))
    other = said(history, "s2", "something else")
    n_bytes = file.path.stat().st_size + wal(file).stat().st_size
    steps = list(file.delete(session))
    assert sum(steps) == 300
    assert max(steps) <= module.STEP_EVENTS
    assert file.session("s1") is None
    assert found(file, "zanzibar") == []
    assert texts(file, other) == ["something else"]
    assert found(file, "else") == ["something [else]"]
    for path in (file.path, wal(file)):
        assert b"zanzi" not in path.read_bytes().lower()
    assert file.path.stat().st_size < n_bytes / 5


@pytest.mark.parametrize("seed", [3, 4, 8])
def test_nothing_is_left_between_what_stays(history: History, file: HistoryFile, seed: int) -> None:
    rng = random.Random(seed)
    texts = {
        name: [f"{name} {'more ' * rng.randrange(300)}{name}" for _ in range(80)] for name in ("zanzibar", "other")
    }
    session = said(history, "s1", *texts["zanzibar"][:40])
    said(history, "s2", *texts["other"])
    later = said(history, "s3", *texts["zanzibar"][40:])
    for each in (session, later):
        list(file.delete(each))
    for path in (file.path, wal(file)):
        assert b"zanzi" not in path.read_bytes().lower()


def test_writers_get_through_while_much_is_deleted(history: History, file: HistoryFile) -> None:
    session = said(history, "s1", *(f"text {i}" for i in range(300)))
    log = EventLog("s2", 100, keep=history.keeper(source="mic"))
    log.append(ready())
    for i, _ in enumerate(file.delete(session)):
        log.append(final(i, f"meanwhile {i}"))
    wait_published(log)
    kept = file.session("s2")
    assert kept is not None
    assert kept.n_events == log.last_seq - 1
    assert not history._failing


def test_what_is_too_old_goes_and_the_rest_says_so(history: History, file: HistoryFile) -> None:
    session = said(history, "s1", *(f"text {i}" for i in range(10)))
    later = said(history, "s2", "text 10")
    age(file, "seq <= 4 AND session = 1", 3600.0)
    assert sum(file.prune(before=later.started - 60.0, max_bytes=1e12)) == 3
    found = file.session("s1")
    assert found is not None
    assert (found.dropped_seq, found.dropped_s, found.n_events) == (4, 20.6, 7)
    assert texts(file, session)[0] == "text 3"
    age(file, "1", 3600.0)
    list(file.prune(before=later.started - 60.0, max_bytes=1e12))
    assert file.sessions(9) == []


def test_the_oldest_goes_where_there_is_too_much(history: History, file: HistoryFile) -> None:
    said(history, "s1", *(f"text {i} " + "more " * 100 for i in range(300)))
    said(history, "s2", "the newest")
    size = used_bytes(file)
    list(file.prune(before=0.0, max_bytes=size / 2))
    assert used_bytes(file) <= size / 2
    first, last = file.session("s1"), file.session("s2")
    assert first is not None
    assert last is not None
    assert 50 < first.n_events < 200
    assert texts(file, first)[-1].startswith("text 299")
    assert texts(file, last) == ["the newest"]
    assert list(file.prune(before=0.0, max_bytes=size / 2)) == []


def test_the_newest_text_of_a_session_that_runs_stays(history: History, file: HistoryFile) -> None:
    session = said(history, "s1", *(f"text {i}" for i in range(10)), end=False)
    age(file, "1", 3600.0)
    list(file.prune(before=session.started - 60.0, max_bytes=0.0, keep_newest=4))
    assert texts(file, session) == [f"text {i}" for i in range(6, 10)]
    list(file.prune(before=session.started - 60.0, max_bytes=0.0, keep_newest=0))
    assert texts(file, session) == []
    assert file.session("s1") is not None


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "none.db")
    with pytest.raises(ConfigError, match="there is no history at"):
        file.check()
    with pytest.raises(HistoryError):
        file.sessions(1)
    assert list(tmp_path.iterdir()) == []


def test_times_are_written_in_utc() -> None:
    assert utc(0.0) == "1970-01-01T00:00:00Z"


def age(file: HistoryFile, where: str, by_s: float) -> None:
    """Let events have been told earlier, and all sessions be over since."""
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute(f"UPDATE events SET at = at - {by_s} WHERE {where}")
        connection.execute(f"UPDATE sessions SET ended = ended - {by_s}")


def used_bytes(file: HistoryFile) -> int:
    with closing(sqlite3.connect(file.path)) as connection:
        size, n_pages, n_free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
        return int(size * (n_pages - n_free))


def wal(file: HistoryFile) -> Path:
    return file.path.with_name(file.path.name + "-wal")


def test_texts_are_read_and_found_as_they_read_by_now(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_EVENTS", 2)
    log = EventLog("s", 100, keep=history.keeper(source="mic"))
    log.append(ready())
    first = log.append(labelled(final(1, "with Shavon"), "S1", "S2"))
    second = log.append(final(2, "", start=4.0))
    for event, text in ((first, "with Chevron"), (first, "with Siobhan"), (second, "Ah."), (ready(), "no final")):
        words = labelled(final(1, text), "S1", "S2").words
        log.append(Revision(of=event.seq, by="glossary", text=text, words=words, edits=()))
    log.append(Translation(of=first.seq, text="mit Siobhan", language="de"))
    log.append(Speakers(same=("S2", "S1")))
    wait_published(log)
    file = history.file
    (session,) = file.sessions(1)
    assert session.end_s == 4.0
    found = [event for events in file.newest(session) for event in events]
    assert [getattr(event, "text", "") for event in found] == ["", "with Siobhan", "Ah.", "mit Siobhan"]
    assert [word.speaker for word in found[1].words] == ["S1", "S1"]  # type: ignore[attr-defined]
    assert [event.type for events in file.transcript(session) for event in events][3:7] == ["revision"] * 4
    assert [(hit.seq, hit.snippet) for hit in file.search("siobhan", 9)] == [(first.seq, "with [Siobhan]")]
    assert file.search("shavon", 9) == file.search("chevron", 9) == []
    assert [hit.seq for hit in file.search("ah", 9)] == [second.seq]
    assert sum(file.delete(session)) == 8
    assert file.search("siobhan", 9) == []


def test_to_ask_whether_a_daemon_writes_makes_no_file(tmp_path: Path) -> None:
    with closing(History(tmp_path / "history.db")):
        pass
    (tmp_path / "history.db-lock").unlink()
    before = sorted(tmp_path.iterdir())
    assert not HistoryFile(tmp_path / "history.db").in_use
    assert sorted(tmp_path.iterdir()) == before
