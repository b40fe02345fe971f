"""A transcript that survives: what is final goes into a file before anybody is told."""

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streamer.errors import ConfigError, HistoryError
from streamer.events import End, Error, Event, Flushed, Partial, Ready, Resumed, Speech
from streamer.outside import one_line, printable
from streamer.server.history_file import (
    DAY_S,
    READ_TIMEOUT_S,
    HistoryFile,
    check_schema,
    connect,
    create_private,
    end_all,
    end_session,
    history_path,
    insert_event,
    insert_session,
    lock,
    transaction,
    unusable,
)
from streamer.settings.table import ServerSettings

logger = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 0.5  # for a lock that another program holds: what is said waits so long, once
RETRY_S = 2.0  # from one attempt to write to the next, while writing fails
TIDY_S = 60.0  # from one look for what is too old, or too much, to the next
STEP_PAUSE_S = 0.02  # between two steps of deleting, for those who write
MAX_PENDING = 2000  # events that wait in memory while the file cannot be written

MEGABYTE = 1_000_000.0

# What is not kept: it is outdated by what follows, or tells of a moment. Everything else is, also events to come.
_PASSING = (Ready, Resumed, Speech, Flushed, Partial, Error, End)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An event on its way to the file."""

    event: Event

    # Of its session.
    own: bool
    source: str

    # Wall-clock time at which it was told.
    at: float


class History:
    """Writes a history; one for each file at a time. Any thread may call any method.

    An event is in the file when its keeper returns, so that it survives the end of the program, however that ends.
    Where the file cannot be written, captions go on: events wait in memory, and are written when they can be.
    """

    def __init__(self, path: Path, *, days: float = 0.0, megabytes: float = 500.0) -> None:
        """Open a history, or begin one.

        days : what was told longer ago is deleted; 0: nothing for its age
        megabytes : size beyond which the oldest is deleted

        Raises ConfigError where the file cannot be opened, is no history, or another daemon writes it.
        """
        self.file = HistoryFile(path)
        self._days = days
        self._megabytes = megabytes
        # Attempts to write that failed.
        self.n_failures = 0
        self._lock_held, self._connection = _opened(path)
        # Held while something is written.
        self._lock = threading.Lock()
        # Events that could not be written yet, oldest first.
        self._pending: deque[_Entry] = deque()
        # How many of them were given up since writing fails.
        self._n_lost = 0
        # Whether the last attempt to write failed.
        self._failing = False
        # Whether deleting what is too old has failed, and that was told.
        self._tidy_failing = False
        # Set when nothing is written any more.
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="history", daemon=True)
        self._thread.start()

    def keeper(self, *, source: str, own: bool = True) -> Callable[[Event], None]:
        """Return what keeps the events of a session, for `EventLog`.

        source : what is heard, in words
        own : whether it is the daemon's own input, not a client's stream
        """

        def keep(event: Event) -> None:
            if isinstance(event, Ready | End) or not isinstance(event, _PASSING):
                self._append(_Entry(event, own, source, time.time()))

        return keep

    def close(self) -> None:
        """Write what waits, note that all sessions are over, and leave the file to others. Harmless the second time."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        with self._lock:
            if self._pending:
                self._write_pending()
            with contextlib.suppress(sqlite3.Error), transaction(self._connection):
                end_all(self._connection)
            self._connection.close()
            self._lock_held.close()

    def _append(self, entry: _Entry) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._pending.append(entry)
            if self._failing:  # the thread tries again: whoever speaks does not wait for it
                self._give_up_oldest()
            else:
                self._write_pending()

    def _write_pending(self) -> None:
        """Write what waits, and say where that begins to fail, or works again."""
        try:
            with transaction(self._connection):
                for entry in self._pending:
                    _write(self._connection, entry)
        except sqlite3.Error as error:
            self.n_failures += 1
            if not self._failing:
                logger.warning(
                    "the history %s cannot be written (%s): captions go on; what is said is kept in memory, the newest"
                    " %d texts of it, until the file can be written",
                    self.file.path,
                    one_line(error),
                    MAX_PENDING,
                )
            self._set_failing(True)
            return
        except Exception:
            self._pending.clear()  # what nobody can write would stand in the way of all that follows
            raise
        self._pending.clear()
        if self._failing:
            lost = f"; {self._n_lost} texts were too many to wait, and are missing" if self._n_lost else ""
            logger.warning("the history %s is written again%s", self.file.path, lost)
            self._n_lost = 0
            self._set_failing(False)

    def _set_failing(self, failing: bool) -> None:
        self._failing = failing
        # Attempts while it fails wait for nobody.
        self._connection.execute(f"PRAGMA busy_timeout = {0 if failing else round(WRITE_TIMEOUT_S * 1000)}")

    def _give_up_oldest(self) -> None:
        """Keep what waits short; sessions' beginnings stay, as their texts are nowhere without them."""
        if len(self._pending) > MAX_PENDING:
            for i, entry in enumerate(self._pending):
                if not isinstance(entry.event, Ready):
                    del self._pending[i]
                    self._n_lost += 1
                    return

    def _look_after(self) -> None:
        """Thread: delete what is too old or too much, and try again where writing fails."""
        tidy_at = time.monotonic()
        while True:
            if time.monotonic() >= tidy_at and not self._failing:
                self._tidy()
                tidy_at = time.monotonic() + TIDY_S
            if self._closed.wait(RETRY_S):
                return
            with self._lock:
                if self._failing:
                    self._write_pending()

    def _tidy(self) -> None:
        before = time.time() - self._days * DAY_S if self._days else 0.0
        try:
            for _ in self.file.prune(before=before, max_bytes=self._megabytes * MEGABYTE):
                if self._closed.wait(STEP_PAUSE_S):
                    return
            self.file.checkpoint()
            self._tidy_failing = False
        except HistoryError as error:
            if not (self._tidy_failing or self._failing):
                logger.warning("%s", error)
            self._tidy_failing = True


