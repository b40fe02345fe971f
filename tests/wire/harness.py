"""One stage for tests of the server: `serving` runs it on a free port, with fakes that take notes, and its clients.

async with serving(max_subscribers=1) as running, running.captions() as client:
    running.log.append(final("good morning"))
    assert (await next_event(client)).type == "final"
    assert await running.status("GET /v1/input") == 200
"""
# ruff: noqa: ANN401 - settings and arguments are passed on

import asyncio
import contextlib
import json
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamer.audio.ring import RingBuffer
from streamer.audio.sources.base import Source
from streamer.constants import SAMPLE_RATE
from streamer.daemon.backend import Backend, RecordingQueue, Transcription
from streamer.daemon.clients import ClientStreams
from streamer.daemon.own_input import OwnInput
from streamer.daemon.rooms import Rooms
from streamer.daemon.streams import ClientStream
from streamer.engine.eventlog import EventLog
from streamer.engine.live_session import LiveSession
from streamer.errors import UnknownModelError, UnknownSessionError
from streamer.events import Error, Event, Final, Partial, from_json
from streamer.protocols.native import Command, StreamStart
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.server.context import Services
from streamer.server.front import Server
from streamer.server.tokens import TokenFile, new_token
from streamer.settings.table import ServerSettings, Settings
from tests import builders
from tests.builders import final, ready
from tests.waiting import WAIT_S, until

T = TypeVar("T")

SESSION = "client-1"  # name of the session of each recording stream
TOKEN = "a-secret-of-16-or-more"
SAMPLES_A_FINAL = 500
MODEL = ModelInfo(name="nano.en", created=7, loaded=True)

# What a recording yields, raises, or waits for.
Item = RecordedSegment | Exception | asyncio.Event


def opened_log(session: str = "s1", limit: int = 1000) -> EventLog:
    """Return the log of a session that has begun."""
    log = EventLog(session, limit)
    log.append(ready())
    return log


def wait_published(log: EventLog) -> None:
    """Wait until everything that was appended to a log is published, and so is in its history."""
    done = threading.Event()
    log.call_behind(done.set)
    assert done.wait(WAIT_S)


def added(path: Path, name: str, **known: Any) -> str:
    """Write a token into a file; return it."""
    secret, token = new_token(name, **known)
    TokenFile(path).change(lambda tokens: (*tokens, token))
    return secret


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# What the server serves.


class RecordingStream:
    """A client's stream that keeps its audio, and says how many bytes there were once it is over."""

    def __init__(self, start: StreamStart) -> None:
        self.start = start
        self.log = opened_log(SESSION)
        self.outlives = False
        self.complete = False
        self.in_use = asyncio.Lock()
        self.options: StreamStart = start
        self.audio = bytearray()
        # Commands, each with how many bytes of audio had come before.
        self.commands: list[tuple[str, int]] = []
        # Set when audio comes, and with each piece of audio and each command that is taken.
        self.writing = asyncio.Event()
        self.written = asyncio.Event()
        self.kept = asyncio.Event()
        self.abandoned = asyncio.Event()
        self.finished = asyncio.Event()
        # Cleared to hold `write` and the end back, as a full buffer and a slow model do.
        self.room = asyncio.Event()
        self.room.set()
        # Raised by the next `write`, and by the next `change`.
        self.failure: Exception | None = None
        self.refusal: Exception | None = None

    def report(self, error: Error) -> None:
        self.log.append(error)

    async def write(self, data: bytes) -> None:
        self.writing.set()
        await self.room.wait()
        if self.failure is not None:
            raise self.failure
        self.audio += data
        self.written.set()

    async def command(self, command: Command) -> None:
        self._note(command)

    async def change(self, options: StreamStart) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.options = options
        self._note("set")

    def finish(self) -> None:
        self.complete = True
        self._finishing = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        await self.room.wait()
        self.log.append(final(f"{len(self.audio)} bytes", segment=1))
        self.log.close()
        self.finished.set()

    def go_on(self) -> int:
        return len(self.audio) // 2

    def _note(self, command: str) -> None:
        self.commands.append((command, len(self.audio)))
        self.written.set()


