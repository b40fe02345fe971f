"""What the cluster's tests share: NATS servers as children of this process, buses and records."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from streamer.cluster.bus import Bus
from streamer.cluster.local import find_nats_server
from streamer.cluster.messages import VERSION, Checkpoint, Record
from streamer.protocols.native import StreamStart
from streamer.settings.table import ClusterSettings
from streamer.stream.state import SessionState

WAIT_S = 60.0  # bound of every wait for something that must come


class NatsServer:
    """A nats-server on loopback. Its port, store and configuration stay the same when it is started again."""

    def __init__(self, folder: Path, name: str = "n1", more: str = "") -> None:
        """Prepare it; `more` is added to its configuration."""
        self.name = name
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self._config = folder / f"{name}.conf"
        self._process: subprocess.Popen[bytes] | None = None
        text = f"""
            server_name: {name}
            listen: "127.0.0.1:{self.port}"
            log_file: {json.dumps(str(self.log))}
            jetstream {{ store_dir: {json.dumps(str(folder / f"{name}-store"))} }}
            {more}
        """
        self._config.write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            [find_nats_server(), "-c", self._config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            assert self._process.poll() is None, self.log.read_text(encoding="utf-8")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.name} does not listen on port {self.port}")

    def kill(self) -> None:
        """End it at once, as a machine ends whose power fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)


class NatsCluster:
    """NATS servers that know each other."""

    def __init__(self, folder: Path, n_servers: int = 3, more: str = "") -> None:
        ports = [free_port() for _ in range(n_servers)]
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        self.servers = [
            NatsServer(
                folder,
                f"n{i}",
                f'cluster {{ name: test, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
                f'\nping_interval: "2s"\nping_max: 2\nwrite_deadline: "2s"\n{more}',
            )
            for i, port in enumerate(ports, 1)
        ]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def named(self, name: str) -> NatsServer:
        return next(server for server in self.servers if server.name == name)


def free_port() -> int:
    """Return a port on loopback that nobody listened on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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


async def until(condition: Callable[[], bool | Awaitable[bool]], wait_s: float = WAIT_S) -> None:
    """Wait until a condition holds, no longer than `wait_s`."""
    async with asyncio.timeout(wait_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.01)


def checkpoint(seq: int = 0, *, state: SessionState | None = None, model: str = "nano.en") -> Checkpoint:
    return Checkpoint(
        version=VERSION, model=model, start=StreamStart(), seq=seq, command=0, state=state or SessionState.new()
    )


def record(number: int = 1, *, epoch: int = 1, worker: str = "w1", events: Sequence[str] = ()) -> Record:
    return Record(
        version=VERSION, epoch=epoch, worker=worker, number=number, events=tuple(events), checkpoint=checkpoint(number)
    )
