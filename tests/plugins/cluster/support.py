"""What the cluster's tests share: NATS servers as children of this process, buses and records."""

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from streamer.constants import SAMPLE_RATE
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.local import find_nats_server
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import VERSION, Record, SessionCheckpoint, SessionUpdate, WorkerAlive
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.protocols.native import StreamStart
from streamer.session.state import SessionState
from streamer.session.windows import OpenSpeech
from tests.daemon import free_port
from tests.waiting import wait_until

Servers = TypeVar("Servers", "NatsServer", "NatsCluster")


class NatsServer:
    """A nats-server on loopback. Its port, store and configuration stay the same when it is started again."""

    def __init__(self, folder: Path, name: str = "n1", more: str = "", store: str | None = "") -> None:
        """Prepare it; `more` is added to its configuration, `store` to that of JetStream (None: without)."""
        self.name, self.port = name, free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.log, self.config = folder / f"{name}.log", folder / f"{name}.conf"
        self._process: subprocess.Popen[bytes] | None = None
        jetstream = f"jetstream {{ store_dir: {json.dumps(str(folder / f'{name}-store'))}\n{store} }}"
        text = f"""
            server_name: {name}
            listen: "127.0.0.1:{self.port}"
            {"" if store is None else jetstream}
            {more}
        """
        self.config.write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([find_nats_server(), "-c", self.config], stdout=log, stderr=log)
        wait_until(self._listens)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text(encoding="utf-8")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """End it at once, as a machine ends whose power fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def running(server: Servers) -> Iterator[Servers]:
    """Run one or several servers until the block is left."""
    try:
        server.start()
        yield server
    finally:
        server.kill()


class NatsCluster:
    """NATS servers that know each other."""

    def __init__(self, folder: Path, *, advertise: bool = True) -> None:
        """Prepare three; with `advertise` they tell clients each other's addresses."""
        ports = [free_port() for _ in range(3)]
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        known = f"routes: [{routes}], no_advertise: {json.dumps(not advertise)}"
        timing = 'ping_interval: "2s"\nping_max: 2\nwrite_deadline: "2s"'
        self.servers = [
            NatsServer(folder, f"n{i}", f'cluster {{ name: test, listen: "127.0.0.1:{port}", {known} }}\n{timing}')
            for i, port in enumerate(ports, 1)
        ]
        self.urls = tuple(server.url for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def named(self, name: str) -> NatsServer:
        return next(server for server in self.servers if server.name == name)


def settings_for(*urls: str, **others: Any) -> ClusterSettings:  # noqa: ANN401 - any setting's value
    return ClusterSettings(nats=urls, **others)


@contextlib.asynccontextmanager
async def bus_on(*urls: str, name: str = "machine", **others: Any) -> AsyncIterator[Bus]:  # noqa: ANN401
    """Yield a machine's connection to NATS, made with the section `cluster` of these settings."""
    bus = await Bus.connect(settings_for(*urls, **others), name)
    try:
        yield bus
    finally:
        await bus.close()


@contextlib.asynccontextmanager
async def log_on(*urls: str, name: str = "machine", **others: Any) -> AsyncIterator[tuple[Bus, SessionLog]]:  # noqa: ANN401
    """Yield a machine's connection to NATS and the sessions' log, whose stream is there."""
    async with bus_on(*urls, name=name, **others) as bus:
        log = SessionLog(bus, settings_for(*urls, **others))
        await log.prepare()
        yield bus, log


def checkpoint(seq: int = 0, *, state: SessionState | None = None, model: str = "nano.en") -> SessionCheckpoint:
    return SessionCheckpoint(model=model, start=StreamStart(), seq=seq, command=0, state=state or SessionState())


def record(number: int = 1, *, epoch: int = 1, worker: str = "w1", events: Sequence[str] = ()) -> Record:
    return Record(epoch=epoch, worker=worker, gateway="g1", events=tuple(events), checkpoint=checkpoint(number))


def update(read_s: float = 0.0, *, seq: int = 0, **others: Any) -> SessionUpdate:  # noqa: ANN401 - any field's value
    """Return what a worker reports that has transcribed up to a moment."""
    state = SessionState(speech=OpenSpeech(round(read_s * SAMPLE_RATE)))
    fields = {"session": "s", "epoch": 1, "previous": 0, "sequence": 0, "events": (), "head": 0, "command": 0, **others}
    return SessionUpdate(worker="w", checkpoint=checkpoint(seq, state=state), **fields)


class Line:
    """The line between a machine and a server, in which a test can do what lines and old servers do."""

    def __init__(self, url: str) -> None:
        self._server_port = int(url.rpartition(":")[2])
        self._writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []

        # Whether what the server says is thrown away.
        self.deaf = False
        # Cleared while nothing comes through, and what was sent comes late.
        self._whole = asyncio.Event()
        self._whole.set()
        # Replaced in what the server says: what, and by what.
        self.replaced = (b"", b"")
        # All that machines have sent, and how often one has connected.
        self.sent, self.n_connections = b"", 0

    async def __aenter__(self) -> "Line":
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    @property
    def dead(self) -> bool:
        return not self._whole.is_set()

    @dead.setter
    def dead(self, dead: bool) -> None:
        (self._whole.clear if dead else self._whole.set)()

    def cut(self) -> None:
        """End all connections."""
        for to_machine, to_server in self._writers:
            to_machine.transport.abort()
            to_server.transport.abort()
        self._writers.clear()

    def say(self, text: bytes) -> None:
        """Say something to all machines as if it came from the server."""
        for to_machine, _ in self._writers:
            to_machine.write(text)

    async def _connect(self, reader: asyncio.StreamReader, to_machine: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        answers, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers.append((to_machine, to_server))
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._forward(reader, to_server), self._forward(answers, to_machine, back=True))
        to_machine.transport.abort()
        to_server.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool = False) -> None:
        while data := await reader.read(65_536):
            if back:
                data = data.replace(*self.replaced) if self.replaced[0] else data
            else:
                self.sent += data
            await self._whole.wait()
            if not (back and self.deaf):
                writer.write(data)
        raise ConnectionError


def alive(worker: str = "w1", load: float = 0.1, **more: Any) -> WorkerAlive:  # noqa: ANN401 - any field
    """Return a worker's sign of life."""
    fields = {"version": VERSION, "model": "nano.en", "capacity": 9, "sessions": 2, "room": load < 0.8, **more}
    return WorkerAlive(worker=worker, load=load, **fields)
