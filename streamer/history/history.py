"""The history: a SQLite file of final text. A thread of one daemon writes it; other programs may read it meanwhile.

Positions are seconds of a session's audio, wall-clock times are seconds since 1970, UTC.
"""

import contextlib
import logging
import math
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import platformdirs

from streamer import events as types
from streamer.engine.journal import Keep, KeepAudio, no_audio
from streamer.errors import ConfigError, HistoryError, UnknownEventError
from streamer.events import End, Error, Event, Final, Ready, Revision, Speakers, from_json
from streamer.history import audio as history_audio
from streamer.history.audio import AudioKeeper
from streamer.history.file import LOCK_TIMEOUT_S, HistoryFile, connect, owned
from streamer.languages import WITHOUT_SPACES
from streamer.outputs.subtitles.revised import SpeakerNames, revised
from streamer.outside import one_line, printable
from streamer.settings.table import ServerSettings

logger = logging.getLogger(__name__)

AUTO = "auto"  # the setting that puts the file into the user's data directory

APPLICATION_ID = 0x53545248  # "STRH", which distinguishes a history from other programs' databases
VERSION = 2

PUBLISH_TIMEOUT_S = 0.1  # for an event to be stored; then it is published before
RETRY_S = 2.0  # between attempts to write while writing fails
TIDY_S = 60.0  # between two deletions of the oldest events
MAX_PENDING = 2000  # events that wait in memory until they are written
PAGE_EVENTS = 200  # read at a time: half a megabyte
PRUNE_EVENTS = 100  # deleted at a time while the file is too large
PRUNE_PIECES = 20  # of audio, before that

# Events that are kept. The others are replaced by the events that follow, or they describe one moment: they are not
# stored, and wait for no disk.
_KEPT = (types.Ready, types.Final, types.Revision, types.Speakers, types.Translation, types.Gap, types.End)

# A row is an event: the first of a session is its `ready`, the last its `end`; an `error`, code `history_lost`, stands
# for those that retention deleted. `texts` has each final as corrected since, by the id of its row.
_SCHEMA = """
PRAGMA auto_vacuum = FULL;
BEGIN;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    own INTEGER NOT NULL,
    source TEXT NOT NULL,
    at REAL NOT NULL,
    event TEXT NOT NULL,
    type TEXT NOT NULL AS (json_extract(event, '$.type')) STORED,
    session TEXT NOT NULL AS (json_extract(event, '$.session')) STORED,
    seq INTEGER NOT NULL AS (json_extract(event, '$.seq')) STORED,
    about INTEGER AS (json_extract(event, '$.of')) STORED,
    start_s REAL AS (json_extract(event, '$.start')) STORED,
    end_s REAL AS (json_extract(event, '$.end')) STORED,
    UNIQUE (session, seq)
);
CREATE INDEX kinds ON events (type, session, about);
CREATE INDEX ages ON events (at);
CREATE VIEW sessions AS
    SELECT id AS number, session AS id, own, source, event AS ready, at AS started,
        (SELECT at FROM events WHERE type = 'end' AND session = first.session) AS ended,
        (SELECT count(*) FROM events WHERE session = first.session) - 1
            - EXISTS (SELECT 1 FROM events WHERE type = 'end' AND session = first.session) AS n_events,
        coalesce((SELECT end_s FROM events WHERE session = first.session AND end_s IS NOT NULL
            ORDER BY seq DESC LIMIT 1), 0.0) AS end_s
    FROM events AS first WHERE type = 'ready';
CREATE TRIGGER forget AFTER DELETE ON events BEGIN DELETE FROM texts WHERE rowid = old.id; END;
"""
# With vowels and tones that follow their letter (M), such as Thai's: they are part of a word.
_TEXTS = """CREATE VIRTUAL TABLE texts USING fts5
(text, tokenize = "unicode61 remove_diacritics 2 categories 'L* N* Co M*'")"""
_INSERT = "INSERT OR IGNORE INTO events (own, source, at, event) VALUES (?, ?, ?, ?)"
_INSERT_TEXT = "INSERT INTO texts (rowid, text) VALUES (?, ?)"

