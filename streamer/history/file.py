"""The file of a history: how it is opened, and locked by the daemon that writes it."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from streamer.errors import ConfigError, HistoryError, ProtocolError
from streamer.lock import LockedError, locked
from streamer.outside import one_line

LOCK_TIMEOUT_S = 5.0  # for a lock that another program holds
READERS_TIMEOUT_S = 1.0  # for programs that look whether a daemon writes, when one starts


class HistoryFile:
    """A SQLite file, which other programs may read while one daemon writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file for a block, in which errors of SQLite, and rows of the wrong form, become a HistoryError."""
        try:
            with contextlib.closing(connect(self.path)) as connection:
                yield connection
        except (sqlite3.Error, ProtocolError, msgspec.DecodeError, TypeError) as error:
            raise HistoryError(
                f"the history {self.path} cannot be used ({one_line(error)}): is it damaged, or the disk full?"
            ) from None

    @property
    def in_use(self) -> bool:
        """Whether a daemon writes the file now. No lock file is created: the caller may only want to read."""
        if not lock_path(self.path).exists():
            return False
        try:
            # A shared lock, for a moment, for which `owned` waits.
            uri = f"{lock_path(self.path).absolute().as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, timeout=0, uri=True)) as connection:
                connection.execute("SELECT * FROM sqlite_master").fetchall()
        except (OSError, sqlite3.Error):
            return True  # or unknown: this user may not read the lock
        return False


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing file. `with connection` is one transaction."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        timeout=LOCK_TIMEOUT_S,
        isolation_level="IMMEDIATE",
        check_same_thread=False,
        uri=True,
    )
    connection.row_factory = sqlite3.Row
    # NORMAL: committed data survives a crash of the program; a power cut may lose a minute.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")  # deleted text is overwritten
    return connection


@contextlib.contextmanager
def owned(path: Path) -> Iterator[None]:
    """Own a history for writing in a block. Raises ConfigError if another daemon writes it."""
    try:
        with locked(lock_path(path), timeout_s=READERS_TIMEOUT_S):
            yield
    except LockedError:
        raise ConfigError(
            f"the history {path} is in use by another daemon: name another file in server.history, or stop it"
        ) from None


def lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-lock")
