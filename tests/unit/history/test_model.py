"""What was published is in the file until it is deleted, and is listed, read and found, whatever happens when."""

import itertools
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamer.engine.eventlog import EventLog
from streamer.engine.journal import Journal
from streamer.events import Error, Final, Revision
from streamer.history import reader, writer
from streamer.history.reader import MARKS, KeptSession
from streamer.history.writer import History
from tests.builders import final, ready
from tests.unit.history.support import Disk
from tests.waiting import WAIT_S, wait_until
from tests.wire.harness import wait_published

TEXTS = ("Alpha", "beta alphabet", "", "今天天气很好")
CORRECTED = ("gamma", "alpha beta", "天气很好")
WORDS = {"alpha": r"\balpha\b", "beta": r"\bbeta\b", "天气": "天气"}

Texts = dict[str, dict[int, str]]


class Model(RuleBasedStateMachine):
    """Sessions that speak, are corrected and deleted; a daemon that is restarted and killed; a disk that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(reader, "PAGE_EVENTS", 3)
        self.patch.setattr(writer, "PUBLISH_TIMEOUT_S", WAIT_S)
        self.patch.setattr(writer, "RETRY_S", 0.01)
        self.disk = Disk(self.patch)
        self.folder = tempfile.TemporaryDirectory()
        self.n = 0
        # Logs of the sessions that run; texts of all sessions in the file by their numbers, as corrected since.
        self.running: dict[str, EventLog] = {}
        self.written: Texts = {}
        # What was published; the same, while the disk does not fail. Sessions of which the beginning was deleted.
        self.published = self.written
        self.shortened: set[str] = set()
        self.history = self.started(Path(self.folder.name) / "0" / "history.db")

    def started(self, path: Path) -> History:
        self.disk.writing, self.disk.failing, self.published = None, False, self.written
        self.running.clear()
        return History(path)

    def teardown(self) -> None:
        self.history.close()
        self.patch.undo()
        self.folder.cleanup()

    @property
    def failing(self) -> bool:
        return self.published is not self.written

    def drawn(self, number: int, among: Iterable[str]) -> str | None:
        names = list(among)
        return names[number % len(names)] if names else None

    def kept(self, name: str) -> KeptSession:
        session = self.history.session(name)
        assert session is not None
        return session

    @rule(own=st.booleans())
    def begin(self, own: bool) -> None:
        self.n += 1
        name = f"s{self.n}" if own else f"c{self.n}"
        self.running[name] = Journal(name, 1000, keep=self.history.keeper(source="mic", own=own))
        self.running[name].append(ready())
        wait_published(self.running[name])
        self.published[name] = {}

    @rule(number=st.integers(0, 9), text=st.sampled_from(TEXTS))
    def speak(self, number: int, text: str) -> None:
        if not self.running:
            self.begin(own=number % 2 == 0)
        if name := self.drawn(number, self.running):
            seq = self.running[name].append(final(text, segment=self.running[name].last_seq)).seq
            wait_published(self.running[name])
            self.published[name][seq] = text

    @rule(number=st.integers(0, 9), text=st.sampled_from(CORRECTED))
    def correct(self, number: int, text: str) -> None:
        name = self.drawn(number, self.running)
        if name and (finals := list(self.published[name])):
            of = finals[number % len(finals)]
            self.running[name].append(Revision(of=of, by="glossary", text=text, words=(), edits=()))
            wait_published(self.running[name])
            self.published[name][of] = text

    @rule(number=st.integers(0, 9))
    def end(self, number: int) -> None:
        if name := self.drawn(number, self.running):
            log = self.running.pop(name)
            log.close()
            wait_published(log)

    @rule(number=st.integers(0, 9))
    def delete(self, number: int) -> None:
        over = [name for name in self.written if name not in self.running]
        if (name := self.drawn(number, over)) and not self.failing:
            assert self.history.delete(self.kept(name)) == len(self.written.pop(name))

    @rule(number=st.integers(0, 9), part=st.integers(0, 3))
    def delete_what_is_old(self, number: int, part: int) -> None:
        """Delete the first texts of a session; of one that is over perhaps all, and then itself."""
        if (name := self.drawn(number, self.written)) and not self.failing:
            texts = self.written[name]
            until = [*texts, 2**40][min(part, len(texts) - (name in self.running))] if texts else 2**40
            with closing(sqlite3.connect(self.history.path)) as connection, connection:
                aged = "UPDATE events SET at = at - 3600 WHERE session = ? AND seq <= ?"
                connection.execute(aged, (name, until))
            gone = [seq for seq in texts if seq <= until]
            assert self.history.delete_before(time.time() - 1800) == len(gone)
            for seq in gone:
                del texts[seq]
            if until == 2**40 and name not in self.running:
                del self.written[name]
            elif gone:
                self.shortened.add(name)

    @rule()
    def fail_or_work_again(self) -> None:
        """Let the disk fail; what is published meanwhile is written when it works again."""
        if not self.failing:
            self.disk.failing = True
            self.published = {name: dict(texts) for name, texts in self.written.items()}
            return
        self.disk.failing = False
        self.history.keeper(source="")(ready().stamped(1, "last"), lambda: None)
        wait_until(lambda: self.history.session("last") is not None)
        with closing(sqlite3.connect(self.history.path)) as connection, connection:
            connection.execute("DELETE FROM events WHERE session = 'last'")
        self.written = self.published

    @rule()
    def restart(self) -> None:
        self.history.close()
        self.history = self.started(self.history.path)

    @rule()
    def crash(self) -> None:
        """Go on with the bytes that are in the files now, as after `kill -9`."""
        self.n += 1
        folder = Path(self.folder.name) / str(self.n)
        folder.mkdir()
        for file in sorted(self.history.path.parent.glob("history.db*")):
            if file.suffix in (".db", ".db-wal"):
                shutil.copy(file, folder)
        self.history.close()
        self.history = self.started(folder / "history.db")

    @invariant()
    def what_was_said_is_listed_read_and_found(self) -> None:
        listed = self.history.sessions(2)
        while more := self.history.sessions(2, before=listed[-1].number) if listed else []:
            listed += more
        assert [session.id for session in listed] == [*reversed(self.written)]
        for session in listed:
            events = list(self.history.transcript(session, newest=True))
            texts = {event.seq: event.text for event in events if isinstance(event, Final)}
            assert texts == self.written[session.id]
            assert any(isinstance(event, Error) for event in events) == (session.id in self.shortened)
            assert self.failing or (session.ended is None) == (session.id in self.running)
            following = [name for name in self.written if name[0] == "s" and int(name[1:]) > int(session.id[1:])]
            found = self.history.next_own(session.number)
            assert (found and found.id) == (following[0] if following else None)

    @invariant()
    def an_open_stream_of_a_client_is_secret(self) -> None:
        ended = {session.id for session in self.history.sessions(100) if session.ended is not None}
        public = [name for name in self.written if name[0] == "s" or name in ended]
        assert [session.id for session in self.history.sessions(100, public=True)] == public[::-1]
        if name := self.drawn(self.n, self.written):
            assert (self.history.session(name, public=True) is not None) == (name in public)
        for (word, pattern), only in itertools.product(WORDS.items(), (False, True)):
            said = [text for name in (public if only else self.written) for text in self.written[name].values()]
            hits = [hit.snippet for hit in self.history.search(word, 1000, public=only)]
            marked = [re.sub(pattern, rf"{MARKS[0]}\g<0>{MARKS[1]}", text, flags=re.I) for text in said]
            assert sorted(hits) == sorted(text for text in marked if MARKS[0] in text)


TestModel = Model.TestCase
TestModel.settings = hypothesis.settings(max_examples=15, stateful_step_count=20)
