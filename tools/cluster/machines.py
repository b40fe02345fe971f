"""NATS servers, gateways and workers as processes of this machine, and what can happen to them.

Each worker has a network namespace of its own, so that its line can be cut as a cable is: neither end notices, and what
was sent meanwhile comes late. That takes Linux, root and `ip`.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from streamer.errors import ClusterError, StreamerError
from streamer.events import Event, from_json
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.log import SessionLog, log_subject
from streamer.plugins.cluster.messages import ALIVE_WORKERS, Record, WorkerAlive, decoded
from streamer.plugins.cluster.settings import ClusterSettings
from tools.benchmarks.processes import free_port

READY_S = 90.0  # for a machine, or all of them, to be of use
LOOK_S = 0.2
STOP_S = 15.0  # for an orderly end, then it is killed
NATS_SERVER = Path(sys.executable).with_name("nats-server")
SERVERS = ("n1", "n2", "n3")
GATEWAYS = ("g1", "g2")
WORKERS = ("w1", "w2", "w3")


class MachineError(StreamerError):
    """A machine ended, or is of no use in time."""


class Process:
    """A program that can be started again; its log goes on in one file."""

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
        self.log = log
        self._command, self._variables = command, {**os.environ, **variables}
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = psutil.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._variables
            )

    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        code: int | None = self._process.returncode
        return code

    def signal(self, number: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.send_signal(number)

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        """End it at once, stopped or not."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()
        self._process.wait()

    async def stop(self) -> None:
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await until(lambda: not self.runs(), STOP_S, str(self.log))
        self.kill()