class RecordingStreams:
    """Opens recording streams, or refuses."""

    def __init__(self) -> None:
        self.opened: list[RecordingStream] = []
        self.rooms = Rooms()
        # Whose token each caller showed, and set with the first.
        self.tenants: list[str] = []
        self.called = asyncio.Event()
        self.arrived = asyncio.Event()
        # Raised by the next `open`.
        self.refusal: Exception | None = None
        # Called with each new stream.
        self.prepare: Callable[[RecordingStream], None] = lambda stream: None

    async def open(self, start: StreamStart, *, tenant: str = "") -> RecordingStream:
        self._note(tenant)
        if self.refusal is not None:
            raise self.refusal
        stream = RecordingStream(start)
        self.prepare(stream)
        self.opened.append(stream)
        self.rooms.enter(cast("ClientStream", stream))
        self.arrived.set()
        return stream

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> RecordingStream:
        self._note(tenant)
        for stream in self.opened:
            if stream.log.session == session and not stream.abandoned.is_set():
                return stream
        raise UnknownSessionError("the session is not known: start another")

    def keep(self, stream: RecordingStream) -> None:
        stream.kept.set()

    def abandon(self, stream: RecordingStream) -> None:
        stream.log.close()
        stream.abandoned.set()

    give_up = abandon

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """Note nothing: these take no slot."""

    async def first(self) -> RecordingStream:
        await within(self.arrived.wait())
        return self.opened[0]

    def _note(self, tenant: str) -> None:
        self.tenants.append(tenant)
        self.called.set()


class RecordingInput:
    """The daemon's own input, which notes its commands."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.paused = False

    def do(self, command: str) -> None:
        self.commands.append(command)
        self.paused = {"pause": True, "resume": False}.get(command, self.paused)


class NotedRecording(Transcription):
    """A recording that yields, raises or waits for the items of its script."""

    def __init__(self, path: Path, options: RecordingOptions, script: Sequence[Item]) -> None:
        super().__init__(MODEL.name)
        self.path, self.options = path, options
        self.audio = path.read_bytes()
        self.n_samples = 4 * SAMPLE_RATE
        self.language = "en"
        self.closed = asyncio.Event()
        self.n_waiting = 0  # events of the script that it has waited for
        self._script = script

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        for item in self._script:
            if isinstance(item, asyncio.Event):
                self.n_waiting += 1
                await item.wait()
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    def close(self) -> None:
        self.closed.set()


class NotedRecordings(RecordingQueue):
    """Recordings of one model; what the next ones yield can be set."""

    def __init__(self, *items: Item) -> None:
        self.items: Sequence[Item] = items
        self.opened: list[NotedRecording] = []
        self.arrived = asyncio.Event()

    def models(self) -> Sequence[ModelInfo]:
        return [MODEL]

    def find(self, model: str) -> ModelInfo:
        with pytest.raises(RuntimeError):  # it reads directories: others would wait
            asyncio.get_running_loop()
        if model not in ("nano.en", "whisper-1", ""):
            raise UnknownModelError(f"model {model!r} is not here: expected nano.en")
        return MODEL

    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> NotedRecording:
        await asyncio.to_thread(self.find, model)
        job = NotedRecording(path, options, self.items)
        self.opened.append(job)
        self.arrived.set()
        return job

    def stop(self) -> None:
        """They end by themselves."""


class ListeningStream(ClientStream):
    """Takes audio from the buffer in a thread of its own, and publishes a final for each `SAMPLES_A_FINAL` of it."""

    def __init__(
        self,
        capacity_samples: int = 100_000,
        options: StreamStart = StreamStart(),  # noqa: B008 - frozen
        *,
        name: str = "fake",
        seed: int = 0,
    ) -> None:
        super().__init__(opened_log(name), options)
        self.ring = RingBuffer(capacity_samples)
        self.ring.on_room = self.on_room
        self._news = threading.Event()
        # Commands, each with how many samples had been written before.
        self.commands: list[tuple[str, int]] = []
        self.settings: list[StreamStart] = []
        # Raised by the next `check`.
        self.refusal: Exception | None = None
        self.first_write = asyncio.Event()
        self._pieces: list[NDArray[np.float32]] = []
        self._rng = random.Random(seed)
        # Length of the audio, once it is known.
        self._n_samples: int | None = None
        # Whether the session still runs for this process.
        self.here = True
        # Cleared while it is to take no audio.
        self.takes = threading.Event()
        self.takes.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to take audio."""
        self._thread.start()

    def received(self) -> NDArray[np.int64]:
        """Return what was received, shape (n,), as 16-bit integers."""
        return np.round(np.concatenate(self._pieces) * 32768).astype(np.int64)

    @property
    def _free(self) -> int:
        return self.ring.free

    def _write(self, samples: NDArray[np.float32]) -> None:
        assert len(samples) <= self.ring.free, "audio was written that there is no room for"
        self.ring.write(samples)
        self._news.set()
        self.first_write.set()

    def _end(self) -> None:
        self._note("end")
        self._n_samples = self.ring.head
        self._news.set()

    def _command(self, command: Command) -> None:
        self._note(command)

    def _check(self, options: StreamStart) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _change(self, options: StreamStart) -> None:
        self._note("set")
        self.settings.append(options)

    def _abandon(self) -> None:
        """It goes on until its log is closed."""

    async def is_here(self) -> bool:
        return self.here

    def _note(self, command: str) -> None:
        self.commands.append((command, self.ring.head))

    def _run(self) -> None:
        position = n_finals = 0
        while position != self._n_samples and not self.log.closed:
            self._news.wait(0.5)
            self._news.clear()
            self.takes.wait(WAIT_S)
            end = min(self.ring.head, position + self._rng.randrange(1, 2000))
            if end < self.ring.head:
                self._news.set()
            self._pieces.append(self.ring.read(position, end))
            position = end
            self.ring.release(position)
            while (n_finals + 1) * SAMPLES_A_FINAL <= position:
                n_finals += 1
                self.log.append(final(f"{n_finals}", segment=n_finals))
        self.log.close()