# Ends all sessions, each when its last event came.
_END_ALL = """
INSERT INTO events (own, source, at, event)
SELECT own, source, at, json_object('type', 'end', 'seq', max(seq) + 1, 'session', session) FROM events
WHERE session IN (SELECT id FROM sessions WHERE ended IS NULL) GROUP BY session
"""
_REVISION = """(SELECT event FROM events AS later
    WHERE type = 'revision' AND session = events.session AND about = events.seq ORDER BY id DESC LIMIT 1)"""
_EVENTS = f"""
SELECT seq, event, CASE WHEN :newest THEN {_REVISION} END AS revision
FROM events WHERE session = :session AND seq > :after AND type <> 'end' ORDER BY seq LIMIT :limit
"""  # noqa: S608
_FINALS = f"""
SELECT id, CAST(coalesce(json_extract(coalesce({_REVISION}, event), '$.text'), '') AS TEXT) AS text
FROM events WHERE type = 'final'
"""  # noqa: S608
_SPEAKERS = "SELECT event FROM events INDEXED BY kinds WHERE type = 'speakers' AND session = ? ORDER BY id"

# The name of a client's stream is a secret while the stream is open: a client that knows it can take the stream over.
_SESSIONS = "SELECT * FROM sessions WHERE (NOT :public OR own OR ended IS NOT NULL) AND "
_HITS = """
SELECT events.id AS number, session, seq, start_s, events.end_s, at, snippet(texts, 0, :begin, :end, '…', 24) AS snippet
FROM texts JOIN events ON events.id = texts.rowid JOIN sessions ON sessions.id = session
WHERE texts MATCH :expression AND texts.rowid < :before AND (NOT :public OR events.own OR ended IS NOT NULL)
ORDER BY texts.rowid DESC LIMIT :limit
"""
# The last event of each session up to a wall-clock time.
_UP_TO = """
SELECT own, source, session, max(seq) AS seq, type, at FROM events INDEXED BY ages
WHERE at <= ? AND type NOT IN ('ready', 'error') GROUP BY session
"""
_DELETE = "DELETE FROM events WHERE session = ?"
_DELETE_UP_TO = _DELETE + " AND seq <= ? AND type <> 'ready'"
_DELETE_AUDIO = "DELETE FROM audio WHERE at <= ?"
_OLDEST_AUDIO = "DELETE FROM audio WHERE id IN (SELECT id FROM audio ORDER BY at LIMIT ?)"
_OLDEST = "SELECT at FROM events WHERE type NOT IN ('ready', 'error') ORDER BY at LIMIT 1 OFFSET ?"
_LOST = "earlier events are no longer in the history: raise server.history_days or server.history_mb to keep more"

_DAY_S = 86_400.0
_LAST_TIME = 32_535_215_999.0 - _DAY_S  # of the year 3000, the last that Windows knows, in any time zone
_MOST = 2**63 - 1  # more than any number that SQLite assigns

# Around each match in a snippet. Texts that can be found have no control characters.
MARKS = ("\x02", "\x03")

# A search: phrases in quotation marks, and words.
_TERM = re.compile(r'"([^"]*)"|([^\s"]+)')

