"""One line a request, without secrets, and bytes counted as they pass."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from streamer.log import JsonFormatter
from streamer.server.accesslog import AccessLog, logger
from tests.builders import final
from tests.unit.protocols.recorded import segment
from tests.wire.harness import NotedRecordings, added, bearer, closing, serving, within


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger.name)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return what each line has, and nothing that all lines have, or that takes time."""
    found = []
    for record in caplog.records:
        if record.name == logger.name:
            line: dict[str, Any] = json.loads(JsonFormatter().format(record))
            fields = {key: line[key] for key in line if key not in ("time", "level", "logger", "message")}
            text = " ".join(f"{key}={value}" for key, value in fields.items() if key != "session")
            assert record.getMessage() == text
            assert 0 <= fields.pop("duration_s") < 1000
            found.append(fields)
    return found


async def test_a_request_is_one_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    secret = added(tmp_path / "tokens.json", "phone")
    recordings = NotedRecordings(segment(1, "Grüße"))
    async with serving(token_file=str(tmp_path / "tokens.json"), recordings=recordings) as running:
        answer = await running.ask("POST /whisper/nano.en", b"abc", **bearer(secret))
        await running.ask("GET /metrics?token=secret")
    who = {"client": "127.0.0.1", "token": "phone", "method": "POST", "path": "/whisper/nano.en"}
    assert lines(caplog)[0] == {**who, "status": 200, "bytes_in": 3, "bytes_out": len(answer.content)}
    assert lines(caplog)[1].items() >= {"token": "-", "path": "/metrics", "status": 401}.items()
    assert "secret" not in caplog.text
    assert secret not in caplog.text


async def test_a_websocket_is_one_line_with_its_close_code(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(max_subscribers=1) as running:
        async with running.streaming() as (client, _):
            await client.close(1001)
        async with running.captions() as client:
            async with running.socket("/v1/captions") as other:
                assert (await closing(other))[0] == 1013
            running.log.append(final("Grüße"))
            sent = await within(client.recv(decode=False))
        with pytest.raises(InvalidStatus) as refused:
            await running.socket("/v1/stream", additional_headers={"Origin": "http://evil.example"})
    found = {(line["path"], line.get("close_code")): line for line in lines(caplog)}
    stream = found["/v1/stream", 1001]
    assert (stream["method"], stream["status"], stream["bytes_in"], stream["session"]) == ("GET", 101, 640, "client-1")
    full = found["/v1/captions", 1013]
    assert (full["status"], full["bytes_out"]) == (101, 0)
    assert found["/v1/captions", 1000]["bytes_out"] > len(sent) > len(sent.decode())
    denied = found["/v1/stream", None]
    assert (denied["status"], denied["bytes_out"]) == (403, len(refused.value.response.body or b""))


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
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    counts: list[int] = []
    log = AccessLog(fail, counts.append, counts.append)
    with pytest.raises(ZeroDivisionError):
        await log({"type": "http", "method": "GET", "path": "/", **path}, fail, fail)  # type: ignore[arg-type]
    assert lines(caplog) == [
        {"client": "unix", "token": "-", "method": "GET", "path": shown, "status": 500, "bytes_in": 0, "bytes_out": 0}
    ]


async def test_nothing_is_logged_unless_asked_for_and_bytes_are_counted_then_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, logger.name)
    async with serving(recordings=NotedRecordings()) as running:
        await running.ask("POST /whisper/nano.en", b"abc")
        await running.value("streamer_received_bytes_total", {}, 3)
    assert lines(caplog) == []