class Machines:
    """All of them; ended, with their network, where the block is left."""

    def __init__(self, folder: Path | None) -> None:
        """Keep logs and NATS' files in a new folder; None: nowhere."""
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="streamer-cluster-")
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all: dict[str, Process] = {}
        # The third byte of addresses, so that two may run side by side.
        self._net = os.getpid() % 200 + 20
        self._ports = {name: (free_port(), free_port()) for name in SERVERS}
        self.gateway_ports = {name: free_port() for name in GATEWAYS}
        self.host = f"10.199.{self._net}.1"
        self.alive: dict[str, tuple[float, WorkerAlive]] = {}

    @property
    def urls(self) -> str:
        return ",".join(f"nats://{self.host}:{client}" for client, _ in self._ports.values())

    def __enter__(self) -> Self:
        try:
            bridge = f"streamer{self._net}"
            _ip(f"link add {bridge} type bridge")
            _ip(f"addr add {self.host}/24 dev {bridge}")
            _ip(f"link set {bridge} up")
            for worker in WORKERS:
                inside, outside, space = f"in{self._net}{worker}", self._cable(worker), self._space(worker)
                _ip(f"netns add {space}")
                _ip(f"link add {outside} type veth peer name {inside} netns {space}")
                _ip(f"link set {outside} master {bridge} up")
                _ip(f"-n {space} addr add {self.address(worker)}/24 dev {inside}")
                _ip(f"-n {space} link set {inside} up")
                _ip(f"-n {space} link set lo up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all.values():
            process.kill()
        for worker in WORKERS:
            with contextlib.suppress(MachineError):
                _ip(f"netns del {self._space(worker)}")  # and the cable that ends in it
        with contextlib.suppress(MachineError):
            _ip(f"link del streamer{self._net}")
        if self._temporary:
            self._temporary.cleanup()

    def address(self, worker: str) -> str:
        return f"10.199.{self._net}.{WORKERS.index(worker) + 11}"

    def cut(self, worker: str) -> None:
        _ip(f"link set {self._cable(worker)} down")

    def mend(self, worker: str) -> None:
        _ip(f"link set {self._cable(worker)} up")

    def run(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> Process:
        """Start a program; one that is named as a worker in its namespace."""
        prefix = ("ip", "netns", "exec", self._space(name)) if name in WORKERS else ()
        found = self.all[name] = Process((*prefix, *command), self.folder / f"{name}.log", variables or {})
        return found

    def start_nats(self) -> None:
        for name, (client, cluster) in self._ports.items():
            routes = ", ".join(f'"nats-route://{self.host}:{port}"' for other, (_, port) in self._ports.items())
            config = self.folder / f"{name}.conf"
            config.write_text(
                f'server_name: {name}\nlisten: "{self.host}:{client}"\nping_interval: "2s"\nping_max: 2\n'
                f'write_deadline: "2s"\njetstream {{ store_dir: "{self.folder / name}", max_memory_store: 256MB }}\n'
                f'cluster {{ name: streamer, listen: "{self.host}:{cluster}", routes: [{routes}] }}\n',
                encoding="utf-8",
            )
            self.run(name, (str(NATS_SERVER), "-c", str(config)))

    async def start_cluster(self) -> None:
        """Start NATS, gateways and workers, and wait until they are of use."""
        self.start_nats()
        await self.connect()
        program = (sys.executable, "-m", "streamer")
        for name, port in self.gateway_ports.items():
            self.run(name, (*program, "gateway", "--nats", self.urls, "--port", str(port)), variables(name))
        for name in WORKERS:
            self.run(name, (*program, "worker", "--nats", self.urls), variables(name))
        await self.ready()

    async def connect(self) -> None:
        """Connect to NATS, for what is to be seen of the cluster."""

        async def take(data: bytes, _: Reply) -> None:
            alive = decoded(data, WorkerAlive)
            self.alive[alive.worker] = asyncio.get_running_loop().time(), alive

        async with asyncio.timeout(READY_S):
            while True:
                with contextlib.suppress(ClusterError):
                    self._bus = await Bus.connect(ClusterSettings(nats=tuple(self.urls.split(","))), "harness")
                    break
        await self._bus.subscribe(f"{ALIVE_WORKERS}.*", take)

    @property
    def jetstream(self) -> JetStreamContext:
        return self._bus.jetstream

    async def close(self) -> None:
        await self._bus.close()

    async def ready(self) -> None:
        """Wait until each machine that should run does its work. Raises MachineError where one does not."""
        for name, process in self.all.items():
            if not process.runs():
                raise MachineError(f"{name} has ended with {process.code}: {_last_lines(process.log)}")
        for what, check in (("NATS", self._log_is_whole), ("gateways", self._gateways), ("workers", self._workers)):
            try:
                await until(check, READY_S, what)
            except TimeoutError as error:
                logs = "; ".join(_last_lines(process.log, 1) for process in self.all.values())
                raise MachineError(f"{error}: {logs}") from None

    async def owner(self, session: str) -> tuple[str, int]:
        """Return which worker owns a session, and its epoch; none where that cannot be found out now."""
        with contextlib.suppress(NatsError, TimeoutError, StreamerError):
            last = await self.jetstream.get_last_msg("SESSIONS", log_subject(session))
            record = decoded(last.data or b"", Record)
            return record.worker, record.epoch
        return "", 0

    async def stored(self, session: str) -> list[Event] | None:
        """Return all events in a session's log; None if it cannot be read now."""
        with contextlib.suppress(NatsError, TimeoutError, StreamerError):
            records = await SessionLog(self._bus, ClusterSettings()).read(session)
            return [from_json(event) for record, _ in records for event in record.events]
        return None

    async def info(self) -> StreamInfo | None:
        """Return how the sessions' log is; None if it cannot be read now."""
        with contextlib.suppress(NatsError, TimeoutError):
            return await self.jetstream.stream_info("SESSIONS")
        return None

    async def _log_is_whole(self) -> bool:
        info = await self.info()
        peers = (info.cluster.replicas or []) if info and info.cluster and info.cluster.leader else []
        return len(peers) == len(SERVERS) - 1 and all(peer.current and not peer.offline for peer in peers)

    async def _gateways(self) -> bool:
        return all([await asyncio.to_thread(healthy, port) for port in self.gateway_ports.values()])

    async def _workers(self) -> bool:
        since_s = asyncio.get_running_loop().time() - 1.0
        return all(
            name in self.alive and self.alive[name][0] > since_s and not self.alive[name][1].draining
            for name in WORKERS
            if self.all[name].runs()
        )

    def _space(self, worker: str) -> str:
        return f"streamer{self._net}{worker}"

    def _cable(self, worker: str) -> str:
        return f"st{self._net}{worker}"


class Balancer:
    """A TCP balancer before the gateways: each in turn, of those that accept."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._n_served = 0
        # Gateway of each connection that is open.
        self.connections: list[str] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = list(self._ports)
        for _ in names:
            self._n_served += 1
            name = names[self._n_served % len(names)]
            with contextlib.suppress(OSError):
                beyond, to = await asyncio.open_connection("127.0.0.1", self._ports[name])
                self.connections.append(name)
                await asyncio.wait(
                    [asyncio.create_task(_pump(reader, to)), asyncio.create_task(_pump(beyond, writer))],
                )
                self.connections.remove(name)
                break
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def variables(name: str) -> dict[str, str]:
    """Return a machine's environment: no configuration, a name, one thread a model."""
    threads = {f"STREAMER_MODEL_{stage}PROPERTIES": "INFERENCE_NUM_THREADS=1" for stage in ("", "DECODER_")}
    return {"XDG_CONFIG_HOME": os.devnull, "STREAMER_CLUSTER_NAME": name, **threads}


def healthy(port: int) -> bool:
    """Return whether a daemon or gateway is all right."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:  # HTTPError, too
        return False


def accepts(host: str, port: int) -> bool:
    """Return whether a program listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


async def until(check: Callable[[], object], limit_s: float, what: str) -> None:
    """Wait until something holds. Raises TimeoutError."""
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while True:
        found = check()
        if await found if asyncio.iscoroutine(found) else found:
            return
        if asyncio.get_running_loop().time() > deadline_s:
            raise TimeoutError(f"{what}: nothing after {limit_s:.0f} s")
        await asyncio.sleep(LOOK_S)


def run_until_told(work: Awaitable[None]) -> int:
    """Run something until it ends, fails, or Ctrl-C or SIGTERM comes; return the exit code. All is cleaned up then."""

    async def watched() -> None:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await task

    try:
        asyncio.run(watched())
    except StreamerError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


def _ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"`ip {arguments}` failed: {done.stderr.strip()!r:.200}")


def _last_lines(log: Path, n: int = 3) -> str:
    return f"{log.name}: {log.read_text(encoding='utf-8', errors='replace').splitlines()[-n:]!r:.500}"
