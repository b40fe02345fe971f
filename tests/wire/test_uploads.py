"""Bodies to files: raw and in forms; tests/wire/test_refusals.py has what is refused."""

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

from streamer.errors import BusyError, UploadError
from streamer.server.uploads import Uploads
from streamer.settings.table import ServerSettings

AUDIO = bytes(range(256)) * 6_000


class Taken:
    """An application that takes uploads and answers what came."""

    def __init__(self) -> None:
        settings = ServerSettings(max_upload_mb=3.0, max_recordings=1)
        self.uploads = Uploads(lambda: settings)
        self.paths: list[Path] = []
        # Cleared to hold requests.
        self.go = asyncio.Event()
        self.go.set()
        app = Starlette(routes=[Route("/", self.take, methods=["POST"])])
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    async def take(self, request: Request) -> Response:
        try:
            async with self.uploads.take(request) as upload:
                self.paths.append(upload.path)
                await self.go.wait()
                n_bytes, fields = upload.path.stat().st_size, upload.fields.multi_items()
        except (BusyError, UploadError) as error:
            return JSONResponse({}, error.status)
        return JSONResponse({"n_bytes": n_bytes, "fields": fields})


async def pieces(n_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(n_bytes // 10_000):
        yield bytes(10_000)


async def test_a_body_becomes_a_file_that_goes_with_the_request() -> None:
    taken = Taken()
    assert (await taken.client.post("/", content=AUDIO)).json() == {"n_bytes": len(AUDIO), "fields": []}
    assert (await taken.client.post("/", content=pieces(3_000_000))).json()["n_bytes"] == 3_000_000
    assert (await taken.client.post("/", content=pieces(3_010_000))).status_code == 413
    assert (await taken.client.post("/", files={"file": bytes(3_000_000)})).status_code == 413
    assert len(taken.paths) == 2
    assert not any(path.parent.exists() for path in taken.paths)


async def test_a_form_gives_its_file_and_its_fields_in_any_order() -> None:
    taken = Taken()
    files: Any = [
        ("timestamp_granularities[]", (None, "word")),
        ("other", ("b.wav", b"no")),
        ("file", ("a.mp3", AUDIO)),
        ("timestamp_granularities[]", (None, "segment")),
    ]
    found = (await taken.client.post("/", files=files)).json()
    assert found["fields"] == [["timestamp_granularities[]", "word"], ["timestamp_granularities[]", "segment"]]
    assert found["n_bytes"] == len(AUDIO)
    # Whatever its name, if it is the only one.
    assert (await taken.client.post("/", files={"audio": ("../a", b"abc")})).json()["n_bytes"] == 3
    # A field has its bound, too.
    long: Any = {"file": b"x", "prompt": (None, "x" * 200_000)}
    assert (await taken.client.post("/", files=long)).status_code == 400


@pytest.mark.skipif(not hasattr(psutil.Process, "io_counters"), reason="this system does not count what is written")
@pytest.mark.parametrize("arguments", [{"content": AUDIO}, {"files": {"file": AUDIO}}])
async def test_a_recording_is_written_once(arguments: dict[str, Any]) -> None:
    taken, process = Taken(), psutil.Process()
    before = process.io_counters().write_chars
    assert (await taken.client.post("/", **arguments)).json()["n_bytes"] == len(AUDIO)
    assert process.io_counters().write_chars - before < 1.5 * len(AUDIO)


async def test_more_recordings_at_once_than_may_be_are_refused() -> None:
    taken = Taken()
    taken.go.clear()
    first = asyncio.create_task(taken.client.post("/", content=AUDIO))
    while not taken.paths:
        await asyncio.sleep(0)
    assert (await taken.client.post("/", content=AUDIO)).status_code == 429
    taken.go.set()
    assert (await first).status_code == 200
    assert (await taken.client.post("/", content=AUDIO)).status_code == 200
