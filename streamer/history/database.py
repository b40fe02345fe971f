"""The file of a history, in SQLite: one daemon owns and writes it; other programs may read it, and delete from it."""

import contextlib
import logging
import re
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import msgspec
import platformdirs

from streamer.errors import ConfigError, HistoryError, ProtocolError
from streamer.languages import WITHOUT_SPACES
from streamer.lock import LockedError, locked
from streamer.outside import one_line, printable

logger = logging.getLogger(__name__)

AUTO = "auto"  # the setting that puts the file into the user's data directory

APPLICATION_ID = 0x53545248  # "STRH", which distinguishes a history from other programs' databases
VERSION = 3
UPGRADED = (0, 2)  # versions that are brought up to date: those of an empty file, and of an index with other words

LOCK_TIMEOUT_S = 5.0  # for a lock that another program holds
READERS_TIMEOUT_S = 1.0  # for programs that look whether a daemon writes, when one starts

# The newest revision of the event that a row of `events` is.
REVISION = """(SELECT event FROM events AS later
    WHERE type = 'revision' AND session = events.session AND about = events.seq ORDER BY id DESC LIMIT 1)"""
# Ends all sessions, each when its last event came.
END_ALL = """
INSERT INTO events (own, source, at, event)
SELECT own, source, at, json_object('type', 'end', 'seq', max(seq) + 1, 'session', session) FROM events
WHERE session IN (SELECT id FROM sessions WHERE ended IS NULL) GROUP BY session
"""
_INDEX = f"""
INSERT INTO texts (rowid, text)
SELECT id, indexed(coalesce(json_extract(coalesce({REVISION}, event), '$.text'), '')) FROM events WHERE type = 'final'
"""  # noqa: S608

# In `texts` and searches, around each character of scripts without spaces: each is a word, and their words are phrases.
SEPARATOR = "\x1f"
_NO_SPACE = re.compile(f"(?<=[{WITHOUT_SPACES}])|(?=[{WITHOUT_SPACES}])")


def history_path(setting: str) -> Path:
    """Return the path that the setting `server.history` names, which must not be empty."""
    if setting == AUTO:
        return platformdirs.user_data_path("streamer", appauthor=False) / "history.db"
    return Path(setting).expanduser()


def indexed(text: object) -> str:
    """Return a text as `texts` has it, and a search for it: without control characters other than SEPARATOR."""
    return _NO_SPACE.sub(SEPARATOR, printable(str(text)))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an existing file for a block, with errors as in `typed_errors`."""
    with typed_errors(path), contextlib.closing(_connect(path)) as connection:
        yield connection


@contextlib.contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Make HistoryErrors of errors of SQLite, and of rows of the wrong form, in a block."""
    try:
        yield
    except (sqlite3.Error, ProtocolError, msgspec.DecodeError, TypeError) as error:
        raise HistoryError(
            f"the history {path} cannot be used ({one_line(error)}): is it damaged, or the disk full?"
        ) from None


@contextlib.contextmanager
def owned(path: Path) -> Iterator[sqlite3.Connection]:
    """Own a file in a block, as the daemon that writes it. It is created if it is missing, and brought up to date.

    Raises ConfigError if it cannot be opened, is not a history, or another daemon writes it.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            stack.enter_context(locked(_lock_path(path), timeout_s=READERS_TIMEOUT_S))
            connection = stack.enter_context(contextlib.closing(_connect(path)))
            upgrade(connection, path, create=True)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise sqlite3.OperationalError("its file system keeps no write-ahead log")
            with connection:
                connection.execute(END_ALL)  # of a daemon that was killed
        except LockedError:
            raise ConfigError(
                f"the history {path} is in use by another daemon: name another file in server.history, or stop it"
            ) from None
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
            raise ConfigError(
                f"the history {path} cannot be opened ({reason}): expected a history, or a new file, that you"
                " may write on a local disk; name another in server.history, or leave it empty to keep nothing"
            ) from None
        yield connection


def in_use(path: Path) -> bool:
    """Return whether a daemon owns a file now. No lock file is created: the caller may only want to read."""
    if not _lock_path(path).exists():
        return False
    try:
        # A shared lock, for a moment, for which `owned` waits.
        uri = f"{_lock_path(path).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, timeout=0, uri=True)) as connection:
            connection.execute("SELECT * FROM sqlite_master").fetchall()
    except (OSError, sqlite3.Error):
        return True  # or unknown: this user may not read the lock
    return False


def upgrade(connection: sqlite3.Connection, path: Path, *, create: bool = False) -> None:
    """Bring a history of an earlier version up to date, and make one of an empty file if `create` is set.

    Raises ConfigError for other files.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (not create or version or application or n_tables):
        raise ConfigError(f"{path} is another program's database, not a history: name another file in server.history")
    if version not in (*UPGRADED, VERSION):
        raise ConfigError(
            f"the history {path} has version {version}: this streamer reads and writes version {VERSION};"
            " use the one that wrote it, or name another file in server.history"
        )
    if version != VERSION:
        if version:
            logger.info("the history %s is brought up to date", path)
        schema = resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
        connection.create_function("indexed", 1, indexed, deterministic=True)
        connection.execute("PRAGMA auto_vacuum = FULL")
        connection.executescript(
            f"BEGIN IMMEDIATE; DROP TABLE IF EXISTS texts; {schema} {_INDEX};"
            f" PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT"
        )


def _connect(path: Path) -> sqlite3.Connection:
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


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-lock")
