"""The audio of sessions that a history keeps: pieces of Opus in its file, each with its position in its session.

A piece ends with each final, after PIECE_SAMPLES, and before audio that is missing, such as that of a pause. So a crash
of the program loses the newest piece only, and audio is deleted with its text.
"""

import contextlib
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from streamer.arrays import Float32Array, Int16Array
from streamer.audio import opus
from streamer.audio.pcm import to_int16
from streamer.constants import SAMPLE_RATE
from streamer.errors import HistoryError
from streamer.events import End, Event, Final, Gap
from streamer.history import database
from streamer.history.reader import HistoryFile
from streamer.outside import one_line

logger = logging.getLogger(__name__)

PIECE_SAMPLES = 10 * SAMPLE_RATE
MAX_WAITING_SAMPLES = 600 * SAMPLE_RATE  # of all sessions, until they are encoded: 19 MB
MIN_FREE_BYTES = 200e6  # that audio leaves on the disk for text and other programs

# Unless its session was deleted meanwhile, or that part of it.
_INSERT = """
INSERT INTO audio (session, at, start, end, opus) SELECT :session, :at, :start, :end, :opus
WHERE EXISTS (SELECT 1 FROM events WHERE type = 'ready' AND session = :session)
    AND NOT EXISTS (SELECT 1 FROM events WHERE type = 'error' AND session = :session AND at >= :at)
"""
_DELETE = "DELETE FROM audio WHERE session = ? AND start < ? AND end > ?"

# What another program wrote into the file may be anything.
_PIECES = f"""
SELECT id, start, end FROM audio INDEXED BY audio_places
WHERE session = :session AND typeof(start) = 'integer' AND typeof(end) = 'integer' AND start < :end AND end > :start
    AND start >= 0 AND end > start AND end - start <= {2 * PIECE_SAMPLES} ORDER BY start
"""  # noqa: S608


@dataclass(slots=True)
class _Piece:
    """Audio of a session that is not in the file yet."""

    start: int  # position in the session, as `end`
    at: float  # when its first audio came
    end: int
    blocks: list[Int16Array] = field(default_factory=list)


