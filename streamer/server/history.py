"""A transcript that survives: what is final goes into a file before it is published."""

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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
from streamer.stream.eventlog import Keep

logger = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 0.5  # for a lock that another program holds; then an attempt to write has failed
PUBLISH_TIMEOUT_S = 0.1  # for an event to be stored before it is published; then it is published all the same
RETRY_S = 2.0  # from one attempt to write to the next, while writing fails
TIDY_S = 60.0  # from one look for what is too old, or too much, to the next
STEP_PAUSE_S = 0.02  # between two steps of deleting, for those who write
MAX_PENDING = 2000  # events that wait in memory while the file cannot be written
MAX_BATCH = 500  # events stored in one transaction

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

    # Wall-clock time at which it was given.
    at: float

    # Has the event published, if it is not yet. Harmless the second time.
    publish: Callable[[], None]


class History:
    """Writes a history; one for each file at a time. Any thread may call any method, and none waits for the disk.

    An event is published when it is in the file, so that it survives the end of the program, however that ends. If that
    takes longer than PUBLISH_TIMEOUT_S, captions go on: events are published, wait in memory, and are written
    when that works again. What is too much to wait is given up, counted, and reported in the log.
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
        # Attempts to write that failed; events that are not in the file and never will be.
        self.n_failures = self.n_lost = 0
        self._lock_held, self._connection = _opened(path)
        # Guards the fields below, up to `_failing`, and notifies of changes. Held for a look at them.
        self._changed = threading.Condition()
        # Events that are not being written yet, oldest first.
        self._pending: deque[_Entry] = deque()
        # Events that were given up and may have to be published still.
        self._given_up: list[_Entry] = []
        # Whether events are published before they are written: writing fails, or takes too long.
        self._late = False
        # Whether the last attempt to write failed; and what was lost before the last that worked.
        self._failing = False
        self._n_lost_before = 0
        # Whether deleting what is too old has failed, and that was told.
        self._tidy_failing = False
        # Set when nothing is taken any more.
        self._closed = threading.Event()
        # What writes; what waits for it, and publishes; and what deletes what is too old.
        self._writer = ThreadPoolExecutor(1, "write history")
        self._threads = [
            threading.Thread(target=self._keep_all, name="history", daemon=True),
            threading.Thread(target=self._look_after, name="tidy history", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def keeper(self, *, source: str, own: bool = True) -> Keep:
        """Return what keeps the events of a session, for `EventLog`.

        source : what is heard, in words
        own : whether it is the daemon's own input, not a client's stream
        """

        def keep(event: Event, publish: Callable[[], None]) -> bool:
            if isinstance(event, _PASSING) and not isinstance(event, Ready | End):
                return False
            return self._append(_Entry(event, own, source, time.time(), publish))

        return keep

    def close(self) -> None:
        """Write what waits, note that all sessions are over, and leave the file to others. Harmless the second time."""
        if self._closed.is_set():
            return
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._writer.shutdown()
        with contextlib.suppress(sqlite3.Error), transaction(self._connection):
            end_all(self._connection)
        self._connection.close()
        self._lock_held.close()

    def _append(self, entry: _Entry) -> bool:
        """Have an event written; return whether it is published when that is done, and not at once."""
        with self._changed:
            if self._closed.is_set():
                return False
            self._pending.append(entry)
            self._give_up_oldest()
            self._changed.notify_all()
            return not self._late

    def _give_up_oldest(self) -> None:
        """Keep what waits short; sessions' beginnings stay, as their texts are nowhere without them."""
        while len(self._pending) > MAX_PENDING:
            i = next((i for i, entry in enumerate(self._pending) if not isinstance(entry.event, Ready)), 0)
            self._given_up.append(self._pending[i])
            del self._pending[i]
            self.n_lost += 1
            if self.n_lost == self._n_lost_before + 1:
                logger.warning(
                    "more than %d texts wait until the history %s can be written: the oldest are given up",
                    MAX_PENDING,
                    self.file.path,
                )

    def _keep_all(self) -> None:
        """Thread: have what waits written, and published when it is."""
        while True:
            with self._changed:
                if self._failing:
                    self._changed.wait_for(self._closed.is_set, RETRY_S)
                self._changed.wait_for(lambda: self._pending or self._closed.is_set())
                batch = [self._pending.popleft() for _ in range(min(len(self._pending), MAX_BATCH))]
                last = self._closed.is_set() and self._failing
            if not batch:
                return
            writing = self._writer.submit(self._write, batch)
            if not wait((writing,), PUBLISH_TIMEOUT_S).done:
                self._publish_early(batch)
            error = writing.exception()
            if isinstance(error, sqlite3.Error):
                self._note_failure(error, batch)
            else:
                self._note_success()
            self._publish(batch)
            if error is not None and last:
                self._give_up_all()
                return

    def _write(self, batch: Sequence[_Entry]) -> None:
        """Write events; what cannot be written as JSON must not stand in the way of the others."""
        with transaction(self._connection):
            for entry in batch:
                try:
                    _write(self._connection, entry)
                except sqlite3.Error:
                    raise
                except Exception:
                    logger.exception("a %s event could not be kept", entry.event.type)

    def _note_failure(self, error: sqlite3.Error, batch: Sequence[_Entry]) -> None:
        """Put what could not be written back, and say so if that is news."""
        with self._changed:
            self.n_failures += 1
            begins, self._failing = not self._failing, True
            if begins:
                logger.warning(
                    "the history %s cannot be written (%s): captions go on; what is said is kept in memory, the newest"
                    " %d texts of it, until the file can be written",
                    self.file.path,
                    one_line(error),
                    MAX_PENDING,
                )
            self._pending.extendleft(reversed(batch))
            self._give_up_oldest()
        self._publish_early()

    def _note_success(self) -> None:
        with self._changed:
            ends, self._failing, self._late = self._failing, False, False
            n_lost, self._n_lost_before = self.n_lost - self._n_lost_before, self.n_lost
        if ends or n_lost:
            lost = f"; {n_lost} texts were too many to wait, and are missing" if n_lost else ""
            logger.warning("the history %s is written again%s", self.file.path, lost)

    def _publish_early(self, batch: Sequence[_Entry] = ()) -> None:
        """Publish everything that waits, and from now on what comes, before it is written."""
        with self._changed:
            self._late = True
            waiting = [*batch, *self._pending]
        self._publish(waiting)

    def _publish(self, entries: Sequence[_Entry]) -> None:
        with self._changed:
            given_up, self._given_up = self._given_up, []
        for entry in (*given_up, *entries):
            try:
                entry.publish()
            except Exception:
                logger.exception("a %s event could not be published", entry.event.type)

    def _give_up_all(self) -> None:
        """The program ends, and the file still cannot be written."""
        with self._changed:
            n_lost = len(self._pending) + self.n_lost - self._n_lost_before
            self.n_lost += len(self._pending)
        logger.warning("the history %s could not be written: %d texts are missing", self.file.path, n_lost)

    def _look_after(self) -> None:
        """Thread: delete what is too old or too much."""
        while True:
            if not self._failing:
                self._tidy()
            if self._closed.wait(TIDY_S):
                return

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
