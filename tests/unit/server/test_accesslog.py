"""One line a request, without secrets, and bytes counted as they pass."""

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import count
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


async def serve(
    scope: Scope, received: Sequence[Message] = (), sent: Sequence[Message] = (), error: Exception | None = None
) -> tuple[int, int, list[Message]]:
    """Serve a request whose application receives and sends these messages, on a clock of whole seconds.

    Return the bytes that were counted as received and sent, and the messages that were passed on.
    """
    counted: dict[str, list[int]] = {"in": [], "out": []}
    passed, waiting, seconds = [], [*received], count()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in received:
            await receive()
        scope["state"] = {"caller": SimpleNamespace(name="phone"), "session": "0123456789abcdef"}
        for message in sent:
            await send(message)
        if error is not None:
            raise error

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        passed.append(message)

    log = AccessLog(app, counted["in"].append, counted["out"].append, clock=lambda: float(next(seconds)))
    await log({**scope}, receive, send)
    return sum(counted["in"]), sum(counted["out"]), passed


def fields(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Return what the one line has, and nothing that every line has."""
    (record,) = caplog.records
    line: dict[str, Any] = json.loads(JsonFormatter().format(record))
    text = {key: str(value) for key, value in line.items() if key not in ("time", "level", "logger", "message")}
    assert record.getMessage() == " ".join(f"{key}={value}" for key, value in text.items() if key != "session")
    return {key: line[key] for key in text}


async def test_a_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    answer: list[Message] = [
        {"type": "http.response.start", "status": 200},
        {"type": "http.response.body", "body": b"12345"},
    ]
    request: list[Message] = [{"type": "http.request", "body": b"abc"}]
    assert await serve({**GET, "client": ("192.0.2.7", 4711)}, request, answer) == (3, 5, answer)
    who = {"client": "192.0.2.7", "token": "phone", "method": "GET", "path": "/metrics"}
    what = {"status": 200, "duration_s": 1.0, "bytes_in": 3, "bytes_out": 5, "session": "01234567"}
    assert fields(caplog) == {**who, **what}


CONNECT, ACCEPT = {"type": "websocket.connect"}, {"type": "websocket.accept"}
DATA, LEFT = {"type": "websocket.receive", "bytes": b"1234"}, {"type": "websocket.disconnect", "code": 1001}
CLOSE = {"type": "websocket.close", "code": 1013, "reason": "busy"}
DENIED = [
    {"type": "websocket.http.response.start", "status": 401},
    {"type": "websocket.http.response.body", "body": b"no"},
]


@pytest.mark.parametrize(
    ("received", "sent", "expected"),
    [
        ([CONNECT, DATA, LEFT], [ACCEPT, {"type": "websocket.send", "text": "ü"}], (101, 1001, 4, 2)),
        ([CONNECT], [ACCEPT, CLOSE], (101, 1013, 0, 0)),
        ([CONNECT], [ACCEPT, {"type": "websocket.close"}], (101, 1000, 0, 0)),
        ([CONNECT], [CLOSE], (403, None, 0, 0)),
        ([CONNECT], DENIED, (401, None, 0, 2)),
    ],
    ids=["left", "closed", "closed without a code", "refused", "denied"],
)
async def test_a_websocket_is_one_line_with_its_close_code(
    caplog: pytest.LogCaptureFixture, received: list[Message], sent: list[Message], expected: tuple[int | None, ...]
) -> None:
    await serve({**SOCKET, "client": ("::1", 1)}, received, sent)
    line = fields(caplog)
    assert (line["status"], line.get("close_code"), line["bytes_in"], line["bytes_out"]) == expected


async def test_a_failure_is_logged_as_500_and_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        await serve({**GET, "client": None}, error=ZeroDivisionError())
    line = fields(caplog)
    assert (line["status"], line["client"]) == (500, "unix")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ({"raw_path": b"/v1/sessions/0123456789abcdef.txt"}, "/v1/sessions/01234567....txt"),
        ({"path": "/\x1b[2J\n x", "raw_path": None}, r"/\x1b[2J\n%20x"),
        ({"raw_path": b"/" + 10_000 * b"\x9b"}, "/" + 199 * r"\x9b"),
    ],
    ids=["session", "control", "long"],
)
async def test_a_path_can_neither_forge_a_line_nor_reveal_a_session(
    caplog: pytest.LogCaptureFixture, path: dict[str, Any], shown: str
) -> None:
    await serve({**GET, **path})
    assert fields(caplog)["path"] == shown


async def test_nothing_is_logged_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    logger.setLevel(logging.CRITICAL)
    assert (await serve(GET, [{"type": "http.request", "body": b"abc"}]))[0] == 3
    assert caplog.records == []
