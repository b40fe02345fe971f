"""A server that is measured: started as a process, watched with all its children, and gone at the end."""

import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from streamer.commands.energy import EnergyMeter
from streamer.errors import StreamerError

LOOK_S = 0.5  # between two looks at which processes there are and how large they are
POLL_S = 0.1  # between two looks whether it is ready
STOP_S = 5.0  # for an orderly end, then it is killed


class ServerFailure(StreamerError):  # noqa: N818 - what happened to it, not a fault of ours
    """A server ended, or said nothing in time; the message holds the last line of its log."""

    code = "server_failure"


class Server:
    """One process and its children; what it writes goes to a file, so that it never waits for us."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Raise ServerFailure where there is no such program."""
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="streamer-benchmark-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log"
        try:
            with self._log.open("wb") as log:
                self._process = psutil.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(variables),
                )
        except OSError as error:
            self._folder.cleanup()
            raise ServerFailure(f"{name} cannot be started: {error}") from None

    def wait_said(self, pattern: str, timeout_s: float) -> str:
        """Wait until a line of its log matches, and return the match.

        Raises ServerFailure where it ends first, or does not say it in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None
            if found := re.search(pattern, self._logged()):
                return found[0]
            self._check(ended, deadline_s, timeout_s)

    def wait_listening(self, port: int, timeout_s: float) -> None:
        """Wait until it takes connections; raise ServerFailure as `wait_said` does."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=POLL_S):
                return
            self._check(ended, deadline_s, timeout_s)

    def wait_ended(self, timeout_s: float) -> None:
        """Wait until it has done its work; raise ServerFailure where it fails, or takes longer."""
        try:
            code = self._process.wait(timeout_s)
        except psutil.TimeoutExpired:
            raise ServerFailure(f"{self.name} had not ended after {timeout_s:.0f} s: {self.last_words()}") from None
        if code != 0:
            raise ServerFailure(f"{self.name} ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the last line of its log that names a Python exception, else the last line."""
        lines = [line.strip() for line in self._logged().splitlines() if line.strip()]
        named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return (named or lines or ["it said nothing"])[-1][:300]

    def processes(self) -> list[psutil.Process]:
        """Return those of its processes that run now."""
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return [self._process]

    def stop(self) -> None:
        """End it with all its children; nothing happens where it has ended."""
        processes = self.processes()
        for end in ("terminate", "kill"):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    getattr(process, end)()
            _, processes = psutil.wait_procs(processes, timeout=STOP_S)
        self._folder.cleanup()

    def _check(self, ended: bool, deadline_s: float, timeout_s: float) -> None:
        if ended:
            raise ServerFailure(f"{self.name} ended with {self._process.returncode}: {self.last_words()}")
        if time.monotonic() > deadline_s:
            raise ServerFailure(f"{self.name} was not ready within {timeout_s:.0f} s: {self.last_words()}")
        time.sleep(POLL_S)

    def _logged(self) -> str:
        try:
            return self._log.read_bytes().decode("utf-8", "replace")
        except OSError:  # it was stopped
            return ""


class Meter:
    """Processor time, memory and energy of a server, from where the block is entered to where it is left."""

    def __init__(self, server: Server) -> None:
        self._server = server

        # Of the whole machine.
        self.energy = EnergyMeter()

        # Highest sum of the resident memory of all processes so far.
        self.peak_rss_mb = 0.0

        # Processor time of each process by its id, when it was last seen, and where it stood at the beginning.
        self._used_s: dict[int, float] = {}
        self._begin_s: dict[int, float] = {}
        self._known: list[psutil.Process] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._begin_s = dict(self._used_s)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def cpu_s(self) -> float:
        """Return the processor time used since the block was entered; a child that has come counts from its start."""
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._used_s[process.pid] = times.user + times.system
        return sum(used_s - self._begin_s.get(pid, 0.0) for pid, used_s in list(self._used_s.items()))

    def _watch(self) -> None:
        while not self._left.wait(LOOK_S):
            self._look()
            self.energy.joules()  # often, so that no counter begins anew unseen

    def _look(self) -> None:
        self._known = self._server.processes()
        rss_bytes = 0
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                rss_bytes += process.memory_info().rss
        self.peak_rss_mb = max(self.peak_rss_mb, rss_bytes / 2**20)
        self.cpu_s()


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def our_python() -> str:
    """Return the interpreter that runs us."""
    return sys.executable
