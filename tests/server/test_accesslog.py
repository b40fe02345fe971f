"""One line a request, without secrets, and bytes counted as they pass."""

import json
import logging
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from streamer.log import JsonFormatter
from streamer.server.accesslog import AccessLog, logger

GET = {"type": "http", "method": "GET", "path": "/metrics", "raw_path": b"/metrics", "query_string": b"token=secret"}
SOCKET = {"type": "websocket", "path": "/v1/stream", "raw_path": b"/v1/stream", "query_string": b"token=secret"}


@pytest.fixture(autouse=True)
def logged() -> Iterator[None]:
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


class Run:
    """An application that receives what is there and sends what it is told, on a clock of whole seconds."""

    def __init__(self, received: Sequence[Message], sent: Sequence[Message], error: Exception | None = None) -> None:
        self._received, self._sent, self._error = [*received], sent, error
        self.n_received = self.n_sent = 0
        self.passed: list[Message] = []
        self._now_s = 0

    async def serve(self, scope: Scope) -> None:
        def count(name: str, n_bytes: int) -> None:
            setattr(self, name, getattr(self, name) + n_bytes)

        def clock() -> float:
            self._now_s += 1
            return self._now_s

        async def receive() -> Message:
            return self._received.pop(0)

        async def send(message: Message) -> None:
            self.passed.append(message)

        log = AccessLog(
            self._app,
            on_received=lambda n_bytes: count("n_received", n_bytes),
            on_sent=lambda n_bytes: count("n_sent", n_bytes),
            clock=clock,
        )
        await log(scope, receive, send)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for _ in [*self._received]:
            await receive()
        if scope["type"] in ("http", "websocket"):
            scope["state"] = {"caller": SimpleNamespace(name="phone"), "session": "0123456789abcdef"}
        for message in self._sent:
            await send(message)
        if self._error is not None:
            raise self._error


def fields(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = caplog.records
    line: dict[str, Any] = json.loads(JsonFormatter().format(record))
    assert "secret" not in record.getMessage()
    return {key: line[key] for key in line if key not in ("time", "level", "logger", "message")}


async def test_a_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(
        [{"type": "http.request", "body": b"abc"}],
        [{"type": "http.response.start", "status": 200}, {"type": "http.response.body", "body": b"12345"}],
    )
    await run.serve({**GET, "client": ("192.0.2.7", 4711)})
    assert fields(caplog) == {
        "client": "192.0.2.7",
        "token": "phone",
        "method": "GET",
        "path": "/metrics",
        "status": 200,
        "duration_s": 1.0,
        "bytes_in": 3,
        "bytes_out": 5,
        "session": "01234567",
    }
    assert caplog.messages[0].startswith(
        "client=192.0.2.7 token=phone method=GET path=/metrics status=200 duration_s=1"
    )
    assert (run.n_received, run.n_sent) == (3, 5)
    assert run.passed[1]["body"] == b"12345"


CONNECT, ACCEPT = {"type": "websocket.connect"}, {"type": "websocket.accept"}


@pytest.mark.parametrize(
    ("received", "sent", "status", "code", "n_in", "n_out"),
    [
        (
            [CONNECT, {"type": "websocket.receive", "bytes": b"1234"}, {"type": "websocket.disconnect", "code": 1001}],
            [ACCEPT, {"type": "websocket.send", "text": "ü"}],
            *(101, 1001, 4, 2),
        ),
        ([CONNECT], [ACCEPT, {"type": "websocket.close", "code": 1013, "reason": "busy"}], 101, 1013, 0, 0),
        ([CONNECT], [{"type": "websocket.close", "code": 1000}], 403, None, 0, 0),
        (
            [CONNECT],
            [
                {"type": "websocket.http.response.start", "status": 401},
                {"type": "websocket.http.response.body", "body": b"no"},
            ],
            *(401, None, 0, 2),
        ),
    ],
    ids=["left", "closed", "refused", "denied"],
)
async def test_a_websocket_is_one_line_with_its_close_code(
    caplog: pytest.LogCaptureFixture,
    received: list[Message],
    sent: list[Message],
    status: int,
    code: int | None,
    n_in: int,
    n_out: int,
) -> None:
    await Run(received, sent).serve({**SOCKET, "client": ("::1", 1)})
    told = fields(caplog)
    assert (told["status"], told.get("close_code")) == (status, code)
    assert (told["bytes_in"], told["bytes_out"]) == (n_in, n_out)


async def test_a_failure_is_told_as_500_and_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="x"):
        await Run([], [], ValueError("x")).serve({**GET, "client": None})
    told = fields(caplog)
    assert (told["status"], told["client"]) == (500, "unix")


async def test_a_path_can_neither_forge_a_line_nor_tell_a_session(caplog: pytest.LogCaptureFixture) -> None:
    await Run([], []).serve({**GET, "path": "x", "raw_path": b"/v1/sessions/0123456789abcdef.txt"})
    await Run([], []).serve({**GET, "path": "/\x1b[2J\n x", "raw_path": None})
    await Run([], []).serve({**GET, "path": "x", "raw_path": b"/" + 10_000 * b"\x9b"})
    paths = [record.__dict__["fields"]["path"] for record in caplog.records]
    assert paths[0] == "/v1/sessions/01234567....txt"
    assert paths[1] == r"/\x1b[2J\n%20x"
    assert len(paths[2]) < 1000
    assert paths[2].isascii()


async def test_nothing_is_logged_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    logger.setLevel(logging.CRITICAL)
    run = Run([{"type": "http.request", "body": b"abc"}], [])
    await run.serve(dict(GET))
    assert caplog.records == []
    assert run.n_received == 3


async def test_what_is_no_request_passes(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([{"type": "lifespan.startup"}], [{"type": "lifespan.startup.complete"}])
    await run.serve({"type": "lifespan"})
    assert run.passed == [{"type": "lifespan.startup.complete"}]
    assert caplog.records == []
