"""Bodies to files: raw and in forms, within limits; and what becomes of a body that is refused."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from streamer.errors import (
    BusyError,
    StreamerError,
    UploadError,
)
from streamer.server.responses import respond_failure
from streamer.server.uploads import Uploads
from streamer.settings.table import ServerSettings
from tests.wire.support import serving, within

MAX_BYTES = 3_000_000
AUDIO = bytes(range(256)) * 6_000
FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\naudio\r\n--x--\r\n'


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, StreamerError)
    return respond_failure(error, request.url.path)


class Taken:
    """An application that takes uploads and tells what came."""

    def __init__(self, max_open: int = 2) -> None:
        settings = ServerSettings(max_upload_mb=MAX_BYTES / 1e6, max_recordings=max_open)
        self.uploads = Uploads(lambda: settings)
        self.paths: list[Path] = []
        # Cleared to hold requests.
        self.go = asyncio.Event()
        self.go.set()
        self.app: ASGIApp = Starlette(
            routes=[Route("/", self.take, methods=["POST"])],
            exception_handlers={UploadError: _refuse, BusyError: _refuse},
        )

    async def take(self, request: Request) -> Response:
        async with self.uploads.take(request) as upload:
            self.paths.append(upload.path)
            await self.go.wait()
            n_bytes, fields = upload.path.stat().st_size, upload.fields.multi_items()
        return JSONResponse({"n_bytes": n_bytes, "fields": fields})

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")


async def pieces(n_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(n_bytes // 10_000):
        yield bytes(10_000)


async def test_a_body_becomes_a_file_that_goes_with_the_request() -> None:
    taken = Taken()
    async with taken.client() as client:
        assert (await client.post("/", content=AUDIO)).json() == {"n_bytes": len(AUDIO), "fields": []}
        assert (await client.post("/", content=pieces(50_000))).json()["n_bytes"] == 50_000
    assert len(taken.paths) == 2
    assert not any(path.parent.exists() for path in taken.paths)


async def test_a_form_gives_its_file_and_its_fields_in_any_order() -> None:
    taken = Taken()
    files: Any = [
        ("timestamp_granularities[]", (None, "word")),
        ("other", ("b.wav", b"no")),
        ("file", ("a.mp3", AUDIO)),
    ]
    files += [("timestamp_granularities[]", (None, "segment"))]
    async with taken.client() as client:
        told = (await client.post("/", files=files)).json()
        assert told["fields"] == [["timestamp_granularities[]", "word"], ["timestamp_granularities[]", "segment"]]
        assert told["n_bytes"] == len(AUDIO)
        # Whatever its name, where it is the only one.
        assert (await client.post("/", files={"audio": ("../a", b"abc")})).json()["n_bytes"] == 3


@pytest.mark.skipif(not hasattr(psutil.Process, "io_counters"), reason="this system does not count what is written")
@pytest.mark.parametrize("arguments", [{"content": AUDIO}, {"files": {"file": AUDIO}}])
async def test_a_recording_is_written_once(arguments: dict[str, Any]) -> None:
    taken, process = Taken(), psutil.Process()
    async with taken.client() as client:
        before = process.io_counters().write_chars
        assert (await client.post("/", **arguments)).json()["n_bytes"] == len(AUDIO)
        assert process.io_counters().write_chars - before < 1.5 * len(AUDIO)


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (413, {"content": bytes(MAX_BYTES + 1)}),
        (413, {"files": {"file": bytes(MAX_BYTES)}}),
        (400, {"content": b""}),
        (400, {"files": {"file": b""}}),
        (400, {"files": {"model": (None, "x")}}),
        (400, {"files": [("file", b"x"), *[("f", (None, "x"))] * 50]}),
        (400, {"files": {"file": b"x", "prompt": (None, "x" * 200_000)}}),
        (400, {"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}}),
        (400, {"content": b"nonsense", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}),
        (400, {"content": FORM, "headers": {"Content-Type": "multipart/form-data; boundary=x; charset=undefined"}}),
    ],
)
async def test_what_is_no_recording_is_refused(status: int, arguments: dict[str, object]) -> None:
    taken = Taken()
    async with taken.client() as client:
        response = await client.post("/", **arguments)  # type: ignore[arg-type]
        assert (response.status_code, set(response.json())) == (status, {"error"})
        assert (await client.post("/", content=b"next")).status_code == 200


async def test_more_than_so_many_at_once_are_refused() -> None:
    taken = Taken(max_open=1)
    taken.go.clear()
    async with taken.client() as client:
        first = asyncio.create_task(client.post("/", content=AUDIO))
        while not taken.paths:
            await asyncio.sleep(0)
        second = await client.post("/", content=AUDIO)
        assert (second.status_code, second.headers["retry-after"]) == (429, "5")
        taken.go.set()
        assert (await first).status_code == 200


async def test_the_rest_of_a_refused_body_is_not_waited_for() -> None:
    async with serving(token="x" * 16, header_timeout_s=0.1) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /v1/listen HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nbegun")
        assert (await within(reader.read())).startswith(b"HTTP/1.1 401 ")
        writer.close()
