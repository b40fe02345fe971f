"""Recordings over HTTP: OpenAI's `/v1/audio` and `/v1/models`, Deepgram's `/v1/listen`, our own `/whisper/MODEL`."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from streamer.daemon.backend import RecordingQueue, Transcription
from streamer.errors import StreamerError, UploadError
from streamer.protocols import deepgram, openai_rest
from streamer.protocols.adapter import read_query
from streamer.protocols.recordings import RecordedSegment
from streamer.server.responses import HEADERS, respond, respond_json
from streamer.server.uploads import Uploads, unless_gone


class Rest:
    """Answers requests that bring a recording, or ask for models."""

    def __init__(self, recordings: RecordingQueue, uploads: Uploads) -> None:
        self._recordings = recordings
        self._uploads = uploads

    async def openai(self, request: Request, *, task: Literal["transcribe", "translate"]) -> Response:
        if _is_json(request):
            raise UploadError("the body is JSON: expected a form (multipart/form-data) with the recording as `file`")
        async with AsyncExitStack() as stack:
            upload = await stack.enter_async_context(self._uploads.take(request))
            asked = msgspec.structs.replace(read_query(upload.fields, openai_rest.Asked), task=task)
            job = stack.enter_context(await self._recordings.open(upload.path, asked.options, asked.model))
            if not asked.stream:
                return _answer(asked, await unless_gone(request, _collect(job)), job)
            segments = aiter(job)
            # An error that comes before the text is the answer.
            first = await unless_gone(request, anext(segments, None))
            text = openai_rest.TextStream(finals=asked.format == "verbose_json")
            return _TextResponse(_events(text, first, segments), stack.pop_all())

    async def whisper(self, request: Request) -> Response:
        name = request.path_params["model"]
        asked = read_query(request.query_params, openai_rest.AskedOfModel)
        await asyncio.to_thread(self._recordings.find, name)
        async with self._uploads.take(request) as upload:
            with await self._recordings.open(upload.path, asked.options, name) as job:
                segments = await unless_gone(request, _collect(job))
        if asked.format == "verbose_json":
            return _answer(asked, segments, job)
        body = openai_rest.write(asked.format, [segment.final for segment in segments], job.duration_s, job.model)
        return respond(HTTPStatus.OK, body.encode(), openai_rest.FILE_FORMATS[asked.format])

    async def listen(self, request: Request) -> Response:
        query = deepgram.read_query(request.query_params)
        if _is_json(request):
            raise UploadError("the body is JSON: recordings at other addresses are not fetched; send the audio itself")
        async with self._uploads.take(request) as upload:
            with await self._recordings.open(upload.path, query.options) as job:
                segments = await unless_gone(request, _collect(job))
            sha256 = await asyncio.to_thread(_sha256, upload.path)
        answer = deepgram.write_answer(
            query,
            segments,
            sha256=sha256,
            duration_s=job.duration_s,
            model=job.model,
            language=job.language,
        )
        return respond_json(HTTPStatus.OK, answer)

    async def models(self, request: Request) -> Response:
        models = await asyncio.to_thread(self._recordings.models)
        data = [openai_rest.describe_model(model) for model in models]
        return respond_json(HTTPStatus.OK, {"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        model = await asyncio.to_thread(self._recordings.find, name)
        return respond_json(HTTPStatus.OK, {**openai_rest.describe_model(model), "id": name})


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("application/json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _collect(job: Transcription) -> list[RecordedSegment]:
    return [segment async for segment in job]


def _answer(asked: openai_rest.AnyAsked, segments: list[RecordedSegment], job: Transcription) -> Response:
    content_type, body = openai_rest.answer(asked, segments, job.duration_s, job.language)
    return respond(HTTPStatus.OK, body.encode(), content_type)


class _TextResponse(StreamingResponse):
    """Server-sent events; what produces them is closed afterwards, also if the client disconnects."""

    def __init__(self, events: AsyncIterator[str], stack: AsyncExitStack) -> None:
        super().__init__(events, headers=HEADERS, media_type="text/event-stream")
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _events(
    stream: openai_rest.TextStream, first: RecordedSegment | None, others: AsyncIterator[RecordedSegment]
) -> AsyncIterator[str]:
    try:
        if first is not None:
            yield stream.delta(first)
            async for segment in others:
                yield stream.delta(segment)
        yield stream.done()
    except StreamerError as error:
        yield stream.error(error.status, str(error))
