"""The file of a history: SQLite, which any program may read beside the daemon that writes it.

Positions are seconds of a session's audio; wall-clock times are seconds since 1970, UTC. Whatever SQLite says against
the file is raised as HistoryError.
"""

import contextlib
import dataclasses
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

from streamer.errors import ConfigError, HistoryError, ProtocolError, UnknownEventError
from streamer.events import Event, Final, Gap, Ready, Revision, Speakers, from_json
from streamer.outside import one_line, printable
from streamer.sinks.subtitles.revised import SpeakerNames, revised

AUTO = "auto"  # the setting that puts the file into the user's data directory

APPLICATION_ID = 0x53545248  # "STRH", by which a history is told from other programs' databases
VERSION = 1

DAY_S = 86_400.0
READ_TIMEOUT_S = 5.0  # for a lock that another program holds
PAGE_EVENTS = 200  # read at a time: half a megabyte
STEP_EVENTS = 100  # deleted at a time: some milliseconds, in which nobody else writes
CHECKPOINT_PAGES = 10_000  # of the log of changes: then a writer moves them itself, should `checkpoint` be late
LOG_BYTES = 4_000_000  # to which the log of changes is cut when it begins anew
KEEP_NEWEST = 1000  # events of a running session that retention never deletes

_SESSION = """
SELECT n, id, own, source, model, language, ready, started, ended, dropped_seq, dropped_s,
    (SELECT count(*) FROM events WHERE session = n),
    coalesce((SELECT end_s FROM events WHERE session = n AND end_s IS NOT NULL ORDER BY seq DESC LIMIT 1), 0)
FROM sessions
"""
_HITS = """
SELECT events.id, sessions.id, seq, start_s, end_s, at, snippet(texts, 0, ?, ?, '…', 24)
FROM texts JOIN events ON events.id = texts.rowid JOIN sessions ON n = session
WHERE texts MATCH ? AND texts.rowid < ?
"""
# The name of a client's stream is a secret while the stream is open: who knows it can take the stream over.
_AND_PUBLIC = " AND (NOT ? OR own OR ended IS NOT NULL) "

# What may be deleted, the oldest first: of a session that runs, nothing of its newest `kept` events.
_OLDEST = """
SELECT events.id, seq, coalesce(end_s, 0), session FROM events JOIN sessions ON n = session
WHERE (at < :before OR :too_large) AND (ended IS NOT NULL OR :kept = 0 OR seq <
    coalesce((SELECT seq FROM events AS newest WHERE session = n ORDER BY seq DESC LIMIT 1 OFFSET :kept - 1), 0))
ORDER BY at LIMIT :most
"""

# What changes finals, by the beginning of its JSON.
_CHANGES = """
SELECT seq, event FROM events
WHERE session = ? AND (event GLOB '{"type":"revision",*' OR event GLOB '{"type":"speakers",*')
"""

# Sessions of which nothing is left.
_EMPTY = "SELECT n FROM sessions WHERE ended < ? AND NOT EXISTS (SELECT 1 FROM events WHERE session = n)"

_LAST_TIME = 32_535_215_999.0 - DAY_S  # of the year 3000, the last that Windows knows, in whatever zone
_MOST = 2**63 - 1  # more than any number that SQLite gives

# What is searched for: phrases in quotation marks, and words.
_TERM = re.compile(r'"([^"]*)"|([^\s"]+)')


T = TypeVar("T", "KeptSession", "Hit")


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session that is in the history."""

    # Its place among all of them: sessions that began later have higher numbers.
    number: int

    # Its name.
    id: str

    # Whether it is of the daemon's own input, not a client's stream.
    own: bool

    # What was heard, in words.
    source: str
    model: str

    # Language code, or `auto` where it was not known at the start.
    language: str

    # The event that it began with.
    ready: Ready

    # Wall-clock times; `ended` is None while it runs.
    started: float
    ended: float | None

    # Number of the newest event that was deleted (0: none), and up to which second the deleted ones told.
    dropped_seq: int
    dropped_s: float

    # How many events there are, and up to which second of the session's audio they tell.
    n_events: int
    end_s: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A final in which something was found."""

    # Its place among all events: later ones have higher numbers.
    number: int

    # Name of its session, its number in that, and its place in the session's audio.
    session: str
    seq: int
    start_s: float
    end_s: float

    # Wall-clock time at which it became final.
    at: float

    # The words around what was found, which is marked.
    snippet: str


