"""NATS servers, gateways and workers as processes of this machine, and what can happen to them.

Workers reach NATS through lines of this process, which can be cut as a cable is: neither end notices, and what was sent
meanwhile comes late.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil
from nats.errors import Error as NatsError
from nats.js.api import StreamInfo

from streamer.errors import ClusterError, StreamerError
from streamer.events import Event, from_json
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import ALIVE_WORKERS, WorkerAlive, decoded
from streamer.plugins.cluster.settings import ClusterSettings
from tests.plugins.cluster.support import Line, NatsCluster
from tools.benchmarks.processes import free_port

READY_S = 90.0  # for a machine, or all of them, to be of use
LOOK_S = 0.2
STOP_S = 15.0  # for an orderly end, then it is killed
SERVERS = ("n1", "n2", "n3")
GATEWAYS = ("g1", "g2")
WORKERS = ("w1", "w2", "w3")


class MachineError(StreamerError):
    """A machine ended, or is of no use in time."""


class Process:
    """A program that can be started again; its log goes on in one file."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        threads = {f"STREAMER_MODEL_{stage}PROPERTIES": "INFERENCE_NUM_THREADS=1" for stage in ("", "DECODER_")}
        self._environment = {**os.environ, "XDG_CONFIG_HOME": os.devnull, "STREAMER_CLUSTER_NAME": name, **threads}
        self._command = (sys.executable, "-m", "streamer", *arguments)
        self.log = folder / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = psutil.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )

    def runs(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, stopped or not."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    async def stop(self) -> None:
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await until(lambda: not self.runs(), STOP_S, str(self.log))
        self.kill()

    def last_line(self) -> str:
        return f"{self.log.name}: {self.log.read_text(encoding='utf-8', errors='replace').splitlines()[-1:]!r:.300}"


class Machines:
    """All of them; ended when the block is left."""

    def __init__(self, folder: Path) -> None:
        """Keep logs and NATS' files in a folder."""
        self._folder = folder
        self.nats = NatsCluster(folder, advertise=False)
        self.gateway_ports = {name: free_port() for name in GATEWAYS}
        self.all: dict[str, Process] = {}
        self._lines: dict[str, list[Line]] = {}
        # When each worker reported last, and what.
        self._alive: dict[str, tuple[float, WorkerAlive]] = {}

    async def __aenter__(self) -> Self:
        """Start all, and wait until they are of use."""
        try:
            self.nats.start()
            await until(self._connect, READY_S, "NATS")
            for name, port in self.gateway_ports.items():
                urls = ",".join(self.nats.urls)
                self.all[name] = Process(name, ("gateway", "--nats", urls, "--port", str(port)), self._folder)
            for name in WORKERS:
                self._lines[name] = [await Line(url).__aenter__() for url in self.nats.urls]
                urls = ",".join(line.url for line in self._lines[name])
                self.all[name] = Process(name, ("worker", "--nats", urls), self._folder)
            await self.ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.all.values():
            process.kill()
        for line in [line for lines in self._lines.values() for line in lines]:
            await line.__aexit__()
        self.nats.kill()

    def cut(self, worker: str, *, dead: bool) -> None:
        """Cut a worker off from NATS, or mend its lines."""
        for line in self._lines[worker]:
            line.dead = dead

    async def ready(self) -> None:
        """Wait until each machine that should run does its work. Raises MachineError if one does not."""
        for name, process in self.all.items():
            if not process.runs():
                raise MachineError(f"{name} has ended: {process.last_line()}")
        for what, check in (("NATS", self._log_is_whole), ("gateways", self._gateways), ("workers", self._workers)):
            try:
                await until(check, READY_S, what)
            except TimeoutError as error:
                raise MachineError(f"{error}: {'; '.join(each.last_line() for each in self.all.values())}") from None

    async def owner(self, session: str) -> tuple[str, int]:
        """Return which worker owns a session, and its epoch; neither if that cannot be found out now."""
        with contextlib.suppress(NatsError, TimeoutError, StreamerError):
            last = await SessionLog(self._bus, ClusterSettings()).last(session)
            return (last.record.worker, last.record.epoch) if last is not None else ("", 0)
        return "", 0

    async def stored(self, session: str) -> list[Event] | None:
        """Return all events in a session's log; None if it cannot be read now."""
        with contextlib.suppress(NatsError, TimeoutError, StreamerError):
            records = await SessionLog(self._bus, ClusterSettings()).read(session)
            return [from_json(event) for record, _ in records for event in record.events]
        return None

    async def leader(self) -> str:
        """Return the server that leads the sessions' log."""
        info = await self._info()
        return (info.cluster.leader if info and info.cluster else None) or SERVERS[0]

    async def _connect(self) -> bool:
        async def take(data: bytes, _: Reply) -> None:
            alive = decoded(data, WorkerAlive)
            self._alive[alive.worker] = time.monotonic(), alive

        with contextlib.suppress(ClusterError):
            self._bus = await Bus.connect(ClusterSettings(nats=self.nats.urls), "harness")
            await self._bus.subscribe(f"{ALIVE_WORKERS}.*", take)
            return True
        return False

    async def _info(self) -> StreamInfo | None:
        with contextlib.suppress(NatsError, TimeoutError):
            return await self._bus.jetstream.stream_info("SESSIONS")
        return None

    async def _log_is_whole(self) -> bool:
        info = await self._info()
        peers = (info.cluster.replicas or []) if info and info.cluster and info.cluster.leader else []
        return len(peers) == len(SERVERS) - 1 and all(peer.current and not peer.offline for peer in peers)

    async def _gateways(self) -> bool:
        return all([await asyncio.to_thread(_healthy, port) for port in self.gateway_ports.values()])

    async def _workers(self) -> bool:
        fresh = {name for name, (at_s, alive) in self._alive.items() if time.monotonic() - at_s < 1 + alive.draining}
        return all(name in fresh and not self._alive[name][1].draining for name in WORKERS if self.all[name].runs())


class Balancer:
    """A TCP balancer before the gateways: each in turn, of those that accept."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = list(ports.values())
        self._n_served = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._ports:
            self._n_served += 1
            with contextlib.suppress(OSError):
                beyond, to = await asyncio.open_connection("127.0.0.1", self._ports[self._n_served % len(self._ports)])
                await asyncio.gather(_pump(reader, to), _pump(beyond, writer))
                break
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def _healthy(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1.0):
        return True
    return False


async def until(check: Callable[[], bool | Awaitable[bool]], limit_s: float, what: str) -> None:
    """Wait until something holds. Raises TimeoutError."""
    deadline_s = time.monotonic() + limit_s
    while True:
        found = check()
        if found if isinstance(found, bool) else await found:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: nothing after {limit_s:.0f} s")
        await asyncio.sleep(LOOK_S)
