"""Recordings that requests bring: from a body to a file, and what goes wrong on the way to a response."""

import asyncio
import contextlib
import hashlib
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from starlette.datastructures import ImmutableMultiDict, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from streamer.errors import BusyError, UploadError
from streamer.settings.table import ServerSettings

logger = logging.getLogger(__name__)

MAX_FIELDS = 32  # of a form
MAX_FIELD_BYTES = 128 * 1024
WRITE_BYTES = 2**20  # written to the file at a time

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A recording that has come."""

    # Without a suffix, whatever its name was.
    path: Path
    n_bytes: int

    # Of the recording, in hexadecimal digits.
    sha256: str

    # Of a form, without its files.
    fields: ImmutableMultiDict[str, str] = field(default_factory=ImmutableMultiDict)


class Uploads:
    """Takes recordings, so many at once."""

    def __init__(self, settings: ServerSettings) -> None:
        self.max_bytes = round(settings.max_upload_mb * 1e6)
        self.max_open = settings.max_recordings
        # Those whose block has not been left.
        self._n_open = 0

    @contextlib.asynccontextmanager
    async def take(self, request: Request) -> AsyncIterator[Upload]:
        """Take the recording in a request: its body, or of a form the part `file`, or else the first that is a file.

        The file is there until the block is left. Raises BusyError where too many are being taken or transcribed,
        UploadError where there is none, it is empty or too large, or the form cannot be read; ClientDisconnect.
        """
        if self._n_open >= self.max_open:
            raise BusyError(f"{self.max_open} recordings are at work (server.max_recordings): try again later")
        self._n_open += 1
        try:
            with tempfile.TemporaryDirectory(prefix="streamer-", ignore_cleanup_errors=True) as folder:
                path = Path(folder) / "recording"
                if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
                    upload = await self._take_form(request, path)
                else:
                    n_bytes, digest = await _write(self._bounded(request), path)
                    upload = Upload(path=path, n_bytes=n_bytes, sha256=digest)
                if not upload.n_bytes:
                    raise UploadError("the recording is empty: expected a file of audio")
                yield upload
        finally:
            self._n_open -= 1

    async def _take_form(self, request: Request, path: Path) -> Upload:
        try:
            form = await MultiPartParser(
                request.headers,
                self._bounded(request),
                max_files=MAX_FIELDS,
                max_fields=MAX_FIELDS,
                max_part_size=MAX_FIELD_BYTES,
            ).parse()
        except (MultiPartException, ValueError) as error:  # ValueError: a charset that cannot be decoded
            reason = error.message.rstrip(".").lower() if isinstance(error, MultiPartException) else "its charset"
            raise UploadError(f"the form cannot be read ({reason}): expected multipart/form-data in UTF-8") from None
        try:
            files = [(name, part) for name, part in form.multi_items() if isinstance(part, UploadFile)]
            part = next((part for name, part in files if name == "file"), files[0][1] if files else None)
            if part is None:
                raise UploadError("the form has no file: expected the recording as its part 'file'")
            n_bytes, digest = await _write(_pieces(part), path)
            fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        finally:
            await form.close()
        return Upload(path=path, n_bytes=n_bytes, sha256=digest, fields=ImmutableMultiDict(fields))

    async def _bounded(self, request: Request) -> AsyncGenerator[bytes, None]:
        n_bytes = 0
        async for chunk in request.stream():
            n_bytes += len(chunk)
            if n_bytes > self.max_bytes:
                message = f"the body has more than {self.max_bytes} bytes (server.max_upload_mb): send a shorter one"
                raise UploadError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            yield chunk


async def _pieces(part: UploadFile) -> AsyncIterator[bytes]:
    while data := await part.read(WRITE_BYTES):
        yield data


async def _write(chunks: AsyncIterator[bytes], path: Path) -> tuple[int, str]:
    """Write a file; return how many bytes it has, and their SHA-256. The disk is waited for in a thread."""
    digest = hashlib.sha256()
    n_bytes = 0
    waiting = bytearray()

    def write(file: BinaryIO) -> None:
        digest.update(waiting)
        file.write(waiting)
        waiting.clear()

    with path.open("xb") as file:
        async for chunk in chunks:
            waiting += chunk
            n_bytes += len(chunk)
            if len(waiting) >= WRITE_BYTES:
                await asyncio.to_thread(write, file)
        await asyncio.to_thread(write, file)
    return n_bytes, digest.hexdigest()


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for work; where the client goes away before, cancel it and raise ClientDisconnect."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_gone(request))
    both: list[asyncio.Future[Any]] = [task, gone]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for future in both:
            future.cancel()
        await asyncio.wait(both)


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
