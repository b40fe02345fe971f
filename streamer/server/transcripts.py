"""`/v1/sessions`: what the history holds, listed, searched, written in a format, and deleted."""

import asyncio
import io
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from streamer.errors import ConfigError, HistoryError
from streamer.server.history_file import HistoryFile, KeptSession, utc
from streamer.server.http import HEADERS, respond_error, respond_json
from streamer.sinks.subtitles import open_writer

logger = logging.getLogger(__name__)

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_QUERY_CHARS = 500
MAX_READING = 2  # threads that read, for however many requests
CHUNK_CHARS = 32_768  # of an answer that is sent in pieces
DELETE_PAUSE_S = 0.02  # between two steps of deleting, for those who write

# What may stand behind the name of a session.
CONTENT_TYPES = {"txt": "text/plain; charset=utf-8", "jsonl": "application/jsonl; charset=utf-8"}

# A number as `limit` and `before` may give it.
_NUMBER = re.compile(r"[1-9]\d{0,15}", re.ASCII)

T = TypeVar("T")


class Transcripts:
    """Answers what is asked of the history. The file is read in threads, and long transcripts a piece at a time."""

    def __init__(self, history: HistoryFile | None) -> None:
        """Answer from a history; None: every answer says how it is switched on."""
        self._history = history
        # Threads of their own: those of the loop are needed by others. A client that leaves takes none with it, as a
        # semaphore's permit would be free while the thread still reads.
        self._reading = ThreadPoolExecutor(MAX_READING, "history-read")
        self._deleting = ThreadPoolExecutor(1, "history-delete")

    async def sessions(self, request: Request) -> Response:
        """Sessions, the newest first; or, where `q` is given, the finals in which its words are."""
        text = request.query_params.get("q")

        def read(history: HistoryFile) -> Response:
            limit = min(_number(request, "limit") or DEFAULT_LIMIT, MAX_LIMIT)
            before = _number(request, "before")
            if text is None:
                sessions = history.sessions(limit + 1, before=before, public=True)
                rows, numbers = [_described(session) for session in sessions], [session.number for session in sessions]
            elif len(text) > MAX_QUERY_CHARS:
                raise ConfigError(f"q has {len(text)} characters: expected no more than {MAX_QUERY_CHARS}")
            else:
                hits = history.search(text, limit + 1, before=before, public=True)
                numbers = [hit.number for hit in hits]
                rows = [
                    {
                        "session": hit.session,
                        "seq": hit.seq,
                        "start": hit.start_s,
                        "end": hit.end_s,
                        "time": utc(hit.at),
                        "snippet": hit.snippet,
                    }
                    for hit in hits
                ]
            # One more than asked for was read, to see whether there are more.
            more = numbers[limit - 1] if len(rows) > limit else None
            return respond_json(HTTPStatus.OK, {"sessions" if text is None else "hits": rows[:limit], "before": more})

        return await self._answer(read, self._reading)

    async def show(self, request: Request) -> Response:
        """What is known of a session; or its transcript, where a format stands behind its name."""
        name, dot, format = request.path_params["name"].partition(".")

        def read(history: HistoryFile) -> Response:
            session = history.session(name, public=True)
            if session is None:
                return _unknown(name)
            if not dot:
                return respond_json(HTTPStatus.OK, _described(session))
            if format not in CONTENT_TYPES:
                return respond_error(
                    HTTPStatus.NOT_FOUND,
                    f"format {format!r:.20} is unknown: expected one of {', '.join(CONTENT_TYPES)};"
                    " `streamer history export` writes others",
                )
            headers = {**HEADERS, "Content-Type": CONTENT_TYPES[format]}
            return StreamingResponse(self._read_on(_in_chunks(_written(history, session, format))), headers=headers)

        return await self._answer(read, self._reading)

    async def delete(self, request: Request) -> Response:
        """Delete a session that is over."""
        name = request.path_params["name"]

        def delete(history: HistoryFile) -> Response:
            session = history.session(name)
            if session is None:
                return _unknown(name)
            if session.ended is None:
                return respond_error(
                    HTTPStatus.CONFLICT, "the session is still open: expected one that is over; ask again when it is"
                )
            for _ in history.delete(session):
                time.sleep(DELETE_PAUSE_S)
            logger.info("the session was deleted from the history", extra={"session": name})
            return respond_json(HTTPStatus.OK, {"deleted": name})

        return await self._answer(delete, self._deleting)

    async def _read_on(self, chunks: Iterator[str]) -> AsyncIterator[str]:
        """Yield chunks, each read when the client has taken the one before: one that is slow keeps no thread."""
        loop = asyncio.get_running_loop()
        while (chunk := await loop.run_in_executor(self._reading, next, chunks, None)) is not None:
            yield chunk

    async def _answer(self, read: Callable[[HistoryFile], Response], threads: ThreadPoolExecutor) -> Response:
        history = self._history
        if history is None:
            return respond_error(
                HTTPStatus.NOT_FOUND,
                "this daemon keeps no history: to have one, start it with --history auto, or set server.history",
            )
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, read, history)
        except ConfigError as error:
            return respond_error(HTTPStatus.BAD_REQUEST, str(error))
        except HistoryError as error:
            logger.warning("%s", error)
            return respond_error(
                HTTPStatus.SERVICE_UNAVAILABLE, "the history cannot be read: the daemon's log says why"
            )


def _described(session: KeptSession) -> dict[str, object]:
    return {
        "session": session.id,
        "own": session.own,
        "source": session.source,
        "model": session.model,
        "language": session.language,
        "started": utc(session.started),
        "ended": None if session.ended is None else utc(session.ended),
        "events": session.n_events,
        "end": session.end_s,
    }


def _written(history: HistoryFile, session: KeptSession, format: str) -> Iterator[str]:
    """Yield a transcript, a page at a time."""
    stream = io.StringIO()
    writer = open_writer("text" if format == "txt" else format, stream)

    def written() -> str:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return text

    # JSON Lines have each event as it came, what changed finals included.
    for events in history.transcript(session) if format == "jsonl" else history.newest(session):
        for event in events:
            writer.handle(event)
        yield written()
    writer.close()
    yield written()


def _in_chunks(pieces: Iterator[str]) -> Iterator[str]:
    """Yield pieces joined to chunks, and where the history cannot be read on, that this is so: the answer has begun."""
    waiting: list[str] = []
    n_chars = 0
    try:
        for piece in pieces:
            waiting.append(piece)
            n_chars += len(piece)
            if n_chars >= CHUNK_CHARS:
                yield "".join(waiting)
                waiting.clear()
                n_chars = 0
    except HistoryError as error:
        logger.warning("%s", error)
        waiting.append("\n\nthe rest of the history cannot be read\n")
    yield "".join(waiting)


def _number(request: Request, name: str) -> int | None:
    """Return a number of the query, None where it is not there. Raises ConfigError where it is none."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise ConfigError(f"{name} is {text!r:.40}: expected a whole number, 1 or more")
    return int(text)


def _unknown(name: str) -> Response:
    return respond_error(
        HTTPStatus.NOT_FOUND, f"session {name!r:.60} is not in the history: /v1/sessions lists those that are"
    )