def history_path(setting: str) -> Path:
    """Return the path that the setting `server.history` names, which must not be empty."""
    if setting == AUTO:
        return platformdirs.user_data_path("streamer", appauthor=False) / "history.db"
    return Path(setting).expanduser()


class HistoryFile:
    """A file of sessions and their finals and gaps, open only while something is read or deleted.

    Any thread may call any method. What takes long is an iterator: it does one small step at a time, so that others can
    write in between.
    """

    def __init__(self, path: Path) -> None:
        """Name a file; nothing is opened yet."""
        self.path = path

    def check(self) -> None:
        """Raise ConfigError where there is no such file, or it is no history that this version can read."""
        if not self.path.is_file():
            raise ConfigError(
                f"there is no history at {self.path}: expected a file that `streamer run --history FILE` has written;"
                " name it with --history, or in server.history"
            )
        try:
            with contextlib.closing(connect(self.path, READ_TIMEOUT_S)) as connection:
                check_schema(connection, self.path)
        except sqlite3.Error as error:
            raise unusable(self.path, error) from None

    @property
    def in_use(self) -> bool:
        """Whether a daemon writes the file now. Nothing is made beside it: whoever asks may only want to read."""
        if not _lock_path(self.path).exists():
            return False
        try:
            lock(self.path).close()
        except (OSError, sqlite3.Error):
            return True  # or nobody knows: this user may not ask
        return False

    def sessions(self, limit: int, *, before: int | None = None, public: bool = False) -> list[KeptSession]:
        """Return sessions, the newest first, of those with a number below `before`.

        public : whether clients' streams that are still open are left out
        """
        where = "WHERE n < ?" + _AND_PUBLIC + "ORDER BY n DESC LIMIT ?"
        with self._connected() as connection:
            rows = connection.execute(_SESSION + where, (before or _MOST, public, limit))
            return [_kept(row) for row in rows]

    def session(self, id: str, *, public: bool = False) -> KeptSession | None:
        """Return a session; None where it is not there, or is a client's open stream and `public` is set."""
        with self._connected() as connection:
            row = connection.execute(_SESSION + "WHERE id = ?" + _AND_PUBLIC, (id, public)).fetchone()
        return _kept(row) if row else None

    def named(self, prefix: str) -> list[KeptSession]:
        """Return the newest sessions, two at most, whose names begin so; dashes that names begin with may be left out.

        They are left out where names are shown, as they would be taken for flags.
        """
        where = "WHERE substr(id, 1, ?) = ? OR substr(ltrim(id, '-'), 1, ?) = ? ORDER BY n DESC LIMIT 2"
        with self._connected() as connection:
            rows = connection.execute(_SESSION + where, (len(prefix), prefix, len(prefix), prefix))
            return [_kept(row) for row in rows]

    def next_own(self, number: int) -> KeptSession | None:
        """Return the daemon's first own session behind a number, None where there is none."""
        with self._connected() as connection:
            row = connection.execute(_SESSION + "WHERE n > ? AND own ORDER BY n LIMIT 1", (number,)).fetchone()
        return _kept(row) if row else None

    def dropped(self, number: int) -> tuple[int, float]:
        """Return `dropped_seq` and `dropped_s` of session `number` as they are now."""
        with self._connected() as connection:
            row = connection.execute("SELECT dropped_seq, dropped_s FROM sessions WHERE n = ?", (number,)).fetchone()
        return row or (0, 0.0)

    def events(self, number: int, after: int) -> list[Event]:
        """Return the events of session `number` behind number `after`, oldest first, PAGE_EVENTS at most."""
        found: list[Event] = []
        while not found:
            with self._connected() as connection:
                rows = connection.execute(
                    "SELECT seq, event FROM events WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
                    (number, after, PAGE_EVENTS),
                ).fetchall()
            if not rows:
                break
            after = rows[-1][0]
            for seq, event in rows:
                with contextlib.suppress(UnknownEventError):  # of a later version
                    found.append(self._event(event, seq))
        return found

    def transcript(self, session: KeptSession) -> Iterator[list[Event]]:
        """Yield the events of a session, `ready` first, some at a time."""
        yield [session.ready]
        after = 0
        while events := self.events(session.number, after):
            yield events
            after = events[-1].seq

    def newest(self, session: KeptSession) -> Iterator[list[Event]]:
        """Yield the same as `transcript`, but each final as it reads by now, and no event that has changed one."""
        names = SpeakerNames()
        # Number of the newest revision of each final.
        numbers: dict[int, int] = {}
        with self._connected() as connection:
            for seq, text in connection.execute(f"{_CHANGES} ORDER BY seq", (session.number,)):
                match self._event(text, seq):
                    case Revision(of=of):
                        numbers[of] = seq
                    case Speakers() as speakers:
                        names.learn(speakers)
        for events in self.transcript(session):
            revisions = self._revisions(session, [numbers[event.seq] for event in events if event.seq in numbers])
            yield [
                names.named(revised(event, revisions.get(event.seq))) if isinstance(event, Final) else event
                for event in events
                if not isinstance(event, Revision | Speakers)
            ]

    def _revisions(self, session: KeptSession, numbers: Sequence[int]) -> dict[int, Revision]:
        """Return revisions of a session by the numbers of their finals."""
        if not numbers:
            return {}
        where = f"AND seq IN ({','.join(map(str, numbers))})"
        with self._connected() as connection:
            rows = connection.execute(_CHANGES + where, (session.number,)).fetchall()
        events = (self._event(text, seq) for seq, text in rows)
        return {event.of: event for event in events if isinstance(event, Revision)}

    def search(
        self,
        text: str,
        limit: int,
        *,
        before: int | None = None,
        public: bool = False,
        marks: tuple[str, str] = ("[", "]"),
    ) -> list[Hit]:
        """Return finals with all these words and "phrases", the newest first, of those with a number below `before`.

        public : as in `sessions`
        marks : what stands before and behind what was found, in the snippets

        Upper case and accents do not count. Raises ConfigError where the text has no word.
        """
        expression = _expression(text)
        if not expression:
            raise ConfigError(f"{text!r:.60} has no word to search for: expected words, or a phrase in quotation marks")
        with self._connected() as connection:
            rows = connection.execute(
                _HITS + _AND_PUBLIC + "ORDER BY texts.rowid DESC LIMIT ?",
                (*marks, expression, before or _MOST, public, limit),
            ).fetchall()
        return [_typed(row, Hit) for row in rows]

    def delete(self, session: KeptSession) -> Iterator[int]:
        """Delete a session and all traces of its text; yield after each step how many events that deleted."""
        with self._connected() as connection:
            while True:
                with transaction(connection):
                    rows = connection.execute(
                        "SELECT id FROM events WHERE session = ? LIMIT ?", (session.number, STEP_EVENTS)
                    ).fetchall()
                    _delete_events(connection, [row[0] for row in rows])
                    if not rows:
                        connection.execute("DELETE FROM sessions WHERE n = ?", (session.number,))
                        break
                yield len(rows)
        self.scrub()

    def prune(self, *, before: float, max_bytes: float, keep_newest: int = KEEP_NEWEST) -> Iterator[int]:
        """Delete what was told before a wall-clock time, and as much more of the oldest as the file is too large.

        The newest events of a session that runs are kept. Yields after each step how many events that deleted.
        """
        with self._connected() as connection:
            n_deleted = 1
            while n_deleted and _is_due(connection, before, max_bytes):  # seen without keeping writers out
                with transaction(connection):
                    n_deleted = _prune_step(connection, before, max_bytes, keep_newest)
                    empty = connection.execute(_EMPTY, (before,)).fetchall()
                    connection.executemany("DELETE FROM sessions WHERE n = ?", empty)
                yield n_deleted

    def scrub(self) -> None:
        """Remove deleted words from the search index, the log of changes, and pages that also hold what stays."""
        with self._connected() as connection:
            connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")  # writes the index without them
            connection.execute("VACUUM")  # SQLite moves rows between pages, and `secure_delete` misses where they were
        self.checkpoint()
        self.checkpoint("TRUNCATE")

    def checkpoint(self, mode: str = "PASSIVE") -> None:
        """Move what was written from the log of changes into the file; PASSIVE makes no writer wait for the disk."""
        with self._connected() as connection:
            connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _event(self, text: str, seq: int) -> Event:
        """Read an event; raise HistoryError where it is none, or its number is not that of its row."""
        try:
            event = from_json(text)
        except UnknownEventError:
            raise
        except ProtocolError as error:
            raise HistoryError(f"the history {self.path} holds what is no event: {error}") from None
        if event.seq != seq:
            raise HistoryError(f"the history {self.path} is damaged: event {seq} says that it is number {event.seq}")
        return event

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(connect(self.path, READ_TIMEOUT_S)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise HistoryError(
                f"the history {self.path} cannot be used ({one_line(error)}): is it damaged, or the disk full?"
            ) from None


def connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    """Open a file that is there. Each statement is a transaction of its own, but within `transaction`."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )
    # NORMAL: what was written survives the end of the program, however it ends; a power cut may cost a minute.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")  # deleted text is overwritten
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make what is done one change, which nobody sees a part of."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def lock(path: Path) -> sqlite3.Connection:
    """Take the place of the one daemon that writes a history; it is free when the connection, or the process, ends.

    Raises sqlite3.Error where another has it. The lock is that of an empty database beside the file: SQLite knows how
    to lock files on all systems.
    """
    beside = _lock_path(path)
    create_private(beside)
    connection = sqlite3.connect(beside, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = OFF")  # nothing is ever written
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-lock")


def create_private(path: Path) -> None:
    """Make sure that a file is there, readable by its user only where it was not there. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.touch(mode=0o600, exist_ok=False)


def check_schema(connection: sqlite3.Connection, path: Path, *, create: bool = False) -> None:
    """Raise ConfigError where a file is no history of a version that we know; make one of an empty file if asked to."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if create and not (version or application or n_tables):
        connection.execute("PRAGMA auto_vacuum = FULL")  # before all else, or it holds for no table
        with transaction(connection):
            for statement in Path(__file__).with_name("history.sql").read_text(encoding="utf-8").split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        return
    if application != APPLICATION_ID:
        raise ConfigError(f"{path} is another program's database, not a history: name another file in server.history")
    if version > VERSION:
        raise ConfigError(
            f"the history {path} has version {version}: this streamer knows versions up to {VERSION};"
            " use the newer one that wrote it, or name another file in server.history"
        )


def unusable(path: Path, error: Exception) -> ConfigError:
    """Return what says that a file cannot be used as a history."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
    return ConfigError(
        f"the history {path} cannot be opened ({reason}): expected a history, or a new file, that you may write on a"
        " local disk; name another in server.history, or leave it empty to keep nothing"
    )


def insert_session(connection: sqlite3.Connection, ready: Ready, *, own: bool, source: str, started: float) -> None:
    """Enter a session."""
    connection.execute(
        "INSERT OR IGNORE INTO sessions (id, own, source, model, language, ready, started)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (ready.session, own, source, ready.model, ready.language, ready.to_json(), started),
    )


def insert_event(connection: sqlite3.Connection, event: Event, at: float) -> None:
    """Enter an event of a session that is there; one that is there already stays as it is."""
    cursor = connection.execute(
        "INSERT OR IGNORE INTO events (session, seq, at, start_s, end_s, event)"
        " SELECT n, ?, ?, ?, ?, ? FROM sessions WHERE id = ?",
        (event.seq, at, *_span(event), event.to_json(), event.session),
    )
    if isinstance(event, Final) and event.text.strip() and cursor.rowcount == 1:
        connection.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (cursor.lastrowid, printable(event.text)))
    elif isinstance(event, Revision):  # who searches finds what is shown
        connection.execute(
            "INSERT OR REPLACE INTO texts (rowid, text)"
            " SELECT events.id, ? FROM events JOIN sessions ON n = session WHERE sessions.id = ? AND seq = ?",
            (printable(event.text), event.session, event.of),
        )


