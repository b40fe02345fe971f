"""The history that a daemon writes: events are in its file before they are published."""

import contextlib
import logging
import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from streamer.engine.journal import Keep, KeepAudio, no_audio
from streamer.errors import ConfigError
from streamer.events import End, Event, Final, Gap, Ready, Revision, Speakers, Translation
from streamer.history import database
from streamer.history.audio import AudioKeeper
from streamer.history.deletion import prune
from streamer.history.reader import HistoryFile, Result
from streamer.outside import one_line, printable
from streamer.settings.table import ServerSettings

logger = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S = 0.1  # for an event to be stored; then it is published before
RETRY_S = 2.0  # between attempts to write while writing fails
TIDY_S = 60.0  # between two deletions of the oldest events
MAX_PENDING = 2000  # events that wait in memory until they are written
DAY_S = 86_400.0

# Events that are kept. The others are replaced by the events that follow, or they describe one moment: they are not
# stored, and wait for no disk.
_KEPT = (Ready, Final, Revision, Speakers, Translation, Gap, End)

_INSERT = "INSERT OR IGNORE INTO events (own, source, at, event) VALUES (?, ?, ?, ?)"
_INSERT_TEXT = "INSERT INTO texts (rowid, text) VALUES (?, ?)"
_CHANGE_TEXT = "UPDATE texts SET text = ? WHERE rowid = (SELECT id FROM events WHERE session = ? AND seq = ?)"


@dataclass(frozen=True, slots=True)
class _Entry:
    """An event to be written."""

    event: Event
    own: bool  # as the session, see KeptSession
    source: str
    at: float
    publish: Callable[[], None]  # publishes the event if it is not published yet


class History(HistoryFile):
    """A file that this process owns from the beginning until `close`. Any thread may call any method.

    One thread changes the file, another waits for it. An event is published when it is in the file, so that it survives
    a crash of the program. If that takes longer than PUBLISH_TIMEOUT_S, events are published, wait in memory, and are
    written when that works again. If too many wait, later ones are lost: that is counted and logged. Sessions never
    wait for the disk; methods that read or change the file do.
    """

    def __init__(self, path: Path, *, days: float = 0.0, megabytes: float = 500.0, audio: bool = False) -> None:
        """Begin to write a file, which is created if it is missing.

        days : events and audio that are older are deleted; 0: none for their age
        megabytes : size beyond which the oldest are deleted, audio first
        audio : whether audio can be kept, too

        Raises ConfigError if the file cannot be opened, is not a history, or another daemon writes it.
        """
        super().__init__(path)
        self._max_age_s, self._max_bytes = days * DAY_S or math.inf, megabytes * 1e6
        # Attempts to write that failed; events that are lost, since too many waited.
        self.n_failures = self.n_lost = 0
        # Guards the fields below, and notifies of changes.
        self._changed = threading.Condition()
        # Events that are not in the file yet, oldest first.
        self._pending: deque[_Entry] = deque()
        # Whether events are published before they are written: the last attempt failed, or this one takes too long.
        self._late = False
        # Whether events have been lost since the last successful attempt.
        self._losing = False
        self._closed = False
        with contextlib.ExitStack() as stack:
            # Used by the thread of the disk alone.
            self._connection = stack.enter_context(database.owned(path))
            self._disk = stack.enter_context(ThreadPoolExecutor(1, "write history"))
            self._opened = stack.pop_all()
        self._thread = threading.Thread(target=self._run, name="publish history", daemon=True)
        self._thread.start()
        # Keeps sessions' audio, too; None if that is not wanted.
        self.audio = AudioKeeper(self) if audio else None

    def keeper(self, *, source: str, own: bool = True) -> Keep:
        """Return the function that keeps the events of a session, for `Journal`; see KeptSession."""
        return partial(self._keep, printable(source), own)

    def audio_keeper(self, session: str) -> KeepAudio:
        """Return the function that keeps the audio of a session; it does nothing if none is to be kept."""
        return partial(self.audio.take, session) if self.audio is not None else no_audio

    def change(self, work: Callable[..., Result], *values: object) -> Result:
        """Change the file, after the events that wait are written or cannot be; not after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._late)
        with database.typed_errors(self.path):
            return self._disk.submit(work, self._connection, *values).result()

    def close(self) -> None:
        """Write all events and audio, end all sessions, and release the file. Harmless the second time."""
        if self.audio is not None:
            self.audio.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._opened.close()

    def _keep(self, source: str, own: bool, event: Event, publish: Callable[[], None]) -> bool:
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

    def _run(self) -> None:
        """Thread: have events written, and publish them when they are, or when that takes too long."""
        tidy_at = time.monotonic()
        closed = False
        while not closed:
            with self._changed:
                failing = self._late
                self._changed.wait_for(
                    lambda: self._closed or (self._pending and not self._late),
                    RETRY_S if failing else max(tidy_at - time.monotonic(), 0.0),
                )
                batch, closed = list(self._pending), self._closed
            writing = self._disk.submit(self._write, batch, closed)
            if not wait([writing], PUBLISH_TIMEOUT_S).done:
                self._publish_early()
            if (error := writing.exception()) is None:
                self._note_success(len(batch), failing=failing)
                _publish(batch)
            else:
                self._note_failure(error, failing=failing, closed=closed)
            if time.monotonic() >= tidy_at:
                self._disk.submit(self._tidy)
                tidy_at = time.monotonic() + TIDY_S

    def _write(self, batch: Sequence[_Entry], closed: bool) -> None:
        """Write events, all or none."""
        with self._connection:
            for entry in batch:
                try:
                    _insert(self._connection, entry)
                except sqlite3.Error:
                    raise
                except Exception:  # other events must be written
                    logger.exception("a %s event could not be kept", entry.event.type)
            if closed:
                self._connection.execute(database.END_ALL)

    def _tidy(self) -> None:
        try:
            prune(self._connection, time.time() - self._max_age_s, self._max_bytes)
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # survives a power cut
        except sqlite3.Error as error:
            self.n_failures += 1
            logger.warning("what is too old in the history %s could not be deleted (%s)", self.path, one_line(error))

    def _publish_early(self) -> None:
        with self._changed:
            self._late = True
            self._changed.notify_all()
            waiting = list(self._pending)
        _publish(waiting)

    def _note_failure(self, error: BaseException, *, failing: bool, closed: bool) -> None:
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
    path = database.history_path(settings.history)
    days, megabytes = settings.history_days, settings.history_mb
    with contextlib.closing(History(path, days=days, megabytes=megabytes, audio=audio)) as history:
        logger.info("finals%s are kept in %s", " and audio" if audio else "", printable(str(path)))
        yield history


def _insert(connection: sqlite3.Connection, entry: _Entry) -> None:
    event = entry.event
    cursor = connection.execute(_INSERT, (entry.own, entry.source, entry.at, event.to_json()))
    if isinstance(event, Final) and cursor.rowcount == 1:
        connection.execute(_INSERT_TEXT, (cursor.lastrowid, database.indexed(event.text)))
    elif isinstance(event, Revision):  # a search finds what is shown
        connection.execute(_CHANGE_TEXT, (database.indexed(event.text), event.session, event.of))


def _publish(entries: Sequence[_Entry]) -> None:
    for entry in entries:
        try:
            entry.publish()
        except Exception:
            logger.exception("a %s event could not be published", entry.event.type)
