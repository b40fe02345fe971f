"""The real program as a process, and clients of it that keep what they receive."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soundfile
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.events import Event, from_json
from tests.waiting import WAIT_S as WAIT_S

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLE = REPOSITORY / "models" / "nano.en" / "sample.flac"

# Where compiled graphs are kept; set for a whole run of the tests.
CACHE_VARIABLE = "STREAMER_CACHE_DIR"

# The model that commands load which name none: tests fetch nothing.
MODEL_VARIABLE = "STREAMER_MODEL_NAME"


@dataclass
class Outcome:
    """What a command that has ended left behind."""

    exit_code: int
    stdout: str
    stderr: str

    def error(self) -> str:
        """Return the one line that says what went wrong; whatever else was logged must not be another."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("streamer: error: ")]
        assert len(lines) == 1, self.stderr
        assert "Traceback" not in self.stderr
        return lines[0]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without anybody's settings; compiled graphs and the model are the tests' own."""
    ours = (CACHE_VARIABLE, MODEL_VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name in ours or not name.startswith("STREAMER_")}
    return {**kept, "XDG_CONFIG_HOME": os.devnull, "APPDATA": os.devnull, "PYTHONUTF8": "1", **(extra or {})}


def command(*arguments: str | Path, environ: Mapping[str, str] | None = None, stdin: bytes = b"") -> Outcome:
    """Run a command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "streamer", *map(str, arguments)],
        capture_output=True,
        input=stdin,
        timeout=3 * WAIT_S,
        env=environment(environ),
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


class Daemon:
    """A daemon, or another command, that has been started."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

        # Its address, `http://HOST:PORT/`, once it is ready.
        self.url = ""

        # What it has said so far.
        self._stderr: list[str] = []
        self._stdout = b""

        # Notified when it says something more, or has ended.
        self._said = threading.Condition()
        self._ended = False
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_stderr, self._read_stdout)]
        for reader in self._readers:
            reader.start()

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        return "".join(self._stderr)

    def wait_ready(self) -> None:
        """Wait for the one line with its address."""
        self.url = self.wait_said(r"(http://\S+)")

    def wait_said(self, pattern: str) -> str:
        """Wait until a line of its log matches, and return the match's first group, or all of it."""

        def found() -> "re.Match[str] | None":
            return re.search(pattern, self.stderr)

        with self._said:
            assert self._said.wait_for(lambda: found() or self._ended, WAIT_S), f"no {pattern!r} in:\n{self.stderr}"
        match = found()
        assert match, f"it ended without {pattern!r}:\n{self.stderr}"
        return match[match.re.groups]

    def wait_answer(self) -> None:
        """Wait until it answers at its address, whatever it says."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                self.get("/healthz")
            except OSError:
                assert time.monotonic() < deadline_s, f"no answer from {self.url}:\n{self.stderr}"
                time.sleep(0.01)
            else:
                return

    def address(self, path: str) -> str:
        """Return the ws:// address of a path."""
        return self.url.replace("http://", "ws://").rstrip("/") + path

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Return status and body of a path."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(self.url.rstrip("/") + path, method=method)
        try:
            with opener.open(request, timeout=WAIT_S) as response:
                return int(response.status), response.read().decode("utf-8")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode("utf-8")

    def post(self, path: str) -> tuple[int, str]:
        """Return status and body of what is answered to a command."""
        return self.get(path, "POST")

    def health(self) -> dict[str, Any]:
        """Return what /healthz says, which must be that all is well."""
        status, body = self.get("/healthz")
        assert status == 200, body
        health: dict[str, Any] = json.loads(body)
        return health

    def metric(self, name: str, token: str) -> float:
        """Return the value of a metric."""
        text = httpx.get(f"{self.url}metrics", headers={"Authorization": f"Bearer {token}"}, trust_env=False).text
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def terminate(self) -> None:
        """Ask it to stop, as a service manager does."""
        if sys.platform == "win32":
            self.process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            self.process.send_signal(signal.SIGTERM)

    def wait(self) -> Outcome:
        """Wait for its end."""
        exit_code = self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        return Outcome(exit_code, self._stdout.decode("utf-8"), self.stderr)

    def stop(self) -> Outcome:
        """Ask it to stop, and wait."""
        self.terminate()
        return self.wait()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self._stderr.append(line.decode("utf-8", "replace"))
                self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        self._stdout = self.process.stdout.read()