class AudioKeeper:
    """Writes audio into a history, in a thread. Sessions never wait for it; what cannot be written is lost."""

    def __init__(self, history: HistoryFile) -> None:
        self._history = history
        self._thread = ThreadPoolExecutor(1, "keep audio")
        # Samples that wait for the thread, and their lock.
        self.n_waiting = 0
        self._counting = threading.Lock()
        # Whether audio is not kept at present.
        self._failing = False
        self.closed = False
        # Used by the thread: the newest piece of each session.
        self._open: dict[str, _Piece] = {}

    def take(self, session: str, position: int, samples: Float32Array) -> None:
        """Keep audio, 16 kHz mono, shape (n,), which begins at a position of a session."""
        with self._counting:
            fits = self.n_waiting + len(samples) <= MAX_WAITING_SAMPLES
            self.n_waiting += len(samples) if fits else 0
        if fits:
            self._do(self._add, session, position, to_int16(samples), time.time())
        else:
            self._fail(f"the disk is too slow, {MAX_WAITING_SAMPLES // SAMPLE_RATE} s wait for it")

    def note(self, event: Event) -> None:
        """Note what was published of a session: a piece ends with each final, and what a client cleared is dropped."""
        if isinstance(event, Gap) and event.reason == "cleared":
            self._do(self._drop, event.session, round(event.start * SAMPLE_RATE), round(event.end * SAMPLE_RATE))
        elif isinstance(event, Final | End):
            self._do(self._store, event.session)

    def close(self) -> None:
        """Write what there is, unless that fails. Harmless the second time."""
        self.closed = True
        self._do(self._store_all)
        self._thread.shutdown()

    def _do(self, work: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed
            self._thread.submit(work, *arguments)

    def _add(self, session: str, position: int, samples: Int16Array, at: float) -> None:
        with self._counting:
            self.n_waiting -= len(samples)
        piece = self._open.get(session)
        if piece is not None and (piece.end != position or position - piece.start >= PIECE_SAMPLES):
            self._store(session)
            piece = None
        if piece is None:
            piece = self._open[session] = _Piece(position, at, position)
        piece.blocks.append(samples)
        piece.end += len(samples)

    def _store_all(self) -> None:
        for session in list(self._open):
            self._store(session)

    def _store(self, session: str) -> None:
        """Write the newest piece of a session."""
        piece = self._open.pop(session, None)
        if piece is None or (self.closed and self._failing):  # the daemon's end does not wait for each of many pieces
            return
        try:
            if (free := shutil.disk_usage(self._history.path.parent).free) < MIN_FREE_BYTES:
                raise HistoryError(
                    f"{free / 1e6:.0f} MB are free on the disk of {self._history.path}, and the last"
                    f" {MIN_FREE_BYTES / 1e6:.0f} MB are for text"
                )
            data = opus.encode(np.concatenate(piece.blocks))
            self._history.change(_insert, session, piece, data)
        except Exception as error:  # noqa: BLE001 - audio that comes later may be written
            self._fail(one_line(error))
        else:
            if self._failing and self.n_waiting <= MAX_WAITING_SAMPLES // 2:
                logger.warning("audio is kept again")
                self._failing = False

    def _drop(self, session: str, start: int, end: int) -> None:
        """Forget audio, and with it the rest of the pieces that it is in."""
        piece = self._open.pop(session, None)
        if piece is not None and piece.end > end:
            rest = np.concatenate(piece.blocks)[max(0, end - piece.start) :]
            self._open[session] = _Piece(max(end, piece.start), piece.at, piece.end, [rest])
        try:
            self._history.change(_delete, session, start, end)
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("audio that was cleared could not be deleted from the history: %s", one_line(error))

    def _fail(self, reason: str) -> None:
        if not self._failing:
            logger.warning(
                "audio is no longer kept (%s): captions go on, and audio is kept again when it can be", reason
            )
        self._failing = True


def find_spans(
    history: HistoryFile, session: str, start: int = 0, end: int = 2**62, *, max_hole: int = 0
) -> list[tuple[int, int]]:
    """Return where a session's audio is kept, oldest first, of pieces that have some between two positions.

    max_hole : longest hole in a span, in samples, as all positions

    Raises HistoryError.
    """
    spans: list[tuple[int, int]] = []
    for _, first, last in _find_pieces(history, session, start, end):
        if spans and first - spans[-1][1] <= max_hole:
            first, last = spans[-1][0], max(last, spans.pop()[1])
        spans.append((first, last))
    return spans


def read(history: HistoryFile, session: str, start: int, end: int) -> Iterator[Float32Array]:
    """Yield the audio of a session between two positions, 16 kHz mono; silence stands for what is missing."""
    for number, first, last in _find_pieces(history, session, start, end):
        with database.opened(history.path) as connection:
            row = connection.execute("SELECT opus FROM audio WHERE id = ?", (number,)).fetchone()
        try:
            samples = opus.decode(row["opus"], last - first)
        except (ValueError, TypeError) as error:  # TypeError: it was deleted meanwhile, or is no blob
            logger.warning("a piece of audio in the history cannot be read: %s", one_line(error))
            continue
        yield np.zeros(max(0, first - start), dtype=np.float32)
        yield samples[max(0, start - first) : end - first]
        start = min(max(start, last), end)
    yield np.zeros(end - start, dtype=np.float32)


def _find_pieces(history: HistoryFile, session: str, start: int, end: int) -> list[tuple[int, int, int]]:
    """Return number, start and end of the pieces that have audio between two positions, oldest first."""
    with database.opened(history.path) as connection:
        rows = connection.execute(_PIECES, {"session": session, "start": start, "end": end})
        return [(row["id"], row["start"], row["end"]) for row in rows]


def _insert(connection: sqlite3.Connection, session: str, piece: _Piece, data: bytes) -> None:
    with connection:
        row = {"session": session, "at": piece.at, "start": piece.start, "end": piece.end, "opus": data}
        connection.execute(_INSERT, row)


def _delete(connection: sqlite3.Connection, session: str, start: int, end: int) -> None:
    with connection:
        connection.execute(_DELETE, (session, end, start))
