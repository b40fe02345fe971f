"""Recordings that requests bring: from a body to a file."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from starlette.datastructures import ImmutableMultiDict, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from streamer.errors import BusyError, UploadError
from streamer.settings.table import ServerSettings

MAX_FIELDS = 32  # of a form
MAX_FIELD_BYTES = 128 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Upload:
    """A recording that was received: its file, which has no suffix, and the fields of the form it came in."""

    path: Path
    fields: ImmutableMultiDict[str, str]


class Uploads:
    """Receives recordings, up to `server.max_recordings` at once."""

    def __init__(self, settings: Callable[[], ServerSettings]) -> None:
        """`settings` returns those of now: a reload may change the limits."""
        self._settings = settings
        self._n_open = 0

    @contextlib.asynccontextmanager
    async def take(self, request: Request) -> AsyncIterator[Upload]:
        """Receive the recording in a request: its body, or of a form the part `file`, else the first file.

        The file is deleted when the block is left. Raises BusyError if too many are open, UploadError if the recording
        is missing, empty or too large, or the form cannot be read; ClientDisconnect.
        """
        most = self._settings().max_recordings
        if self._n_open >= most:
            raise BusyError(
                f"{most} recordings are in progress, the most allowed (server.max_recordings): try again later"
            )
        self._n_open += 1
        try:
            with tempfile.TemporaryDirectory(prefix="streamer-", ignore_cleanup_errors=True) as folder:
                upload = await self._receive(request, Path(folder))
                if not upload.path.stat().st_size:
                    raise UploadError("the recording is empty: expected a file of audio")
                yield upload
        finally:
            self._n_open -= 1

    async def _receive(self, request: Request, folder: Path) -> Upload:
        if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            return await self._receive_form(request, folder)
        path = folder / "recording"
        with path.open("xb") as file:
            async for chunk in self._bounded(request):
                await asyncio.to_thread(file.write, chunk)
        return Upload(path, ImmutableMultiDict())

    async def _receive_form(self, request: Request, folder: Path) -> Upload:
        limits: dict[str, Any] = {"max_files": MAX_FIELDS, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD_BYTES}
        try:
            form = await _FormParser(folder, request.headers, self._bounded(request), **limits).parse()
        except (MultiPartException, ValueError) as error:  # ValueError: an unknown charset
            reason = error.message.rstrip(".").lower() if isinstance(error, MultiPartException) else "its charset"
            raise UploadError(f"the form cannot be read ({reason}): expected multipart/form-data in UTF-8") from None
        try:
            files = [(name, part) for name, part in form.multi_items() if isinstance(part, UploadFile)]
            part = next((part for name, part in files if name == "file"), files[0][1] if files else None)
            if part is None:
                raise UploadError("the form has no file: expected the recording as its part 'file'")
            fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        finally:
            await form.close()
        return Upload(Path(part.file.name), ImmutableMultiDict(fields))

    async def _bounded(self, request: Request) -> AsyncGenerator[bytes, None]:
        n_bytes, most = 0, round(self._settings().max_upload_mb * 1e6)
        async for chunk in request.stream():
            n_bytes += len(chunk)
            if n_bytes > most:
                message = f"the recording has more than {most} bytes (server.max_upload_mb): send a shorter one"
                raise UploadError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            yield chunk


class _FormParser(MultiPartParser):
    """Parses a form; its files go into a folder, where Starlette's own have no names, and would have to be copied."""

    def __init__(self, folder: Path, *arguments: Any, **limits: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(*arguments, **limits)
        self._folder = folder

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if (upload := self._current_part.file) is not None:
            upload.file = (self._folder / str(self._current_files)).open("x+b")
            self._files_to_close_on_error.append(upload.file)  # type: ignore[arg-type]


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for work; if the client disconnects before, cancel it and raise ClientDisconnect."""
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