@contextlib.contextmanager
def started(
    *arguments: str | Path, environ: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> Iterator[Daemon]:
    """Start a command; it is gone when the block is left."""
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP  # else a Ctrl-Break for it would end the tests too
    process = subprocess.Popen(
        [sys.executable, "-m", "streamer", *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(environ),
        creationflags=flags,
    )
    daemon = Daemon(process)
    try:
        yield daemon
    finally:
        if process.poll() is None:
            process.kill()
        daemon.wait()


@contextlib.contextmanager
def running(
    *arguments: str | Path, environ: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> Iterator[Daemon]:
    """Start `streamer run` on a free port and wait until it is ready. It has room however busy the machine is."""
    room = {"STREAMER_STREAM_MAX_PACE_S": "60", "STREAMER_STREAM_PACE_S": "0.5"}
    with started("run", "--port", "0", *arguments, environ={**room, **(environ or {})}, stdin=stdin) as daemon:
        daemon.wait_ready()
        yield daemon


@contextlib.contextmanager
def serving_with(token: str, environ: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """Run a daemon for clients with a token, which it must not show; it must end without a traceback."""
    with running("--input", "none", environ={"STREAMER_SERVER_TOKEN": token, **(environ or {})}) as daemon:
        yield daemon
        outcome = daemon.stop()
        assert outcome.exit_code == 0, outcome.stderr
        assert "Traceback" not in outcome.stderr, outcome.stderr
        assert token not in outcome.stderr


@dataclass
class Received:
    """What a client received over one connection."""

    events: list[Event] = field(default_factory=list)

    # How the server closed it; None while it is open.
    close_code: int | None = None
    close_reason: str = ""

    # Notified with every event and at the close.
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of(self, *types: type[Event]) -> list[Any]:
        """Return the events of some types."""
        return [event for event in self.events if isinstance(event, types)]

    async def wait_for(self, *types: type[Event], n: int = 1) -> None:
        """Wait until there are `n` events of some types."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: len(self.of(*types)) >= n or self.close_code is not None)
        assert len(self.of(*types)) >= n, f"closed with {self.close_code} {self.close_reason}: {self.events[-3:]}"

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: self.close_code is not None)


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[ClientConnection, Received]]:
    """Connect, and keep what comes; where the block is left before the server closes, so does the client."""
    received = Received()
    async with connect(address, proxy=None, max_size=None) as connection:
        receiving = asyncio.create_task(_receive(connection, received))
        try:
            yield connection, received
        finally:
            await connection.close()
            await receiving


async def _receive(connection: ClientConnection, received: Received) -> None:
    try:
        while True:
            event = from_json(await connection.recv())
            async with received.changed:
                received.events.append(event)
                received.changed.notify_all()
    except ConnectionClosed as closed:
        async with received.changed:
            received.close_code = closed.rcvd.code if closed.rcvd else 1006
            received.close_reason = closed.rcvd.reason if closed.rcvd else ""
            received.changed.notify_all()


async def follow(address: str) -> Received:
    """Read captions until the server closes."""
    async with connected(address) as (_, received):
        await received.wait_closed()
        return received


async def send_audio(connection: ClientConnection, samples: Float32Array, *, speed: float = 0.0) -> None:
    """Send 16 kHz audio as 16-bit integers in frames of 100 ms, at a pace (0: as fast as it is taken)."""
    size = SAMPLE_RATE // 10
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    for first in range(0, len(samples), size):
        if speed:
            await asyncio.sleep(begin_s + first / SAMPLE_RATE / speed - loop.time())
        await connection.send(pcm16(samples[first : first + size]))


async def transcribe(
    daemon: Daemon, samples: Float32Array, *, speed: float = 0.0, start: Mapping[str, object] | None = None
) -> Received:
    """Send audio to /v1/stream, finish, and read to the end."""
    async with connected(daemon.address("/v1/stream")) as (connection, received):
        if start is not None:
            await connection.send(json.dumps({"type": "start", **start}))
        await send_audio(connection, samples, speed=speed)
        await connection.send('{"type":"finish"}')
        await received.wait_closed()
        return received


def free_port() -> int:
    """Return a port on loopback at which nothing listened just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def pcm16(samples: Float32Array) -> bytes:
    """Return samples as 16-bit little-endian integers."""
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def recording(path: Path = SAMPLE, begin_s: float = 0.0, end_s: float | None = None) -> Float32Array:
    """Return a part of a 16 kHz mono recording, shape (n_samples,)."""
    samples, sample_rate = soundfile.read(path, dtype="float32")
    assert sample_rate == SAMPLE_RATE
    part: Float32Array = samples[round(begin_s * SAMPLE_RATE) : None if end_s is None else round(end_s * SAMPLE_RATE)]
    return part


def sample_text(begin_s: float = 0.0, end_s: float = 1e9) -> str:
    """Return what is said in the sample recording, of the sentences that lie wholly between two times."""
    return " ".join(s["text"] for s in _sentences() if s["start"] >= begin_s and s["end"] <= end_s)


def pause_after(number: int) -> float:
    """Return a time in the sample recording's pause after so many sentences."""
    before, after = _sentences()[number - 1 : number + 1]
    return round((float(before["end"]) + float(after["start"])) / 2, 2)


def _sentences() -> Sequence[dict[str, Any]]:
    sentences: Sequence[dict[str, Any]] = json.loads(SAMPLE.with_suffix(".json").read_text(encoding="utf-8"))
    return sentences


def events_of(text: str) -> list[Event]:
    """Read JSON lines as events."""
    return [from_json(line) for line in text.splitlines()]
