"""Logging: a thread writes lines to standard error from a queue, as the reader of standard error may be slow."""

import contextlib
import io
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TextIO

from streamer.outside import escaped
from streamer.settings.table import LogSettings

# Lines that may wait to be written; further ones are dropped, and counted.
MAX_LINES = 1000

# Of a line, tracebacks included; the rest is cut off.
MAX_CHARS = 16_384

# How long an end waits for what is still to be written.
FLUSH_S = 2.0

# Held while a line is written, while standard error is replaced, and by what must not meet a line meanwhile.
writing = threading.RLock()

# Of a session's name: enough to distinguish clients. The whole name is a secret, with which a stream can be resumed.
SESSION_CHARS = 8

# One line a request if `log.access` is set, whatever `log.level` says.
ACCESS_LOGGER = "streamer.access"


def configure(settings: LogSettings) -> None:
    """Log from now on as the settings say."""
    handler = QueuedHandler()
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    # Others only when something is wrong: their debug lines hold headers, and so tokens and keys.
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    set_levels(settings)


def set_levels(settings: LogSettings) -> None:
    logging.getLogger("streamer").setLevel(settings.level.upper())
    logging.getLogger(ACCESS_LOGGER).setLevel(logging.INFO if settings.access else logging.CRITICAL)


def say(line: str) -> None:
    """Write a line that is no log line, behind those logged before, waiting no longer than `FLUSH_S`."""
    handler = _installed()
    if handler is None:
        _write(f"{line}\n")
    else:
        handler.say(line)
        handler.flush()


@contextlib.contextmanager
def standard_error(stream: TextIO) -> Iterator[None]:
    """Put a stream in the place of standard error, such as what draws on the terminal; no line is half-way then."""
    with writing:
        before, sys.stderr = sys.stderr, stream
    try:
        yield
    finally:
        with writing:
            sys.stderr = before


def close() -> None:
    """Write what waits, within `FLUSH_S`, and end the thread."""
    handler = _installed()
    if handler is not None:
        handler.close()


class TextFormatter(logging.Formatter):
    """`HH:MM:SS LEVEL [session] message`, with a traceback indented below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the text; what came from outside can neither steer a terminal nor begin a line."""
        session = _session(record)
        record.asctime = self.formatTime(record, self.datefmt)
        head = f"{record.asctime} {record.levelname} {f'[{session}] ' if session else ''}"
        exception = _exception(record)
        below = "\n" + escaped(exception, keep="\n") if exception else ""
        return (head + escaped(record.getMessage()) + below).replace("\n", "\n  ")


class JsonFormatter(logging.Formatter):
    """An object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, and `session`, `exception` if any.

    Lines of the access log have their `fields` beside these.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object; all but ASCII is escaped, so that no control character is left."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage()[:MAX_CHARS]}
        for key, value in (("session", _session(record)), ("exception", _exception(record))):
            if value:
                line[key] = value[:MAX_CHARS]
        return json.dumps({**line, **getattr(record, "fields", {})})


class QueuedHandler(logging.Handler):
    """Hands lines to a thread that writes them. Never waits, and may be called by a handler of signals.

    When more than `MAX_LINES` wait, further ones are dropped, and their number is logged when there is room again.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        """Begin; `write` takes a line with its end (default: standard error, as it is at that moment)."""
        super().__init__()
        self._write = write or _write

        # Lines, and what is called when all before it is written; None ends the thread. Of all queues this is the one
        # whose `put` may interrupt itself, as a signal can have it.
        self._waiting: queue.SimpleQueue[str | Callable[[], object] | None] = queue.SimpleQueue()

        # Lines that were dropped since that was last logged. Guarded by the handler's lock.
        self._n_dropped = 0

        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - logging must not stop what it logs
            line = f"a line of the log cannot be formatted: {record.name}, line {record.lineno}"
        self._put(line)

    def say(self, line: str) -> None:
        """Queue a line as it is; with JSON, as the message of an object."""
        if isinstance(self.formatter, JsonFormatter):
            line = self.format(logging.LogRecord("streamer", logging.INFO, "", 0, "%s", (line,), None))
        self._put(line)

    def flush(self) -> None:
        """Wait until all is written that was queued, no longer than `FLUSH_S`."""
        written = threading.Event()
        self._waiting.put(written.set)
        if self._thread.is_alive():
            written.wait(FLUSH_S)

    def close(self) -> None:
        """Write what waits, within `FLUSH_S`, and end the thread; harmless the second time."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(FLUSH_S)
        super().close()

    def _put(self, line: str) -> None:
        if len(line) > MAX_CHARS and not isinstance(self.formatter, JsonFormatter):
            line = line[:MAX_CHARS] + "..."
        assert self.lock is not None
        with self.lock:
            if self._waiting.qsize() >= MAX_LINES:
                self._n_dropped += 1
                return
            self._log_dropped()
            self._waiting.put(line)

    def _log_dropped(self) -> None:
        if self._n_dropped:
            n_dropped, self._n_dropped = self._n_dropped, 0
            text = f"standard error was not read in time: {n_dropped} lines of the log were dropped"
            record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)
            self._waiting.put(self.format(record))

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, str):
                with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it was closed
                    self._write(f"{item}\n")
            else:
                item()
            if self._n_dropped and self._waiting.empty():
                assert self.lock is not None
                with self.lock:
                    self._log_dropped()


def _installed() -> QueuedHandler | None:
    return next((handler for handler in logging.getLogger().handlers if isinstance(handler, QueuedHandler)), None)


def _session(record: logging.LogRecord) -> str:
    """Return what is logged of the name that a logger's `extra` has as `session`."""
    return escaped(getattr(record, "session", "")[:SESSION_CHARS])


def _exception(record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def _write(text: str) -> None:
    """Write to standard error as it is at that moment."""
    with writing:
        stderr = sys.stderr
        raw = getattr(stderr.buffer, "raw", None) if isinstance(stderr, io.TextIOWrapper) else None
        if not isinstance(raw, io.RawIOBase):
            print(text, end="", file=stderr, flush=True)
            return
        # Beneath its buffer, whose lock a thread that waits for a reader would hold when the interpreter ends.
        data = text.replace("\n", os.linesep).encode(stderr.encoding, "backslashreplace")
        while data:
            data = data[raw.write(data) or len(data) :]  # None: it would have to wait, and must not
