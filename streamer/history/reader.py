"""What is in a history: sessions listed, read and searched, by any program, also while a daemon writes the file.

Positions are seconds of a session's audio, wall-clock times are seconds since 1970, UTC.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from streamer.errors import ConfigError, HistoryError
from streamer.events import Event, Final, Ready, Revision, Speakers, from_json
from streamer.history import database, deletion
from streamer.outputs.subtitles.revised import SpeakerNames, revised
from streamer.outside import printable

Result = TypeVar("Result")

PAGE_EVENTS = 200  # read at a time: half a megabyte

# The name of a client's stream is a secret while the stream is open: a client that knows it can take the stream over.
_SESSIONS = "SELECT * FROM sessions WHERE (NOT :public OR own OR ended IS NOT NULL) AND "
# Not those of a later version.
_EVENTS = f"""
SELECT seq, event, CASE WHEN :newest THEN {database.REVISION} END AS revision
FROM events WHERE session = :session AND seq > :after
    AND type IN ('ready', 'final', 'revision', 'speakers', 'translation', 'gap', 'error') ORDER BY seq LIMIT :limit
"""  # noqa: S608
_SPEAKERS = "SELECT event FROM events INDEXED BY kinds WHERE type = 'speakers' AND session = ? ORDER BY id"
_HITS = """
SELECT events.id AS number, session, seq, start_s, events.end_s, at, snippet(texts, 0, :begin, :end, '…', 24) AS snippet
FROM texts JOIN events ON events.id = texts.rowid JOIN sessions ON sessions.id = session
WHERE texts MATCH :expression AND texts.rowid < :before AND (NOT :public OR events.own OR ended IS NOT NULL)
ORDER BY texts.rowid DESC LIMIT :limit
"""
_MOST = 2**63 - 1  # more than any number that SQLite assigns
_LAST_TIME = 32_535_129_599.0  # a day before the year 3001, the last that Windows knows, in any time zone

# Around each match in a snippet. Texts that can be found have no control characters.
MARKS = ("\x02", "\x03")

# A search: phrases in quotation marks, and words.
_TERM = re.compile(r'"([^"]*)"|([^\s"]+)')


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


class HistoryFile:
    """The file of a history. Any thread may call any method, which raises HistoryError if the file cannot be used."""

    def __init__(self, path: Path) -> None:
        """Name a file; each method opens it for itself."""
        self.path = path

    @property
    def in_use(self) -> bool:
        """Whether a daemon writes the file now."""
        return database.in_use(self.path)

    def check(self) -> None:
        """Bring a file of an earlier version up to date. Raises ConfigError if it is missing or not a history."""
        if not self.path.is_file():
            raise ConfigError(
                f"there is no history at {self.path}: expected a file that `streamer run --history FILE` has written;"
                " name it with --history, or in server.history"
            )
        with database.opened(self.path) as connection:
            database.upgrade(connection, self.path)

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
        """Return the daemon's first own session after a number, None behind the last."""
        return next(iter(self._sessions("number > :number AND own ORDER BY number LIMIT 1", number=number)), None)

    def _sessions(self, where: str, *, public: bool = False, **values: object) -> list[KeptSession]:
        with database.opened(self.path) as connection:
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
            with database.opened(self.path) as connection:
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
        values = {"session": session, "after": after, "newest": newest, "limit": PAGE_EVENTS}
        found: list[Event] = []
        with database.opened(self.path) as connection:
            for row in connection.execute(_EVENTS, values):
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
        expression = " ".join(f'"{database.indexed(term)}"' for term in terms if any(char.isalnum() for char in term))
        if not expression:
            raise ConfigError(f"{text!r:.60} has no word to search for: expected words, or a phrase in quotation marks")
        values = {"expression": expression, "before": before or _MOST, "limit": limit, "public": public}
        with database.opened(self.path) as connection:
            rows = connection.execute(_HITS, {**values, "begin": MARKS[0], "end": MARKS[1]}).fetchall()
            shown = [{**row, "snippet": row["snippet"].replace(database.SEPARATOR, "")} for row in rows]
            return [msgspec.convert(row, Hit, strict=False) for row in shown]

    def delete(self, session: KeptSession) -> int:
        """Delete a session and all traces of its text; return the number of finals."""
        return self.change(deletion.delete_session, session.id)

    def delete_before(self, at: float) -> int:
        """Delete events before a wall-clock time, and all traces of their text; return the number of finals."""
        return self.change(deletion.delete_before, at)

    def change(self, work: Callable[..., Result], *values: object) -> Result:
        """Change the file by a function of a connection and these values, and return what it returns."""
        with database.opened(self.path) as connection:
            return work(connection, *values)


def shown_time(at: float) -> float:
    """Return a wall-clock time, or the nearest that can be shown."""
    return min(max(at, 0.0), _LAST_TIME)
