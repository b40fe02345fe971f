"""Small servers on loopback that speak as Zoom, YouTube, receivers of webhooks and OBS do, and can be restarted.

And what the tests of outputs share.
"""

import abc
import base64
import contextlib
import hashlib
import json
import logging
import math
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from streamer.events import Final
from streamer.outputs.outputs import Output
from streamer.outputs.sink import Sink
from tests import builders
from tests.waiting import WAIT_S, wait_until


def numbered(number: int, text: str = "") -> Final:
    """Return a final of one second's speech, without words."""
    kinds: dict[str, Any] = {"seq": number, "session": "s", "segment": number, "words": ()}
    return builders.final(text or f"Words {number}.", start=float(number), end=number + 1.0, **kinds)


def spoken(number: int, *words: str) -> Final:
    """Return a final of one word each half second, from second 10."""
    text = " ".join(words)
    return builders.final(text, seq=number, session="s", start=10.0, words=builders.words(text, 10.0, step=0.5))


@contextlib.contextmanager
def sending(sink: Sink) -> Iterator[Output]:
    """Put a sink behind a queue, which sends all at the end."""
    output = Output("there", sink, first_delay_s=0.01)
    yield output
    finish(output)
    assert output.n_dropped == 0


def finish(output: Output) -> None:
    """Send what is queued."""
    output.end(time.monotonic() + WAIT_S)
    output.join()


def wait_failing(output: Output) -> None:
    """Wait until an attempt has failed."""
    wait_until(lambda: output.n_failures > 0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@dataclass
class Request:
    """What a client sent."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


# Status and body of an answer; CUT cuts the connection instead.
Answer = tuple[int, bytes]
CUT: Answer = (0, b"")


class StandIn(abc.ABC):
    """A server that runs within a `with` statement, and may be restarted at the same port."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abc.abstractmethod
    def start(self) -> None: ...

    @abc.abstractmethod
    def stop(self) -> None: ...


@dataclass
class WebStandIn(StandIn):
    """An HTTP server that answers as `answer` says, at one port through restarts."""

    answer: Callable[[Request], Answer]
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    retry_after: str = ""
    _server: ThreadingHTTPServer | None = None
    _connections: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                stand_in._connections.append(self.connection)

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                path, _, query = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(path, dict(urllib.parse.parse_qsl(query)), headers, body)
                stand_in.requests.append(request)
                answer = stand_in.answer(request)
                if answer is CUT:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.send_header("Retry-After", stand_in.retry_after)
                self.end_headers()
                self.wfile.write(answer[1])

            do_GET = do_POST  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Be gone, with all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()


class CaptionService:
    """Zoom and YouTube: numbered posts, of which one with a number that was there is taken for a retry."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.taken: list[Request] = []

        # What is answered instead, one after another, and whether the post is taken nevertheless.
        self.faults: list[tuple[Answer | None, bool]] = []

        # What its clock shows; None: no time is answered.
        self.clock: datetime | None = None

    def __call__(self, request: Request) -> Answer:
        if request.path.endswith("/seq"):
            return 200, str(self.last or 0).encode()
        fault, is_taken = self.faults.pop(0) if self.faults else (None, True)
        if is_taken and (number := int(request.query["seq"])) != self.last:
            self.last = number
            self.taken.append(request)
        if fault is not None:
            return fault
        if self.clock is None:
            return 200, b""
        return 200, self.clock.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds").encode()

    def wait_for(self, n: int) -> None:
        """Wait until so many posts were taken."""
        wait_until(lambda: len(self.taken) >= n)


class ObsStandIn(StandIn):
    """OBS Studio's obs-websocket 5, as much of it as captions need."""

    def __init__(self, password: str = "", sources: tuple[str, ...] = ()) -> None:
        self.password = password
        self.sources = sources
        # Captions that are taken until the stream ends.
        self.room: float = math.inf
        self.rubbish = False
        self.captions: list[str] = []
        self.texts: list[str] = []
        self.n_identified = 0
        self.port = 0
        self._server: Server | None = None

    def start(self) -> None:
        self._server = serve(self._serve, "127.0.0.1", self.port, close_timeout=1)
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server = None

    def wait_for(self, n: int) -> None:
        """Wait until so many captions came."""
        wait_until(lambda: len(self.captions) >= n)

    def _serve(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            self._talk(connection)

    def _talk(self, connection: ServerConnection) -> None:
        hello: dict[str, Any] = {"obsWebSocketVersion": "5.5.2", "rpcVersion": 1}
        if self.password:
            hello["authentication"] = {"challenge": "Y2hhbGxlbmdl", "salt": "c2FsdA=="}
        connection.send("<html>" if self.rubbish else json.dumps({"op": 0, "d": hello}))
        identify = json.loads(connection.recv())
        assert identify["op"] == 1
        assert identify["d"]["rpcVersion"] == 1
        if self.password and identify["d"].get("authentication") != self._expected():
            connection.close(4009, "Authentication failed.")
            return
        self.n_identified += 1
        connection.send(json.dumps({"op": 2, "d": {"negotiatedRpcVersion": 1}}))
        while True:
            message = json.loads(connection.recv())
            assert message["op"] == 6
            request = message["d"]
            status = self._carry_out(request["requestType"], request["requestData"])
            connection.send(json.dumps({"op": 5, "d": {"eventType": "CustomEvent", "eventIntent": 1}}))
            answer = {key: request[key] for key in ("requestType", "requestId")} | {"requestStatus": status}
            connection.send(json.dumps({"op": 7, "d": answer}))

    def _carry_out(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        match name:
            case "SendStreamCaption" if len(self.captions) >= self.room:
                return {"result": False, "code": 501}
            case "SendStreamCaption":
                self.captions.append(data["captionText"].encode("utf-8")[:128].decode("utf-8", "ignore"))
            case "SetInputSettings" if data["inputName"] not in self.sources:
                return {"result": False, "code": 600, "comment": "No source was found."}
            case "SetInputSettings":
                self.texts.append(data["inputSettings"]["text"])
        return {"result": True, "code": 100}

    def _expected(self) -> str:
        secret = base64.b64encode(hashlib.sha256(f"{self.password}c2FsdA==".encode()).digest()).decode()
        return base64.b64encode(hashlib.sha256(f"{secret}Y2hhbGxlbmdl".encode()).digest()).decode()