# In `texts` and searches, around each character of scripts without spaces: each is a word, and their words are phrases.
_SEPARATOR = "\x1f"
_NO_SPACE = re.compile(f"(?<=[{WITHOUT_SPACES}])|(?=[{WITHOUT_SPACES}])")


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session that is in the history."""

    number: int  # sessions that began later have higher ones
    id: str
    own: bool  # whether it is of the daemon's own input, not a client's stream
    source: str  # of the audio, in words
    ready: Ready
    started: float
    ended: float | None  # None while it runs
    n_events: int  # after `ready`
    end_s: float  # of the audio that its events are about


@dataclass(frozen=True, slots=True)
class Hit:
    """A final that a search found."""

    number: int  # finals that came later have higher ones
    session: str
    seq: int
    start_s: float
    end_s: float
    at: float  # when it became final
    snippet: str  # the words that were found, between MARKS, and those around them


@dataclass(frozen=True, slots=True)
class _Entry:
    """An event to be written."""

    event: Event
    own: bool  # as the session, see KeptSession
    source: str
    at: float
    publish: Callable[[], None]  # publishes the event if it is not published yet


class History(HistoryFile):
    """A file of sessions, with their finals and gaps. Any thread may call any method.

    After `start` a thread writes the file. An event is published when it is in the file, so that it survives a crash of
    the program. If that takes longer than PUBLISH_TIMEOUT_S, events are published, wait in memory, and are written when
    that works again. If too many wait, later ones are lost: that is counted and logged. Sessions never wait for the
    disk; methods that read or delete do.
    """

    def __init__(self, path: Path) -> None:
        """Name a file; it is not opened yet."""
        super().__init__(path)
        # Attempts to write that failed; events that are lost, since too many waited.
        self.n_failures = self.n_lost = 0
        # Guards the fields below, and notifies the thread of changes.
        self._changed = threading.Condition()
        # Events that are not in the file yet, oldest first.
        self._pending: deque[_Entry] = deque()
        # Whether events are published before they are written: the last attempt failed, or this one takes too long.
        self._late = False
        # Whether events have been lost since the last successful attempt.
        self._losing = False
        # Whether no events are accepted: before `start`, and after `close`.
        self._closed = True
        self._thread: threading.Thread | None = None
        # Held while this process changes the file.
        self._changing = threading.Lock()
        # Keeps sessions' audio, too; None if that is not wanted.
        self.audio: AudioKeeper | None = None

    def start(self, *, days: float = 0.0, megabytes: float = 500.0, audio: bool = False) -> Self:
        """Begin to write the file, which is created if it is missing.

        days : events and audio that are older are deleted; 0: none for their age
        megabytes : size beyond which the oldest are deleted, audio first
        audio : whether audio can be kept, too

        Raises ConfigError if the file cannot be opened, is not a history, or another daemon writes it.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.touch(mode=0o600)
                stack.enter_context(owned(self.path))
                connection = stack.enter_context(contextlib.closing(connect(self.path)))
                _check_schema(connection, self.path, create=True)
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                if mode != "wal":
                    raise sqlite3.OperationalError("its file system keeps no write-ahead log")
                connection.executescript(history_audio.SCHEMA)
                with connection:
                    connection.execute(_END_ALL)  # of a daemon that was killed
            except (OSError, sqlite3.Error) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
                raise ConfigError(
                    f"the history {self.path} cannot be opened ({reason}): expected a history, or a new file, that you"
                    " may write on a local disk; name another in server.history, or leave it empty to keep nothing"
                ) from None
            arguments = (connection, days, megabytes * 1e6, stack.pop_all())
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, args=arguments, name="write history", daemon=True)
        self._thread.start()
        self.audio = AudioKeeper(self, self.change) if audio else None
        return self

    def keeper(self, *, source: str, own: bool = True) -> Keep:
        """Return the function that keeps the events of a session, for `EventLog`; see KeptSession."""

        def keep(event: Event, publish: Callable[[], None]) -> bool:
            if not isinstance(event, _KEPT):
                return False
            if self.audio is not None:
                self.audio.note(event)
            with self._changed:
                if self._closed:
                    return False
                if len(self._pending) >= MAX_PENDING and not isinstance(event, Ready | End):
                    if not self._losing:
                        text = "%d texts wait until the history %s can be written: more are lost"
                        logger.warning(text, MAX_PENDING, self.path)
                    self._losing = True
                    self.n_lost += 1
                    return False
                self._pending.append(_Entry(event, own, source, time.time(), publish))
                self._changed.notify_all()
                return not self._late

        return keep

    def audio_keeper(self, session: str) -> KeepAudio:
        """Return the function that keeps the audio of a session; it does nothing if none is to be kept."""
        return partial(self.audio.take, session) if self.audio is not None else no_audio

    def close(self) -> None:
        """Write all events and audio, end all sessions, and unlock the file. Harmless the second time."""
        if self.audio is not None:
            self.audio.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _write_all(
        self, connection: sqlite3.Connection, days: float, max_bytes: float, opened: contextlib.ExitStack
    ) -> None:
        """Thread: write events until the history is closed, and delete the oldest."""
        tidy_at = time.monotonic()
        closed = False
        with opened:
            while not closed:
                with self._changed:
                    failing = self._late
                    self._changed.wait_for(
                        lambda: self._closed or (self._pending and not self._late),
                        RETRY_S if failing else max(tidy_at - time.monotonic(), 0.0),
                    )
                    batch, closed = list(self._pending), self._closed
                try:
                    with self._publishing_in_time():
                        with connection:
                            for entry in batch:
                                _insert(connection, entry)
                            if closed:
                                connection.execute(_END_ALL)
                        if time.monotonic() >= tidy_at:
                            _prune(connection, time.time() - days * _DAY_S if days else 0.0, max_bytes)
                            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # survives a power cut
                            tidy_at = time.monotonic() + TIDY_S
                except Exception as error:  # noqa: BLE001 - events wait for this thread, which must not end
                    self._note_failure(error, failing=failing, closed=closed)
                else:
                    self._note_success(len(batch), failing=failing)
                    _publish(batch)

    @contextlib.contextmanager
    def _publishing_in_time(self) -> Iterator[None]:
        """Exclude other changes in a block; if it takes longer than PUBLISH_TIMEOUT_S, publish the waiting events."""
        timer = threading.Timer(PUBLISH_TIMEOUT_S, self._publish_early)
        timer.start()
        try:
            with self._changing:
                yield
        finally:
            timer.cancel()
            timer.join()

    def _publish_early(self) -> None:
        with self._changed:
            self._late = True
            waiting = list(self._pending)
        _publish(waiting)

    def _note_failure(self, error: Exception, *, failing: bool, closed: bool) -> None:
        self.n_failures += 1
        if not failing:
            text = "the history %s cannot be written (%s): captions go on; %d texts can wait in memory until it can"
            logger.warning(text, self.path, one_line(error), MAX_PENDING)
        self._publish_early()
        if closed:
            self.n_lost += len(self._pending)
            logger.warning("the history %s could not be written: %d texts are missing", self.path, self.n_lost)

    def _note_success(self, n_written: int, *, failing: bool) -> None:
        with self._changed:
            for _ in range(n_written):
                self._pending.popleft()
            losing, self._losing, self._late = self._losing, False, False
            self._changed.notify_all()
        if failing or losing:
            missing = f"; {self.n_lost} texts were too many to wait, and are missing" if losing else ""
            logger.warning("the history %s is written again%s", self.path, missing)

    def check(self) -> None:
        """Raise ConfigError if the file is missing or not a history of this version, HistoryError if it is damaged."""
        if not self.path.is_file():
            raise ConfigError(
                f"there is no history at {self.path}: expected a file that `streamer run --history FILE` has written;"
                " name it with --history, or in server.history"
            )
        with self.opened() as connection:
            _check_schema(connection, self.path)

    def sessions(self, limit: int, *, before: int | None = None, public: bool = False) -> list[KeptSession]:
        """Return sessions, the newest first, of those with a number below `before`.

        public : whether clients' streams that are still open are left out
        """
        where = "number < :before ORDER BY number DESC LIMIT :limit"
        return self._sessions(where, before=before or _MOST, limit=limit, public=public)

    def session(self, id: str, *, public: bool = False) -> KeptSession | None:
        """Return a session; None if it is missing, or is a client's open stream and `public` is set."""
        return next(iter(self._sessions("id = :id", id=id, public=public)), None)

    def named(self, prefix: str) -> list[KeptSession]:
        """Return the newest sessions, two at most, with a prefix; leading dashes, as of flags, do not count.

        Without a prefix, as of a variable that is not set, none is meant.
        """
        where = ":prefix <> '' AND substr(ltrim(id, '-'), 1, length(:prefix)) = :prefix ORDER BY number DESC LIMIT 2"
        return self._sessions(where, prefix=prefix.lstrip("-"))

    def next_own(self, number: int) -> KeptSession | None:
        """Return the daemon's first own session after a number, None if there is none."""
        return next(iter(self._sessions("number > :number AND own ORDER BY number LIMIT 1", number=number)), None)

    def _sessions(self, where: str, *, public: bool = False, **values: object) -> list[KeptSession]:
        with self.opened() as connection:
            rows = connection.execute(_SESSIONS + where, {**values, "public": public}).fetchall()
            return [
                msgspec.convert({**row, "ready": from_json(row["ready"])}, KeptSession, strict=False) for row in rows
            ]

    def transcript(self, session: KeptSession, *, newest: bool = False) -> Iterator[Event]:
        """Yield the events of a session, `ready` first; they are read in pages.

        newest : apply corrections to finals, and leave out the events with the corrections

        Raises HistoryError, also if the session is deleted meanwhile.
        """
        names = SpeakerNames()
        if newest:
            with self.opened() as connection:
                for row in connection.execute(_SPEAKERS, (session.id,)):
                    names.learn(msgspec.json.decode(row["event"], type=Speakers))
        after = 0
        while events := self.events(session.id, after, newest=newest):
            after = events[-1].seq
            for event in events:
                if not (newest and isinstance(event, Revision | Speakers)):
                    yield names.named(event) if isinstance(event, Final) else event
        if self.session(session.id) is None:
            raise HistoryError("the session was deleted while it was read: what has been read of it is not all")

    def events(self, session: str, after: int, *, newest: bool = False) -> list[Event]:
        """Return the events of a session after number `after`, oldest first, PAGE_EVENTS at most, without `end`.

        newest : apply corrections to finals
        """
        found: list[Event] = []
        while not found:
            values = {"session": session, "after": after, "newest": newest, "limit": PAGE_EVENTS}
            with self.opened() as connection:
                rows = connection.execute(_EVENTS, values).fetchall()
                if not rows:
                    break
                after = rows[-1]["seq"]
                for row in rows:
                    with contextlib.suppress(UnknownEventError):  # of a later version
                        event = from_json(row["event"]).stamped(row["seq"], session)
                        if isinstance(event, Final) and row["revision"] is not None:
                            event = revised(event, msgspec.json.decode(row["revision"], type=Revision))
                        found.append(event)
        return found

    def search(self, text: str, limit: int, *, before: int | None = None, public: bool = False) -> list[Hit]:
        """Return finals with all these words and "phrases", the newest first, of those with a number below `before`.

        public : as in `sessions`

        Upper case and accents are ignored. Raises ConfigError if the text has no word.
        """
        terms = (phrase or word for phrase, word in _TERM.findall(printable(text)))
        expression = " ".join(f'"{_indexed(term)}"' for term in terms if any(char.isalnum() for char in term))
        if not expression:
            raise ConfigError(f"{text!r:.60} has no word to search for: expected words, or a phrase in quotation marks")
        values = {"expression": expression, "before": before or _MOST, "limit": limit, "public": public}
        with self.opened() as connection:
            rows = connection.execute(_HITS, {**values, "begin": MARKS[0], "end": MARKS[1]}).fetchall()
            shown = [{**row, "snippet": row["snippet"].replace(_SEPARATOR, "")} for row in rows]
            return [msgspec.convert(row, Hit, strict=False) for row in shown]

    def delete(self, session: KeptSession) -> int:
        """Delete a session and all traces of its text; return the number of finals."""
        return self._delete(lambda file: file.execute(_DELETE, (session.id,)))

    def delete_before(self, at: float) -> int:
        """Delete events before a wall-clock time, and all traces of their text; return the number of finals."""
        return self._delete(lambda file: _prune(file, at))

    def change(self, statement: str, values: dict[str, object] | tuple[object, ...]) -> None:
        """Execute a statement, after the events that wait are written or cannot be. Raises HistoryError."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._late, LOCK_TIMEOUT_S)
        with self._changing, self.opened() as connection, connection:
            connection.execute(statement, values)

    def _delete(self, change: Callable[[sqlite3.Connection], object]) -> int:
        count = "SELECT count(*) FROM texts"
        with self._changing, self.opened() as connection:
            connection.executescript(history_audio.SCHEMA)
            n_before = connection.execute(count).fetchone()[0]
            with connection:
                change(connection)
                connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")  # writes the index without them
            n_deleted = n_before - connection.execute(count).fetchone()[0]
            connection.execute("VACUUM")  # SQLite moves rows between pages, and `secure_delete` misses where they were
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return int(n_deleted)


@contextlib.contextmanager
def open_history(settings: ServerSettings) -> Iterator[History | None]:
    """Write the history that the settings name, for a block; yield None if they name none. Raises ConfigError."""
    audio = settings.history_audio != "none"
    if not settings.history:
        if audio:
            raise ConfigError(
                f"server.history_audio is {settings.history_audio}, and there is no history to keep audio in:"
                " add --history auto, or leave it out"
            )
        yield None
        return
    history = History(history_path(settings.history)).start(
        days=settings.history_days, megabytes=settings.history_mb, audio=audio
    )
    logger.info("finals%s are kept in %s", " and audio" if audio else "", printable(str(history.path)))
    with contextlib.closing(history):
        yield history


def history_path(setting: str) -> Path:
    """Return the path that the setting `server.history` names, which must not be empty."""
    if setting == AUTO:
        return platformdirs.user_data_path("streamer", appauthor=False) / "history.db"
    return Path(setting).expanduser()


def utc(at: float) -> str:
    """Return a wall-clock time as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shown_time(at)))