class OneStream(Backend):
    """Opens one stream, and keeps it."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream

    async def open(self, name: str, start: StreamStart, *, tenant: str) -> ClientStream:
        return self._stream

    async def knows(self, name: str, *, tenant: str) -> bool:
        return name == self._stream.log.session

    async def resume(self, name: str, *, after: int) -> ClientStream:
        return self._stream


def streams_to(stream: ClientStream) -> ClientStreams:
    """Return streams of which the first is this one."""
    return ClientStreams(ServerSettings(), OneStream(stream))


async def finished(stream: ClientStream) -> None:
    """End a stream's audio; return when its session has ended."""
    stream.finish()
    await until(lambda: stream.log.closed)


# The server and its clients.


@dataclass
class Running:
    """A server that listens, and its clients."""

    server: Server
    url: str
    log: EventLog
    streams: RecordingStreams
    own: RecordingInput
    recordings: NotedRecordings | None
    registry: CollectorRegistry
    health: dict[str, object]
    http: httpx.AsyncClient

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].strip("/"))

    async def ask(self, request: str, content: Any = None, /, **headers: str) -> httpx.Response:
        """Ask over HTTP, such as `GET /healthz`, on a connection of its own; in names of headers `_` stands for `-`."""
        method, path = request.split(" ", 1)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(method, path, content=content, headers=named)

    async def status(self, request: str, *, unix: str = "", **headers: str) -> int:
        """Ask, byte for byte, and return the status; `WS /v1/stream` opens a WebSocket."""
        method, path = request.split(" ", 1)
        given = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        if method == "WS":
            key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
            method, given = "GET", {**given, "Connection": "Upgrade", "Upgrade": "websocket", **key}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        line = await self.answer(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode(), unix=unix, until=b"\r\n")
        return int(line.split()[1])

    async def answer(
        self, request: bytes, *, unix: str = "", trusting: ssl.SSLContext | None = None, until: bytes = b""
    ) -> str:
        """Send bytes, and return what comes until the daemon closes, or up to `until`."""
        if unix:
            reader, writer = await asyncio.open_unix_connection(unix)
        else:
            reader, writer = await self.raw(trusting)
        try:
            writer.write(request)
            return (await within(reader.readuntil(until) if until else reader.read())).decode("latin-1")
        except ConnectionError:
            return ""
        finally:
            writer.close()

    async def raw(self, trusting: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect without a protocol, over TLS if there is a context that trusts the daemon."""
        name = "localhost" if trusting else None
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting, server_hostname=name)

    def socket(self, path: str, **arguments: Any) -> connect:
        return connect(self.url.replace("http", "ws", 1).rstrip("/") + path, proxy=None, **arguments)

    @contextlib.asynccontextmanager
    async def resuming(self, after: int | None, session: str = SESSION) -> AsyncIterator[ClientConnection]:
        """Connect to go on with a session behind an event that the client has."""
        async with self.socket("/v1/stream") as client:
            seq = {} if after is None else {"after": after}
            await client.send(json.dumps({"type": "resume", "session": session, **seq}))
            yield client

    @contextlib.asynccontextmanager
    async def captions(self, path: str = "/v1/captions", **arguments: Any) -> AsyncIterator[ClientConnection]:
        """Connect a subscriber that has received `ready`."""
        async with self.socket(path, **arguments) as client:
            assert (await next_event(client)).type == "ready"
            yield client

    @contextlib.asynccontextmanager
    async def streaming(self, **arguments: Any) -> AsyncIterator[tuple[ClientConnection, RecordingStream]]:
        """Connect a stream that has sent 640 bytes and received `ready`."""
        async with self.socket("/v1/stream", **arguments) as client:
            await client.send(bytes(640))
            assert (await next_event(client)).type == "ready"
            stream = await self.streams.first()
            await within(stream.written.wait())
            yield client, stream

    def count(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric."""
        return self.registry.get_sample_value(f"streamer_{name}", labels)

    async def value(self, name: str, labels: Mapping[str, str], expected: float) -> None:
        """Wait until a metric has a value."""
        await until(lambda: self.registry.get_sample_value(name, dict(labels)) == expected)


@contextlib.asynccontextmanager
async def serving(log: EventLog | None = None, **settings: Any) -> AsyncIterator[Running]:
    """Run a server on a free port until the block is left.

    settings : of the server, or parts of `Services`; and `history_file`, a History, and `default_token_file`
    """
    log = log if log is not None else opened_log()
    streams, own = RecordingStreams(), RecordingInput()
    input = OwnInput(Settings(), cast("Source", None), log)
    input.session = cast("LiveSession", own)
    registry = CollectorRegistry()
    health: dict[str, object] = {"status": "ok", "model": "nano.en"}
    names = set(ServerSettings.__struct_fields__)
    arguments: dict[str, Any] = {
        "input": input,
        "streams": streams,
        "health": lambda: health,
        "history": settings.get("history_file"),
        **{name: settings[name] for name in settings.keys() - names - {"default_token_file", "history_file"}},
    }
    server = Server(
        ServerSettings(**{"port": 0, "max_subscribers": 10, **{n: v for n, v in settings.items() if n in names}}),
        Services(**arguments),
        registry,
        settings.get("default_token_file"),
    )
    url = await server.start()
    try:
        alone = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=url, verify=False, trust_env=False, timeout=WAIT_S, limits=alone
        ) as client:
            yield Running(server, url, log, streams, own, settings.get("recordings"), registry, health, client)
    finally:
        await server.stop(timeout_s=2.0)


