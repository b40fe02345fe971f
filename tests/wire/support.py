"""What the server's tests share: a server on a free port, events to send, and streams that only take notes."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamer.audio.sources.base import Source
from streamer.daemon.own_input import OwnInput
from streamer.engine.eventlog import EventLog
from streamer.engine.live_session import LiveSession
from streamer.errors import UnknownSessionError
from streamer.events import Event, Final, Partial, Word, from_json
from streamer.protocols.native import Command, SessionOptions, StreamStart
from streamer.server.context import Services
from streamer.server.front import Server
from streamer.server.tokens import TokenFile, new_token
from streamer.settings.registry import SECTIONS
from streamer.settings.table import ServerSettings, Settings
from tests import builders
from tests.builders import ready as ready
from tests.waiting import WAIT_S as WAIT_S
from tests.waiting import until

T = TypeVar("T")

SESSION = "client-1"  # name of the session of each recording stream


def words(text: str, start: float, *, stable: int) -> tuple[Word, ...]:
    return builders.words(text, start, step=0.3, n_stable=len(text[:stable].split()))


def partial(segment: int, text: str, stable: int = 0, start: float = 0.0) -> Partial:
    return builders.partial(text, stable, start=start, segment=segment, words=words(text, start, stable=stable))


def final(segment: int, text: str, start: float = 0.0) -> Final:
    return builders.final(text, start=start, segment=segment, words=words(text, start, stable=len(text)))


def added(path: Path, name: str, **known: Any) -> str:  # noqa: ANN401 - passed on
    """Write a token into a file; return it."""
    secret, token = new_token(name, **known)
    TokenFile(path).change(lambda tokens: (*tokens, token))
    return secret


def wait_published(log: EventLog) -> None:
    """Wait until everything that was appended to a log is published, and so is in its history."""
    done = threading.Event()
    log.call_behind(done.set)
    assert done.wait(WAIT_S)


def opened_log(session: str = "s1", limit: int = 1000) -> EventLog:
    log = EventLog(session, limit)
    log.append(ready())
    return log


class RecordingStream:
    """A client's stream that keeps its audio, and says how many bytes there were once it is over."""

    def __init__(self, start: StreamStart) -> None:
        self.start = start
        self.log = opened_log(SESSION)
        self.session = SimpleNamespace(outlives=False, report=self.log.append)
        self.options: SessionOptions = start
        self.complete = False
        self.audio = bytearray()
        # Commands, each with how many bytes of audio had come before.
        self.commands: list[tuple[str, int]] = []
        # Set with each piece of audio and each command.
        self.written = asyncio.Event()
        self.kept = asyncio.Event()
        self.abandoned = asyncio.Event()
        self.finished = asyncio.Event()
        # Cleared to hold `write` and `finish` back, as a full buffer and a slow model do.
        self.room = asyncio.Event()
        self.room.set()
        # Raised by the next `write`.
        self.failure: Exception | None = None
        # Raised by the next `change`.
        self.refusal: Exception | None = None

    @property
    def feed(self) -> EventLog:
        return self.log

    async def write(self, data: bytes) -> None:
        await self.room.wait()
        if self.failure is not None:
            raise self.failure
        self.audio += data
        self.written.set()

    async def command(self, command: Command) -> None:
        self.commands.append((command, len(self.audio)))
        self.written.set()

    async def change(self, options: SessionOptions) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.options = options
        self.commands.append(("set", len(self.audio)))
        self.written.set()

    async def finish(self) -> None:
        self.complete = True
        await self.room.wait()
        self.log.append(final(1, f"{len(self.audio)} bytes"))
        self.log.close()
        self.finished.set()

    def go_on(self) -> int:
        return len(self.audio) // 2