def shown_time(at: float) -> float:
    """Return a wall-clock time, or the nearest that can be shown."""
    return min(max(at, 0.0), _LAST_TIME)


def _check_schema(connection: sqlite3.Connection, path: Path, *, create: bool = False) -> None:
    """Raise ConfigError if a file is not a history of this version; make an empty file one if `create` is set."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if create and not (version or application or n_tables):
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
        connection.executescript(f"{_SCHEMA}{_TEXTS};{marks}")
    elif application != APPLICATION_ID:
        raise ConfigError(f"{path} is another program's database, not a history: name another file in server.history")
    elif version != VERSION:
        raise ConfigError(
            f"the history {path} has version {version}: this streamer reads and writes version {VERSION};"
            " use the one that wrote it, or name another file in server.history"
        )
    elif create and not connection.execute("SELECT 1 FROM sqlite_master WHERE sql = ?", (_TEXTS,)).fetchall():
        with connection:  # an earlier streamer made the index
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DROP TABLE IF EXISTS texts")
            connection.execute(_TEXTS)
            rows = ((row["id"], _indexed(row["text"])) for row in connection.execute(_FINALS))
            connection.executemany(_INSERT_TEXT, rows)


def _indexed(text: str) -> str:
    """Return text as `texts` has it; only `search` shows it to others."""
    return _NO_SPACE.sub(_SEPARATOR, printable(text))


def _insert(connection: sqlite3.Connection, entry: _Entry) -> None:
    event = entry.event
    try:
        text = event.to_json()
    except Exception:  # other events must be written
        logger.exception("a %s event could not be kept", event.type)
        return
    cursor = connection.execute(_INSERT, (entry.own, entry.source, entry.at, text))
    if isinstance(event, Final) and cursor.rowcount == 1:
        connection.execute(_INSERT_TEXT, (cursor.lastrowid, _indexed(event.text)))
    elif isinstance(event, Revision):  # a search finds what is shown
        connection.execute(
            "UPDATE texts SET text = ? WHERE rowid = (SELECT id FROM events WHERE session = ? AND seq = ?)",
            (_indexed(event.text), event.session, event.of),
        )


def _publish(entries: list[_Entry]) -> None:
    for entry in entries:
        try:
            entry.publish()
        except Exception:
            logger.exception("a %s event could not be published", entry.event.type)


def _prune(connection: sqlite3.Connection, before: float, max_bytes: float = math.inf) -> None:
    """Delete events and audio up to a wall-clock time and then, while the file is too large, the oldest audio, events.

    max_bytes : size beyond which the file is too large
    """

    def too_large() -> bool:
        size = "SELECT page_size * page_count FROM pragma_page_size, pragma_page_count"
        return bool(connection.execute(size).fetchone()[0] > max_bytes)

    with connection:
        connection.execute(_DELETE_AUDIO, (before,))
    while too_large():
        with connection:
            if not connection.execute(_OLDEST_AUDIO, (PRUNE_PIECES,)).rowcount:
                break
    while True:
        until = before
        if over := too_large():
            row = connection.execute(_OLDEST, (PRUNE_EVENTS - 1,)).fetchone()
            until = max(before, row["at"] if row else math.inf)
        n_deleted = 0
        with connection:
            for row in connection.execute(_UP_TO, (until,)).fetchall():
                if row["type"] == "end":
                    n_deleted += connection.execute(_DELETE, (row["session"],)).rowcount
                    continue
                n_deleted += connection.execute(_DELETE_UP_TO, (row["session"], row["seq"])).rowcount
                lost = Error(code="history_lost", message=_LOST, fatal=False).stamped(row["seq"], row["session"])
                connection.execute(_INSERT, (row["own"], row["source"], row["at"], lost.to_json()))
        if not (over and n_deleted):
            return
