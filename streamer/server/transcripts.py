"""`/v1/sessions`: sessions of the history, listed, searched, downloaded, played, and deleted."""

import asyncio
import io
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Annotated

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from streamer.audio.wav import wav
from streamer.constants import SAMPLE_RATE
from streamer.errors import HistoryError
from streamer.events import Error, Final, Gap
from streamer.history import audio as history_audio
from streamer.history.reader import Hit, KeptSession, shown_time
from streamer.history.writer import History
from streamer.outputs.subtitles import open_writer
from streamer.protocols.adapter import read_query
from streamer.server.responses import HEADERS, respond, respond_error, respond_json

logger = logging.getLogger(__name__)

MAX_LIMIT = 200
MAX_THREADS = 2  # that read or delete, for any number of requests
CHUNK_CHARS = 32_768  # of an answer that is sent in pieces
MAX_CLIP_S = 60.0  # of a line's audio that is sent; of a longer gap, its beginning
MAX_START_S = 1e9
MARGIN_S = 0.1  # around it: words' times are about as exact

# Extensions of a session's name.
CONTENT_TYPES = {"txt": "text/plain; charset=utf-8", "jsonl": "application/jsonl; charset=utf-8"}

_UNREAD = "the rest of the session is missing: its history cannot be read, or was deleted meanwhile"

_Number = Annotated[int, msgspec.Meta(ge=1, le=10**15)]


class _Asked(msgspec.Struct):
    """The query of a list: words to search for, and which page."""

    q: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    limit: _Number = 50
    before: _Number | None = None


class Transcripts:
    """Answers requests for the history, which threads read: long transcripts a piece at a time."""

    def __init__(self, history: History | None) -> None:
        self._history = history
        # Not the loop's own threads, which others need.
        self._threads = ThreadPoolExecutor(MAX_THREADS, "history requests")

    async def sessions(self, request: Request) -> Response:
        """List sessions, the newest first; with `q`, the finals that have its words."""
        return await self._answer(_list, request)

    async def show(self, request: Request) -> Response:
        """Describe a session; with an extension, return its transcript in that format."""
        return await self._answer(self._show, request)

    async def sound(self, request: Request) -> Response:
        """Return the audio of a line."""
        return await self._answer(_sound, request)

    async def delete(self, request: Request) -> Response:
        """Delete a session that is over."""
        return await self._answer(_delete, request)

    async def _answer(self, respond: Callable[[History, Request], Response], request: Request) -> Response:
        if self._history is None:
            text = "this daemon keeps no history: start it with --history auto, or set server.history"
            return respond_error(HTTPStatus.NOT_FOUND, text)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, respond, self._history, request)
        except HistoryError as error:
            logger.warning("%s", error)
            text = "the history cannot be read: see the daemon's log"
            return respond_error(HTTPStatus.SERVICE_UNAVAILABLE, text)

    def _show(self, history: History, request: Request) -> Response:
        name, dot, format = request.path_params["name"].partition(".")
        session = history.session(name, public=True)
        if session is None:
            return _unknown(name)
        if not dot:
            spans = np.array(history_audio.find_spans(history, session.id)) / SAMPLE_RATE
            return respond_json(HTTPStatus.OK, _described(session) | ({"audio": spans.tolist()} if len(spans) else {}))
        if format not in CONTENT_TYPES:
            known = ", ".join(CONTENT_TYPES)
            text = f"format {format!r:.20} is unknown: expected one of {known}; `streamer history export` writes others"
            return respond_error(HTTPStatus.NOT_FOUND, text)
        headers = {**HEADERS, "Content-Type": CONTENT_TYPES[format]}
        return StreamingResponse(self._read(_written(history, session, format)), headers=headers)

    async def _read(self, chunks: Iterator[str]) -> AsyncIterator[str]:
        """Yield chunks, each read when the client has taken the one before: a slow client occupies no thread."""
        loop = asyncio.get_running_loop()
        while (chunk := await loop.run_in_executor(self._threads, next, chunks, None)) is not None:
            yield chunk