async def within(awaitable: Awaitable[T]) -> T:
    """Wait for something that must come."""
    async with asyncio.timeout(WAIT_S):
        return await awaitable


def pass_time(seconds: float) -> None:
    """Move the clock of this test's loop on: what waits for a time goes on, without a wait."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


async def next_event(socket: ClientConnection) -> Event:
    return from_json(await within(socket.recv()))


async def events_until(socket: ClientConnection, last: str) -> list[Event]:
    """Return the events up to the first of type `last`."""
    events: list[Event] = []
    while not events or events[-1].type != last:
        events.append(await next_event(socket))
    return events


async def closing(client: ClientConnection) -> tuple[int, str]:
    """Read to the end; return the close code and reason that the server gave."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await within(client.recv())
    return client.close_code or 0, client.close_reason or ""


async def vanish(client: ClientConnection, stream: RecordingStream) -> None:
    """Break a stream's connection; return when the stream is kept."""
    client.transport.abort()
    await within(stream.kept.wait())


async def heard(stream: RecordingStream, n_bytes: int) -> None:
    """Wait until a stream has this much audio of its client."""
    while len(stream.audio) < n_bytes:
        stream.written.clear()
        await within(stream.written.wait())


def deaf_socket(port: int, path: str) -> socket.socket:
    """Open a WebSocket by hand that reads its handshake and nothing more, with a small receive buffer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(WAIT_S)
    sock.connect(("127.0.0.1", port))
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode("ascii")
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return sock


def as_json(event: Event) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(event.to_json())
    return data


def numbered_partial(segment: int, text: str, stable: int = 0, start: float = 0.0) -> Partial:
    """Return a partial of a segment, of words of 0.3 s."""
    words = builders.words(text, start, step=0.3, n_stable=len(text[:stable].split()))
    return builders.partial(text, stable, start=start, segment=segment, words=words)


def numbered_final(segment: int, text: str, start: float = 0.0) -> Final:
    """Return the final of a segment, of words of 0.3 s."""
    return builders.final(text, start=start, segment=segment, words=builders.words(text, start, step=0.3))
