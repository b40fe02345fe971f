"""What is attacked: a server at a port, a daemon that the attacker starts, and an honest client's session with it."""

import contextlib
import difflib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import soundfile
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tools.attacks.wire import Broken, Wire, expect, statuses

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "models" / "nano.en" / "sample.flac"

START_S = 60.0  # until a daemon is ready
SPOKEN_S = (12.6, 15.12)  # of the sample: its third sentence, which is its shortest
HONEST_S = 20.0  # an honest client has its text by then

# If a limit is a time or a count, the attacked daemon has a small one, so that attacks need not take long.
MAX_STREAMS, RESUME_S = 16, 2.0
LIMITS = {
    "HEADER_TIMEOUT_S": 2,
    "FIRST_MESSAGE_S": 2,
    "IDLE_S": 4,
    "RESUME_S": RESUME_S,
    "MAX_STREAMS": MAX_STREAMS,
    "MAX_CONNECTIONS": 300,
    "MAX_CONNECTIONS_PER_ADDRESS": 64,
}
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@dataclass
class Target:
    """A server on 127.0.0.1, the token that it requires, if any, and whether it uses TLS."""

    port: int
    token: str = ""
    tls: bool = False

    def open(self, source: int = 2, receive_buffer: int = 0, timeout_s: float = 10.0) -> Wire:
        """Connect. Raises Broken if the server does not accept the connection."""
        try:
            return Wire(self.port, source, receive_buffer, timeout_s)
        except OSError as error:
            raise Broken(f"cannot connect: {error}") from None

    def upgrade(self, path: str, wire: Wire) -> Wire:
        """Make a connection a WebSocket; return it. Raises Broken if that is refused."""
        wire.send(self._head(path, UPGRADE))
        head, _, wire.unread = wire.read(wire.timeout_s, b"\r\n\r\n").partition(b"\r\n\r\n")
        wire.is_websocket = True
        if statuses(head) != [101]:
            wire.sock.close()
            raise Broken(f"{path} answers {statuses(head) or 'nothing'} instead of opening a WebSocket")
        return wire

    def ask(self, path: str, source: int = 1) -> tuple[int, str]:
        """Return status and body of a request, as an honest client sends it. Raises Broken if none comes."""
        with self.open(source) as wire:
            if self.tls:
                wire.sock = any_certificate().wrap_socket(wire.sock, server_hostname="localhost")
            wire.send(self._head(path, "Connection: close\r\n"))
            data = wire.read(10.0)
        found = statuses(data)
        expect(bool(found), f"{path} is not answered")
        return found[0], data.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")

    def serve_honest(self) -> None:
        """Have a sentence of the sample transcribed, as an honest client does. Raises Broken if that fails."""
        speech, text = spoken_bytes(), ""
        wanted = json.loads(SAMPLE.with_suffix(".json").read_text(encoding="utf-8"))[2]["text"]
        try:
            with connect(
                f"{'wss' if self.tls else 'ws'}://127.0.0.1:{self.port}/v1/stream",
                additional_headers={"Authorization": f"Bearer {self.token}"} if self.token else None,
                ssl=any_certificate() if self.tls else None,
                proxy=None,
                open_timeout=HONEST_S,
            ) as socket:
                for at in range(0, len(speech), 3200):
                    socket.send(speech[at : at + 3200])
                socket.send('{"type":"finish"}')
                while (event := json.loads(socket.recv(timeout=HONEST_S)))["type"] != "end":
                    expect(event["type"] != "error", f"an honest session gets an error: {event.get('message')}")
                    text += event["text"] + " " if event["type"] == "final" else ""
        except (OSError, WebSocketException) as error:
            raise Broken(f"an honest session fails: {type(error).__name__}: {error}") from None
        alike = difflib.SequenceMatcher(None, _letters(text), _letters(wanted), autojunk=False).ratio()
        expect(alike > 0.85, f"an honest session reads {text!r}")

    def _head(self, path: str, more: str) -> bytes:
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{token}{more}\r\n".encode()


class Look(NamedTuple):
    """How a daemon was at a moment."""

    rss_mb: float
    threads: int
    fds: int
    cpu_s: float
    log_bytes: int


