"""A server that is measured: started as a process, watched with all its children, and gone at the end."""

import contextlib
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from streamer.commands.energy import EnergyMeter
from streamer.errors import StreamerError

LOOK_S = 0.5  # between two looks at which processes there are and how large they are
POLL_S = 0.1  # between two looks whether it is ready
STOP_S = 5.0  # for an orderly end, then it is killed


class ServerFailure(StreamerError):  # noqa: N818 - what happened to it, not a fault of ours
    """A server ended, or was not ready in time; the message holds the last line of its log."""

    code = "server_failure"


class Server:
    """One process and its children; what it writes goes to a file, so that it never waits for us."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Raise ServerFailure if there is no such program."""
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="streamer-benchmark-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log"
        try:
            with self._log.open("wb") as log:
                self._process = psutil.Popen(
                    list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=dict(variables)
                )
        except OSError as error:
            self._folder.cleanup()
            raise ServerFailure(f"cannot start {name}: {error}") from None

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until it is ready. Raises ServerFailure if it ends first, or is not ready in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None
            if is_ready():
                return
            if ended:
                raise ServerFailure(f"{self.name} ended with {self._process.returncode}: {self.last_line()}")
            if time.monotonic() > deadline_s:
                raise ServerFailure(f"{self.name} was not ready within {timeout_s:.0f} s: {self.last_line()}")
            time.sleep(POLL_S)

    def wait_ended(self, timeout_s: float) -> None:
        """Wait until it has done its work. Raises ServerFailure if it fails, or takes longer."""
        try:
            code = self._process.wait(timeout_s)
        except psutil.TimeoutExpired:
            raise ServerFailure(f"{self.name} had not ended after {timeout_s:.0f} s: {self.last_line()}") from None
        if code != 0:
            raise ServerFailure(f"{self.name} ended with {code}: {self.last_line()}")

    def log(self) -> str:
        """Return what it has written so far."""
        return self._log.read_bytes().decode("utf-8", "replace")

    def last_line(self) -> str:
        """Return the last line of its log that names an error of Python or pip, else the last line."""
        lines = [line.strip() for line in self.log().splitlines() if line.strip()]
        named = [line for line in lines if re.match(r"([\w.]+(Error|Exception)\b|ERROR:)", line)]
        return (named or lines or ["it printed nothing"])[-1][:300]

    def processes(self) -> list[psutil.Process]:
        """Return those of its processes that run now."""
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return [self._process]

    def stop(self) -> None:
        """End it with all its children; do nothing if it has ended."""
        processes = self.processes()
        for end in ("terminate", "kill"):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    getattr(process, end)()
            _, processes = psutil.wait_procs(processes, timeout=STOP_S)
        self._folder.cleanup()


class Meter:
    """Processor time, memory and energy of a server, from where the block is entered to where it is left."""

    def __init__(self, server: Server) -> None:
        self._server = server

        # Of the whole machine.
        self.energy = EnergyMeter()

        # Highest sum of the resident memory of all processes so far.
        self.peak_rss_mb = 0.0

        # Processor time of each process by its id, when it was last seen, and at the beginning.
        self._used_s: dict[int, float] = {}
        self._begin_s: dict[int, float] = {}
        self._known: list[psutil.Process] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self.look()
        self._begin_s = dict(self._used_s)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def cpu_s(self) -> float:
        """Return the processor time used since the block was entered; a new child counts from its start."""
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._used_s[process.pid] = times.user + times.system
        return sum(used_s - self._begin_s.get(pid, 0.0) for pid, used_s in list(self._used_s.items()))

    def look(self) -> None:
        """Find the processes that run now, and measure them."""
        self._known = self._server.processes()
        rss_bytes = 0
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                rss_bytes += process.memory_info().rss
        self.peak_rss_mb = max(self.peak_rss_mb, rss_bytes / 2**20)
        self.cpu_s()

    def _watch(self) -> None:
        while not self._left.wait(LOOK_S):
            self.look()
            self.energy.joules()  # often, so that no counter wraps round unseen


def run(name: str, command: Sequence[str], variables: Mapping[str, str], timeout_s: float) -> float:
    """Run a program to its end; return its processor time in seconds. Raises ServerFailure."""
    process = Server(name, command, variables)
    try:
        with Meter(process) as meter:
            process.wait_ended(timeout_s)
        return meter.cpu_s()
    finally:
        process.stop()


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Return whether a server takes connections at a port of the loopback interface."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=POLL_S):
            return True
    except OSError:
        return False