def end_session(connection: sqlite3.Connection, id: str, at: float) -> None:
    """Note that a session is over."""
    connection.execute("UPDATE sessions SET ended = ? WHERE id = ? AND ended IS NULL", (at, id))


def end_all(connection: sqlite3.Connection) -> None:
    """Note that all sessions are over, each when it said the last."""
    connection.execute(
        "UPDATE sessions SET ended = coalesce((SELECT max(at) FROM events WHERE session = n), started)"
        " WHERE ended IS NULL"
    )


def utc(at: float) -> str:
    """Return a wall-clock time as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shown_time(at)))


def shown_time(at: float) -> float:
    """Return a wall-clock time, or the nearest that can be shown."""
    return min(max(at, 0.0), _LAST_TIME)


def _kept(row: Sequence[Any]) -> KeptSession:
    return _typed(row, KeptSession, own=bool, ready=msgspec.json.decode)


def _typed(row: Sequence[Any], kind: type[T], **decoders: Callable[[Any], Any]) -> T:
    """Return a row as an object, some columns of it decoded.

    Raises HistoryError where it has what no daemon has written: the file may come from anybody.
    """
    try:
        values = {field.name: value for field, value in zip(dataclasses.fields(kind), row, strict=True)}
        values |= {name: decode(values[name]) for name, decode in decoders.items()}
        return msgspec.convert(values, kind)
    except (msgspec.DecodeError, TypeError) as error:
        raise HistoryError(f"the history has a row that no daemon has written: {one_line(error)}") from None


def _span(event: Event) -> tuple[float | None, float | None]:
    if isinstance(event, Final | Gap):
        return event.start, event.end
    return getattr(event, "start", None), getattr(event, "end", None)


def _expression(text: str) -> str:
    """Return what FTS5 understands as all these words and phrases, whatever characters they have."""
    terms = (phrase or word for phrase, word in _TERM.findall(printable(text)))
    return " ".join(f'"{term}"' for term in terms if any(char.isalnum() for char in term))


def _is_due(connection: sqlite3.Connection, before: float, max_bytes: float) -> bool:
    """Return whether anything was told before a wall-clock time, or the file is too large."""
    oldest = connection.execute("SELECT min(at) < ? FROM events", (before,)).fetchone()
    return (
        bool(oldest[0])
        or _is_larger(connection, max_bytes)
        or connection.execute(_EMPTY, (before,)).fetchone() is not None
    )


def _is_larger(connection: sqlite3.Connection, max_bytes: float) -> bool:
    page_bytes, n_pages, n_free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return bool(page_bytes * (n_pages - n_free) > max_bytes)


def _prune_step(connection: sqlite3.Connection, before: float, max_bytes: float, keep_newest: int) -> int:
    """Delete the oldest events that may go, STEP_EVENTS at most, and return how many there were."""
    too_large = _is_larger(connection, max_bytes)
    oldest = connection.execute(
        _OLDEST, {"before": before, "too_large": too_large, "kept": keep_newest, "most": STEP_EVENTS}
    ).fetchall()
    connection.executemany(
        "UPDATE sessions SET dropped_seq = max(dropped_seq, ?), dropped_s = max(dropped_s, ?) WHERE n = ?",
        [row[1:] for row in oldest],
    )
    _delete_events(connection, [row[0] for row in oldest])
    return len(oldest)


def _delete_events(connection: sqlite3.Connection, ids: list[int]) -> None:
    rows = [(id,) for id in ids]
    connection.executemany("DELETE FROM texts WHERE rowid = ?", rows)
    connection.executemany("DELETE FROM events WHERE id = ?", rows)
