"""What goes from a history: sessions on request, and what is too old or too much. Nothing is left in the file of it.

The functions take a connection to the file, and raise sqlite3.Error.
"""

import math
import sqlite3
from collections.abc import Callable

from streamer.events import Error

PRUNE_EVENTS = 100  # deleted at a time while the file is too large
PRUNE_PIECES = 20  # of audio, before that

_DELETE = "DELETE FROM events WHERE session = ?"
# The last event of each session up to a wall-clock time.
_UP_TO = """
SELECT own, source, session, max(seq) AS seq, type, at FROM events INDEXED BY ages
WHERE at <= ? AND type NOT IN ('ready', 'error') GROUP BY session
"""
_DELETE_UP_TO = _DELETE + " AND seq <= ? AND type <> 'ready'"
_DELETE_AUDIO = "DELETE FROM audio WHERE at <= ?"
_OLDEST_AUDIO = "DELETE FROM audio WHERE id IN (SELECT id FROM audio ORDER BY at LIMIT ?)"
_OLDEST = "SELECT at FROM events WHERE type NOT IN ('ready', 'error') ORDER BY at LIMIT 1 OFFSET ?"
_LOST = "earlier events are no longer in the history: raise server.history_days or server.history_mb to keep more"
_N_FINALS = "SELECT count(*) FROM events WHERE type = 'final'"
_INSERT_LOST = "INSERT INTO events (own, source, at, event) VALUES (?, ?, ?, ?)"


def delete_session(connection: sqlite3.Connection, session: str) -> int:
    """Delete a session; return the number of finals."""
    return _erase(connection, lambda: connection.execute(_DELETE, (session,)))


def delete_before(connection: sqlite3.Connection, at: float) -> int:
    """Delete what came before a wall-clock time; return the number of finals."""
    return _erase(connection, lambda: _delete_up_to(connection, at))


def prune(connection: sqlite3.Connection, before: float, max_bytes: float) -> None:
    """Delete events and audio up to a wall-clock time and then, while the file is too large, the oldest audio, events.

    max_bytes : size beyond which the file is too large
    """
    with connection:
        _delete_up_to(connection, before)
    while _n_bytes(connection) > max_bytes:
        with connection:
            if connection.execute(_OLDEST_AUDIO, (PRUNE_PIECES,)).rowcount:
                continue
            row = connection.execute(_OLDEST, (PRUNE_EVENTS - 1,)).fetchone()
            if not _delete_up_to(connection, row["at"] if row else math.inf):
                return


def _delete_up_to(connection: sqlite3.Connection, at: float) -> int:
    """Delete audio and events up to a wall-clock time, and sessions that ended by then; return the number of events."""
    connection.execute(_DELETE_AUDIO, (at,))
    n_deleted = 0
    for row in connection.execute(_UP_TO, (at,)).fetchall():
        if row["type"] == "end":
            n_deleted += connection.execute(_DELETE, (row["session"],)).rowcount
            continue
        n_deleted += connection.execute(_DELETE_UP_TO, (row["session"], row["seq"])).rowcount
        lost = Error(code="history_lost", message=_LOST, fatal=False).stamped(row["seq"], row["session"])
        connection.execute(_INSERT_LOST, (row["own"], row["source"], row["at"], lost.to_json()))
    return n_deleted


def _erase(connection: sqlite3.Connection, delete: Callable[[], object]) -> int:
    """Delete, and erase all traces of what is deleted; return the number of finals."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        (n_before,) = connection.execute(_N_FINALS).fetchone()
        delete()
        (n_after,) = connection.execute(_N_FINALS).fetchone()
        connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")  # writes the index without them
    connection.execute("VACUUM")  # SQLite moves rows between pages, and `secure_delete` misses where they were
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return int(n_before - n_after)


def _n_bytes(connection: sqlite3.Connection) -> int:
    size = "SELECT page_size * page_count FROM pragma_page_size, pragma_page_count"
    return int(connection.execute(size).fetchone()[0])
