"""The front as a whole, without a socket, and the history that it answers from."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import h11
from prometheus_client import CollectorRegistry

from streamer.errors import ConfigError, StreamerError
from streamer.events import Final, Gap, Ready, Word
from streamer.server.front import Server
from streamer.server.history import History
from streamer.server.interfaces import Services
from streamer.settings.table import ServerSettings
from tests.server.support import RecordingInput, RecordingStreams, opened_log
from tools.parsers.table import Parser, makes_parsers, text, written

REQUESTS = (
    b"GET /v1/sessions?q=%22good%20morning%22+w%C3%B6rld&limit=5&before=9 HTTP/1.1\nhost: 127.0.0.1\norigin: http://127.0.0.1",
    b"GET /v1/sessions/day-1.txt HTTP/1.1\nhost: localhost:80\naccept: text/plain",
    b"DELETE /v1/sessions/day-2 HTTP/1.1\nhost: [::1]\nauthorization: Bearer x",
    b"GET /v1/captions?after=5&session=day-1 HTTP/1.1\nhost: 127.0.0.1\nupgrade: websocket\ncontent-length: 5",
    b"POST /v1/input/pause HTTP/1.1\nhost: 127.0.0.1\nx-forwarded-for: 1.2.3.4, 5.6.7.8\ntransfer-encoding: chunked",
    b"GET /captions.js?token=a HTTP/1.1\nhost: 127.0.0.1\ncookie: a=b",
    b"GET /healthz HTTP/1.1\nhost: 127.0.0.1",
    b"GET /metrics HTTP/1.1\nhost: 127.0.0.1",
)
QUERIES = (b'good "every morning" w\xc3\xb6rld', "日本 語".encode(), b"a* NEAR(b c) -d AND ^x:y", b"\x00\x01\x02", b'"')


@makes_parsers
def _front(folder: Path) -> list[Parser]:
    path = folder / "history.db"
    with contextlib.closing(History(path).start()) as history:
        for name in ("day-1", "day-2"):
            keep = history.keeper(source="speech.wav")
            keep(Ready(model="nano.en", device={}, sample_rate=16_000, language="en").stamped(1, name), lambda: None)
            for seq in range(2, 30):
                spoken = (Word(word=" Good", start=seq, end=seq + 0.5, probability=0.9, stable=True),)
                text_of = f"Good morning wörld {seq}"
                keep(
                    Final(
                        segment=seq,
                        start=seq,
                        end=seq + 0.5,
                        text=text_of,
                        words=spoken,
                        language="en",
                        no_speech_prob=0.1,
                        avg_logprob=-0.1,
                    ).stamped(seq, name),
                    lambda: None,
                )
            keep(Gap(start=31, end=32, reason="overload").stamped(30, name), lambda: None)
    file = History(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = folder / "damaged.db"
    services = Services(
        streams=RecordingStreams(),
        health=lambda: {"status": "ok"},
        feed=opened_log(),
        input_now=RecordingInput,
        history=History(written(folder / "served.db", path.read_bytes())),
    )
    server = Server(ServerSettings(port=0, proxies=("10.0.0.0/8",)), services, CollectorRegistry())
    return [
        Parser("requests", REQUESTS, lambda data: asyncio.run(_ask(server._config.app, data)), ()),
        Parser("searches of the history", QUERIES, lambda data: file.search(text(data), 10), (ConfigError,)),
        Parser(
            "a history file", (path.read_bytes(),), lambda data: _read_all(written(damaged, data)), (StreamerError,)
        ),
    ]


async def _ask(app: Any, data: bytes) -> None:  # noqa: ANN401 - an ASGI application
    """Ask as uvicorn does, whose h11 refuses much; raise AssertionError unless there is one answer, and no failure."""
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(data.replace(b"\n", b"\r\n") + b"\r\n\r\n")
        request = connection.next_event()
    except h11.RemoteProtocolError:
        return
    if not isinstance(request, h11.Request):
        return
    raw_path, _, query = request.target.partition(b"?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method.decode("ascii"),
        "scheme": "http",
        "path": unquote(raw_path.decode("ascii")),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        "client": ("10.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
        "extensions": {},
    }
    statuses: list[int] = []

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    bodies = iter([b""])

    async def receive() -> dict[str, Any]:
        for body in bodies:
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()  # it stays connected
        return {}

    await app(scope, receive, send)
    assert len(statuses) == 1, f"{statuses} answers"
    assert statuses[0] < 500, f"status {statuses[0]}"


def _read_all(path: Path) -> None:
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    file = History(path)
    file.check()
    for session in file.sessions(100):
        for _ in file.transcript(session):
            pass
    file.search("good morning", 10)