@contextlib.contextmanager
def open_history(settings: ServerSettings) -> Iterator[History | None]:
    """Open the history that the settings name for a while; None where they name none. Raises ConfigError."""
    if not settings.history:
        yield None
        return
    path = history_path(settings.history)
    history = History(path, days=settings.history_days, megabytes=settings.history_mb)
    logger.info("finals are kept in %s", printable(str(path)))
    try:
        yield history
    finally:
        history.close()


def _opened(path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Return the lock of a history, and a connection to write it with. Raises ConfigError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ConfigError(f"the history {path} is no file: expected a new one, or one that streamer has written")
        create_private(path)
        with contextlib.ExitStack() as stack:
            try:
                lock_held = stack.enter_context(contextlib.closing(lock(path)))
            except sqlite3.OperationalError as error:
                if "locked" in str(error):
                    raise ConfigError(
                        f"the history {path} is in use by another daemon: name another file in server.history, or stop"
                        " it"
                    ) from None
                raise
            connection = stack.enter_context(contextlib.closing(connect(path, READ_TIMEOUT_S)))
            check_schema(connection, path, create=True)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise sqlite3.OperationalError("its file system keeps no write-ahead log")
            with transaction(connection):
                end_all(connection)  # of a daemon that was killed
            connection.execute(f"PRAGMA busy_timeout = {round(WRITE_TIMEOUT_S * 1000)}")
            stack.pop_all()
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from None
    return lock_held, connection


def _write(connection: sqlite3.Connection, entry: _Entry) -> None:
    match entry.event:
        case Ready() as ready:
            insert_session(connection, ready, own=entry.own, source=entry.source, started=entry.at)
        case End() as end:
            end_session(connection, end.session, entry.at)
        case event:
            insert_event(connection, event, entry.at)
