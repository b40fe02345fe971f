"""A lock between processes."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


class LockedError(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float = 0.0) -> Iterator[None]:
    """Hold a lock in a block; the system frees it if the process ends. Raises LockedError after `timeout_s`.

    The lock is on an empty database at `path`, since SQLite locks files on all systems: if that cannot be made,
    OSError or sqlite3.Error is raised.
    """
    path.touch(mode=0o600)
    with contextlib.closing(sqlite3.connect(path, timeout=timeout_s, check_same_thread=False)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise LockedError from None
        yield
