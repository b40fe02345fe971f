"""Bodies to files: raw and in forms, within limits; and what becomes of a body that is refused."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from streamer.errors import (
    AudioFileError,
    BusyError,
    InferenceError,
    ModelError,
    StoppingError,
    StreamerError,
    UnknownModelError,
    UploadError,
)
from streamer.server.uploads import ReadBodies, Uploads, answering, refusal_of
from streamer.settings.table import ServerSettings
from tests.server.support import within

MAX_BYTES = 3_000_000
AUDIO = bytes(range(256)) * 6_000
FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\naudio\r\n--x--\r\n'


class Taken:
    """An application that takes uploads and tells what came."""

    def __init__(self, max_open: int = 2) -> None:
        self.uploads = Uploads(ServerSettings(max_upload_mb=MAX_BYTES / 1e6, max_recordings=max_open))
        self.paths: list[Path] = []
        # Cleared to hold requests.
        self.go = asyncio.Event()
        self.go.set()
        self.app: ASGIApp = Starlette(routes=[Route("/", answering(self.take), methods=["POST"])])

    async def take(self, request: Request) -> Response:
        async with self.uploads.take(request) as upload:
            self.paths.append(upload.path)
            await self.go.wait()
            assert hashlib.sha256(upload.path.read_bytes()).hexdigest() == upload.sha256
            told = {"n_bytes": upload.n_bytes, "fields": upload.fields.multi_items()}
        return JSONResponse(told)

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


@pytest.mark.parametrize(
    ("status", "headers", "n_read", "closes"),
    [
        (401, {"content-length": "100000"}, 100_000, False),
        (401, {"content-length": "4000000"}, 4_000_000, True),
        (401, {"transfer-encoding": "chunked"}, 4_000_000, True),
        (401, {"content-length": "100000", "expect": "100-continue"}, 0, True),
        (401, {}, 0, False),
        (200, {"content-length": "100000"}, 0, False),
    ],
)
async def test_an_error_is_answered_before_the_rest_of_the_body_is_read(
    status: int, headers: dict[str, str], n_read: int, closes: bool
) -> None:
    to_come = 4_000_000 if "transfer-encoding" in headers else int(headers.get("content-length", "0"))
    left = to_come
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal left
        assert any(message["type"] == "http.response.body" for message in sent)  # whole: the length is in its head
        left -= 100_000
        return {"type": "http.request", "body": bytes(100_000), "more_body": left > 0}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await ReadBodies(Response(b"why", status), lambda scope: True)(scope, receive, send)
    assert to_come - left == n_read
    assert ((b"connection", b"close") in sent[0]["headers"]) == closes
    assert b"".join(message["body"] for message in sent[1:]) == b"why"
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(sent) - 2) + [False]


async def test_who_sends_the_rest_of_a_refused_body_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.uploads.DRAIN_S", 0.05)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"10")]}
    await within(ReadBodies(Response(status_code=401), lambda scope: True)(scope, receive, send))
    assert not sent[-1].get("more_body", False)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BusyError("x"), 429),
        (StoppingError("x"), 503),
        (UnknownModelError("x"), 404),
        (ModelError("x"), 500),
        (AudioFileError("x"), 400),
        (UploadError("x", 413), 413),
        (InferenceError("x"), 500),
    ],
)
def test_each_error_has_its_status(error: StreamerError, status: int) -> None:
    assert refusal_of(error).status == status
    assert ("Retry-After" in refusal_of(error).headers) == (status in (429, 503))