class RecordingInput:
    """The daemon's own input, which takes notes of what it is told to do."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.paused = False

    def flush(self) -> None:
        self.commands.append("flush")

    def pause(self) -> None:
        self.commands.append("pause")
        self.paused = True

    def resume(self) -> None:
        self.commands.append("resume")
        self.paused = False

    def clear(self) -> None:
        self.commands.append("clear")


class RecordingStreams:
    """Opens recording streams, or refuses."""

    def __init__(self) -> None:
        self.opened: list[RecordingStream] = []
        # Whose token each caller showed, and set with the first.
        self.tenants: list[str] = []
        self.called = asyncio.Event()
        self.arrived = asyncio.Event()
        # Raised by the next `open`.
        self.refusal: Exception | None = None
        # Called with each new stream.
        self.prepare: Callable[[RecordingStream], None] = lambda stream: None

    async def open(self, start: StreamStart, *, tenant: str = "") -> RecordingStream:
        self.tenants.append(tenant)
        self.called.set()
        if self.refusal is not None:
            raise self.refusal
        stream = RecordingStream(start)
        self.prepare(stream)
        self.opened.append(stream)
        self.arrived.set()
        return stream

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> RecordingStream:
        self.tenants.append(tenant)
        self.called.set()
        for stream in self.opened:
            if stream.log.session == session and not stream.abandoned.is_set():
                return stream
        raise UnknownSessionError("the session is not known: start another")

    def keep(self, stream: RecordingStream) -> None:
        stream.kept.set()

    def abandon(self, stream: RecordingStream) -> None:
        stream.log.close()
        stream.abandoned.set()

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        """Note nothing: these take no slot."""

    async def first(self) -> RecordingStream:
        await within(self.arrived.wait())
        return self.opened[0]


@dataclass
class Running:
    """A server that listens."""

    server: Server
    url: str
    log: EventLog
    streams: RecordingStreams
    own: RecordingInput
    registry: CollectorRegistry
    health: dict[str, object]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].strip("/"))

    def socket(self, path: str, **arguments: Any) -> connect:  # noqa: ANN401 - passed on
        return connect(self.url.replace("http", "ws", 1).rstrip("/") + path, proxy=None, **arguments)

    @contextlib.asynccontextmanager
    async def resuming(self, after: int | None, session: str = SESSION) -> AsyncIterator[ClientConnection]:
        """Connect to go on with a session behind an event that the client has."""
        async with self.socket("/v1/stream") as client:
            seq = {} if after is None else {"after": after}
            await client.send(json.dumps({"type": "resume", "session": session, **seq}))
            yield client

    @contextlib.asynccontextmanager
    async def streaming(self) -> AsyncIterator[tuple[ClientConnection, RecordingStream]]:
        """Connect a stream that has sent 640 bytes and received `ready`."""
        async with self.socket("/v1/stream") as client:
            await client.send(bytes(640))
            assert (await next_event(client)).type == "ready"
            stream = await self.streams.first()
            await within(stream.written.wait())
            yield client, stream

    async def value(self, name: str, labels: Mapping[str, str], expected: float) -> None:
        """Wait until a metric has a value."""
        await until(lambda: self.registry.get_sample_value(name, dict(labels)) == expected)


@contextlib.asynccontextmanager
async def serving(log: EventLog | None = None, **settings: Any) -> AsyncIterator[Running]:  # noqa: ANN401 - passed on
    """Run a server on a free port until the block is left."""
    log = log if log is not None else opened_log()
    streams = RecordingStreams()
    own = RecordingInput()
    input = OwnInput(Settings(), cast("Source", None), log)
    input.session = cast("LiveSession", own)
    registry = CollectorRegistry()
    health: dict[str, object] = {"status": "ok", "model": "nano.en"}
    names = set(SECTIONS["server"].settings)
    chosen = {name: value for name, value in settings.items() if name in names}
    arguments: dict[str, Any] = {
        "input": input,
        "streams": streams,
        "health": lambda: health,
        "history": settings.get("history_file"),
        **{name: settings[name] for name in settings.keys() - names - {"default_token_file", "history_file"}},
    }
    server = Server(
        ServerSettings(**{"port": 0, "max_subscribers": 10, **chosen}),
        Services(**arguments),
        registry,
        settings.get("default_token_file"),
    )
    url = await server.start()
    try:
        yield Running(server=server, url=url, log=log, streams=streams, own=own, registry=registry, health=health)
    finally:
        await server.stop(timeout_s=2.0)


async def within(awaitable: Awaitable[T]) -> T:
    """Wait for something that must come."""
    async with asyncio.timeout(WAIT_S):
        return await awaitable


async def closing(client: ClientConnection) -> tuple[int, str]:
    """Read to the end; return the close code and reason that the server gave."""
    while True:
        try:
            await within(client.recv())
        except ConnectionClosed:
            return client.close_code or 0, client.close_reason or ""


async def vanish(client: ClientConnection, stream: RecordingStream) -> None:
    """Break a stream's connection; return when the stream is kept."""
    client.transport.abort()
    await within(stream.kept.wait())


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


async def next_event(socket: ClientConnection) -> Event:
    return from_json(await within(socket.recv()))


async def events_until(socket: ClientConnection, last: str) -> list[Event]:
    """Return the events up to the first of type `last`."""
    events: list[Event] = []
    while not events or events[-1].type != last:
        events.append(await next_event(socket))
    return events


def as_json(event: Event) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(event.to_json())
    return data


async def heard(stream: RecordingStream, n_bytes: int) -> None:
    """Wait until a stream has so much audio of its client."""
    while len(stream.audio) < n_bytes:
        stream.written.clear()
        await within(stream.written.wait())