@dataclass
class Daemon(Target):
    """A daemon of the attacker's: `start` it before all else, and `stop` it. It chooses its port if that is 0."""

    # Further settings, as environment variables without STREAMER_; arguments of `streamer run` besides the port.
    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ("--input", "none")
    limits: Mapping[str, float] = field(default_factory=lambda: LIMITS)

    most_fds: int = 0  # descriptors that it may have; 0: as many as the attacker
    unread: bool = False  # whether its standard error is a pipe that is not read, instead of a log

    def start(self) -> None:
        """Start it, and wait until it is ready. Raises Broken if it does not become so."""
        self._folder = tempfile.TemporaryDirectory(prefix="streamer-attack-")
        self._log = Path(self._folder.name, "log")
        with self._log.open("wb") as log:
            self._process = psutil.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if self.unread else log,
                env=self._environment(),
            )
        end = time.monotonic() + START_S
        while not self._ready():
            if not self.alive or time.monotonic() > end:
                self.kill()
                raise Broken(f"the daemon did not start in {START_S:.0f} s: {self.last_words()}")
            time.sleep(0.05)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self._process.pid)

    def look(self) -> Look:
        """Return how it is. Raises Broken if it has ended."""
        try:
            process = self._process
            times, rss_mb = process.cpu_times(), process.memory_info().rss / 2**20
            n_fds = process.num_handles() if sys.platform == "win32" else process.num_fds()
            n_log = self._log.stat().st_size
            return Look(rss_mb, process.num_threads(), n_fds, times.user + times.system, n_log)
        except psutil.Error:
            raise Broken(f"the daemon ended ({self._process.poll()}): {self.last_words()}") from None

    def said(self, since: int = 0) -> str:
        """Return what it logged after a byte."""
        return self._log.read_bytes()[since:].decode("utf-8", "replace")

    def last_words(self) -> str:
        """Return the last line of its log."""
        return ([line for line in self.said().splitlines() if line.strip()] or ["nothing was logged"])[-1][:300]

    def n_sessions(self) -> int:
        """Return how many sessions of clients it serves. Raises Broken if its metrics lack that."""
        found = re.findall(r"^streamer_sessions (\d+)", self.ask("/metrics")[1], re.MULTILINE)
        expect(bool(found), "the metrics lack streamer_sessions")
        return int(found[0]) - (self.arguments[1] != "none")

    def signal(self, name: str) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            self._process.send_signal(signal.Signals[name])

    def kill(self) -> None:
        """End it as a power cut does."""
        with contextlib.suppress(psutil.Error):
            self._process.kill()
        self._process.wait(10)

    def wait(self, seconds: float) -> int:
        """Return its exit code. Raises Broken if it does not end in time."""
        try:
            return int(self._process.wait(seconds))
        except psutil.TimeoutExpired:
            raise Broken(f"the daemon still runs after {seconds:.0f} s") from None

    def stop(self) -> None:
        """End it, and delete its files."""
        self.kill()
        self._folder.cleanup()

    def _ready(self) -> bool:
        if found := re.search(rb"listening on https?://[^\s/]*:(\d+)/", self._log.read_bytes()):
            self.port = int(found[1])
        with contextlib.suppress(Broken):
            return self.port > 0 and self.ask("/healthz")[0] == 200
        return False

    def _command(self) -> list[str]:
        run = [sys.executable, "-m", "streamer", "run", "--port", str(self.port), *self.arguments]
        if not self.most_fds:
            return run
        limit = f"import os,resource,sys;resource.setrlimit(resource.RLIMIT_NOFILE,({self.most_fds},)*2)"
        return [sys.executable, "-c", f"{limit};os.execv(sys.argv[1],sys.argv[1:])", *run]

    def _environment(self) -> dict[str, str]:
        ours = {f"SERVER_{name}": f"{value:g}" for name, value in self.limits.items()}
        if self.limits:  # what a busy machine measures is not part of an attack
            ours["STREAM_MAX_PACE_S"] = "30"
        ours |= {"SERVER_TOKEN": self.token} if self.token else {}
        ours |= {"MODEL_NAME": "nano.en", **self.settings}  # `auto` would choose by this machine
        kept = {k: v for k, v in os.environ.items() if not k.startswith("STREAMER_") or k == "STREAMER_CACHE_DIR"}
        folders = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME", "APPDATA"), self._folder.name)
        return {**kept, **folders, "PYTHONUTF8": "1", **{f"STREAMER_{name}": value for name, value in ours.items()}}


@dataclass
class Watched:
    """What was seen of a daemon while it was attacked."""

    peak_mb: float
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)  # what `/healthz` answered instead of 200


@contextlib.contextmanager
def watch(daemon: Daemon, *, probe: bool) -> Iterator[Watched]:
    """Look at a daemon's memory meanwhile; with `probe`, request `/healthz` again and again."""
    seen, over = Watched(daemon.look().rss_mb), threading.Event()

    def measure() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(Broken, OSError):
                seen.peak_mb = max(seen.peak_mb, daemon.look().rss_mb)

    def ask() -> None:
        while not over.wait(0.25):
            begin = time.monotonic()
            try:
                status, _ = daemon.ask("/healthz")
                seen.failures += [str(status)] if status != 200 else []
            except (Broken, OSError) as broken:
                seen.failures.append(str(broken))
            seen.slowest_s = max(seen.slowest_s, time.monotonic() - begin)

    with ThreadPoolExecutor() as pool:
        for work in (measure, ask) if probe else (measure,):
            pool.submit(work)
        try:
            yield seen
        finally:
            over.set()


def spoken_bytes(begin_s: float = SPOKEN_S[0], end_s: float = SPOKEN_S[1]) -> bytes:
    """Return a part of the sample as 16-bit integers."""
    with soundfile.SoundFile(SAMPLE) as file:
        file.seek(round(begin_s * file.samplerate))
        return bytes(file.read(round((end_s - begin_s) * file.samplerate), dtype="int16").tobytes())


def write_speech(path: Path, minutes: float) -> None:
    """Write a recording of the sample and as much silence after it, again and again."""
    samples, rate = soundfile.read(SAMPLE, dtype="int16")
    with soundfile.SoundFile(path, "w", rate, 1, "PCM_16") as file:
        while file.frames < minutes * 60 * rate:
            file.write(samples)
            file.write(samples * 0)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]+", " ", text.lower())


def any_certificate() -> ssl.SSLContext:
    """Return a client's side of TLS that accepts any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