def _list(history: History, request: Request) -> Response:
    asked = read_query(request.query_params, _Asked)
    limit = min(asked.limit, MAX_LIMIT)
    # One more than asked for, to see whether there are more.
    found: list[KeptSession] | list[Hit]
    if asked.q is None:
        found = history.sessions(limit + 1, before=asked.before, public=True)
    else:
        found = history.search(asked.q, limit + 1, before=asked.before, public=True)
    more = found[limit - 1].number if len(found) > limit else None
    rows = [_described(each) for each in found[:limit]]
    return respond_json(HTTPStatus.OK, {"sessions" if asked.q is None else "hits": rows, "before": more})


def _sound(history: History, request: Request) -> Response:
    session = history.session(request.path_params["name"], public=True)
    if session is None:
        return _unknown(request.path_params["name"])
    name = request.path_params["line"]
    number = re.fullmatch(r"([0-9]{1,15})\.wav", name)
    found = history.events(session.id, int(number[1]) - 1) if number is not None else []
    if number is None or not found or found[0].seq != int(number[1]) or not isinstance(found[0], Final | Gap):
        text = f"line {name!r:.40} is not in the session: expected SEQ.wav, with the `seq` of a final or a gap"
        return respond_error(HTTPStatus.NOT_FOUND, text)
    start_s = min(max(0.0, found[0].start - MARGIN_S), MAX_START_S)
    end_s = min(found[0].end + MARGIN_S, start_s + MAX_CLIP_S)
    start, end = round(start_s * SAMPLE_RATE), round(end_s * SAMPLE_RATE)
    if not history_audio.find_spans(history, session.id, start, end):
        text = "no audio of this line was kept, or it was deleted: see server.history_audio"
        return respond_error(HTTPStatus.NOT_FOUND, text)
    samples = np.concatenate(list(history_audio.read(history, session.id, start, end)))
    return respond(HTTPStatus.OK, wav(samples), "audio/wav")


def _delete(history: History, request: Request) -> Response:
    name = request.path_params["name"]
    session = history.session(name)
    if session is None:
        return _unknown(name)
    if session.ended is None:
        text = "the session is still open: delete it once it has ended"
        return respond_error(HTTPStatus.CONFLICT, text)
    history.delete(session)
    logger.info("the session was deleted from the history", extra={"session": name})
    return respond_json(HTTPStatus.OK, {"deleted": name})


def _described(found: KeptSession | Hit) -> dict[str, object]:
    if isinstance(found, Hit):
        return {
            "session": found.session,
            "seq": found.seq,
            "start": found.start_s,
            "end": found.end_s,
            "time": _utc(found.at),
            "snippet": found.snippet,
        }
    return {
        "session": found.id,
        "own": found.own,
        "source": found.source,
        "model": found.ready.model,
        "language": found.ready.language,
        "started": _utc(found.started),
        "ended": None if found.ended is None else _utc(found.ended),
        "events": found.n_events,
        "end": found.end_s,
    }


def _written(history: History, session: KeptSession, format: str) -> Iterator[str]:
    """Yield a transcript in pieces; if it cannot be read to its end, its last line says so: the answer has begun."""
    stream = io.StringIO()
    seq = 0
    writer = open_writer("text" if format == "txt" else format, stream)
    try:
        # JSON Lines have each event as it came, those that correct finals included.
        for event in history.transcript(session, newest=format != "jsonl"):
            writer.handle(event)
            seq = event.seq
            if stream.tell() >= CHUNK_CHARS:
                yield stream.getvalue()
                stream.seek(0)
                stream.truncate()
        writer.close()
    except HistoryError as error:
        logger.warning("%s", error)
        lost = Error(seq=seq, session=session.id, code="history_lost", message=_UNREAD, fatal=False)
        if format == "jsonl":
            writer.handle(lost)
        else:
            stream.write(f"\n[{_UNREAD}]\n")
    yield stream.getvalue()


def _utc(at: float) -> str:
    """Return a wall-clock time as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shown_time(at)))


def _unknown(name: str) -> Response:
    return respond_error(
        HTTPStatus.NOT_FOUND, f"session {name!r:.60} is not in the history: /v1/sessions lists those that are"
    )
