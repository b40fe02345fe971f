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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import soundfile
from websockets.sync.client import connect

from tools.attacks.wire import Broken, Wire, expect, statuses

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "models" / "nano.en" / "sample.flac"

START_S = 60.0  # until a daemon is ready
SPOKEN_S = (12.6, 15.12)  # of the sample: its third sentence, which is its shortest
HONEST_S = 20.0  # an honest client has its text by then

# Where a limit is a time or a count, the attacked daemon has it small.
RESUME_S = 2.0
MAX_STREAMS = 16
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
TOKEN = "an-honest-token-of-some-length"

LIMITS = {
    "HEADER_TIMEOUT_S": 2,
    "FIRST_MESSAGE_S": 2,
    "IDLE_S": 4,
    "RESUME_S": RESUME_S,
    "MAX_STREAMS": MAX_STREAMS,
    "MAX_CONNECTIONS": 300,
    "MAX_CONNECTIONS_PER_ADDRESS": 64,
}


@dataclass
class Target:
    """A server on 127.0.0.1."""

    port: int

    # What it requires; nothing where empty.
    token: str = ""

    # Whether it speaks TLS.
    tls: bool = False

    def open(self, source: int = 2, *, receive_buffer: int = 0, timeout_s: float = 10.0) -> Wire:
        """Connect. Raises Broken if the server does not listen."""
        try:
            return Wire(self.port, source, receive_buffer=receive_buffer, timeout_s=timeout_s)
        except OSError as error:
            raise Broken(f"cannot connect: {error}") from None

    def upgrade(self, path: str, source: int = 2, *, receive_buffer: int = 0, timeout_s: float = 10.0) -> Wire:
        """Open a WebSocket. Raises Broken if it is refused."""
        wire = self.open(source, receive_buffer=receive_buffer, timeout_s=timeout_s)
        wire.send(self._head(path, UPGRADE))
        data = b""
        while b"\r\n\r\n" not in data and (piece := wire.receive(timeout_s)):
            data += piece
        head, _, wire.unread = data.partition(b"\r\n\r\n")
        wire.is_websocket = True
        if statuses(head) != [101]:
            wire.close()
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

    def _head(self, path: str, more: str) -> bytes:
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{token}{more}\r\n".encode("latin-1")

    def serve_honest(self) -> str:
        """Have a sentence of the sample transcribed, as an honest client does; return its text.

        Raises Broken where that fails, or is not the sentence.
        """
        text = ""
        try:
            with connect(
                f"{'wss' if self.tls else 'ws'}://127.0.0.1:{self.port}/v1/stream",
                additional_headers={"Authorization": f"Bearer {self.token}"} if self.token else None,
                ssl=any_certificate() if self.tls else None,
                proxy=None,
                open_timeout=HONEST_S,
            ) as socket:
                for piece in _spoken():
                    socket.send(piece)
                socket.send('{"type":"finish"}')
                while (event := json.loads(socket.recv(timeout=HONEST_S)))["type"] != "end":
                    expect(event["type"] != "error", f"an honest session gets an error: {event.get('message')}")
                    if event["type"] == "final":
                        text += event["text"] + " "
        except Broken:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the client was not served
            raise Broken(f"an honest session fails: {type(error).__name__}: {error}") from None
        alike = difflib.SequenceMatcher(None, _letters(text), _letters(_sentence()), autojunk=False).ratio()
        expect(alike > 0.85, f"an honest session reads {text!r}")
        return text


@dataclass(frozen=True)
class Look:
    """How a daemon was at a moment."""

    rss_mb: float
    threads: int
    fds: int
    cpu_s: float
    log_bytes: int


@dataclass
class Daemon(Target):
    """A daemon of our own; `start` it before all else, and `stop` it."""

    # Further settings, as environment variables without STREAMER_.
    settings: Mapping[str, str] = field(default_factory=dict)

    # Arguments of `streamer run` besides the port.
    arguments: tuple[str, ...] = ("--input", "none")

    # Limits, so small that attacks need not take long.
    limits: Mapping[str, float] = field(default_factory=lambda: LIMITS)

    # Descriptors that it may have; 0: as many as we.
    most_fds: int = 0

    def start(self) -> None:
        """Start it, and wait until it is ready. Raises Broken where it does not become so."""
        self._folder = tempfile.TemporaryDirectory(prefix="streamer-attack-")
        self.folder = Path(self._folder.name)
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self._process = psutil.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self._environment(),
            )
        end = time.monotonic() + START_S
        while (found := re.search(rb"listening on https?://[^\s/]*:(\d+)/", self.log.read_bytes())) is None:
            expect(self.alive, f"the daemon ended at its start: {self.last_words()}")
            expect(time.monotonic() < end, "the daemon was not ready in time")
            time.sleep(0.05)
        self.port = int(found[1])
        while self.ask("/healthz")[0] != 200:
            expect(time.monotonic() < end, "the daemon was not healthy in time")
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
        """Return how it is. Raises Broken where it is not there any more."""
        try:
            with self._process.oneshot():
                times = self._process.cpu_times()
                return Look(
                    self._process.memory_info().rss / 2**20,
                    self._process.num_threads(),
                    self._process.num_handles() if sys.platform == "win32" else self._process.num_fds(),
                    times.user + times.system,
                    self.log.stat().st_size,
                )
        except psutil.Error:
            raise Broken(f"the daemon ended ({self._process.poll()}): {self.last_words()}") from None

    def said(self, since: int = 0) -> str:
        """Return what it logged behind a byte."""
        return self.log.read_bytes()[since:].decode("utf-8", "replace")

    def last_words(self) -> str:
        """Return the last line of its log."""
        return ([line for line in self.said().splitlines() if line.strip()] or ["it said nothing"])[-1][:300]

    def n_sessions(self) -> int:
        """Return how many clients' sessions it serves. Raises Broken where it does not say."""
        found = re.search(r"^streamer_sessions (\d+)", self.ask("/metrics")[1], re.MULTILINE)
        expect(found is not None, "it does not tell its metrics")
        assert found is not None
        return int(found[1]) - (self.arguments[1] != "none")

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
        """Return its exit code. Raises Broken where it does not end in time."""
        try:
            return int(self._process.wait(seconds))
        except psutil.TimeoutExpired:
            raise Broken(f"the daemon runs on {seconds:.0f} s after it was told to stop") from None

    def stop(self) -> None:
        """Have it gone, and its files."""
        self.kill()
        self._folder.cleanup()

    def _command(self) -> list[str]:
        run = [sys.executable, "-m", "streamer", "run", "--port", "0", *self.arguments]
        if not self.most_fds:
            return run
        limit = f"import os,resource,sys;resource.setrlimit(resource.RLIMIT_NOFILE,({self.most_fds},)*2)"
        return [sys.executable, "-c", f"{limit};os.execv(sys.argv[1],sys.argv[1:])", *run]

    def _environment(self) -> dict[str, str]:
        ours = {f"STREAMER_SERVER_{name}": f"{value:g}" for name, value in self.limits.items()}
        if self.limits:  # what a busy machine measures is no part of it
            ours["STREAMER_STREAM_MAX_PACE_S"] = "30"
        ours["STREAMER_MODEL_NAME"] = "nano.en"  # `auto` takes what this machine has
        ours |= {"STREAMER_SERVER_TOKEN": self.token} if self.token else {}
        ours |= {f"STREAMER_{name}": value for name, value in self.settings.items()}
        cache = {"STREAMER_CACHE_DIR": os.environ["STREAMER_CACHE_DIR"]} if "STREAMER_CACHE_DIR" in os.environ else {}
        others = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
        elsewhere = {
            "XDG_CONFIG_HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder),
            "APPDATA": str(self.folder),
        }
        return {**others, **elsewhere, "PYTHONUTF8": "1", **cache, **ours}


class Watch:
    """Looks at a daemon while it is attacked: its largest memory, and whether a stranger gets an answer from it."""

    def __init__(self, daemon: Daemon, *, probe: bool) -> None:
        """With `probe` it asks for `/healthz` again and again."""
        self._daemon = daemon
        self.peak_mb = daemon.look().rss_mb
        self.slowest_s = 0.0
        # What a probe was answered instead of 200.
        self.failures: list[str] = []
        self._over = threading.Event()
        works = (self._measure, self._probe) if probe else (self._measure,)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _measure(self) -> None:
        while not self._over.wait(0.05):
            with contextlib.suppress(Broken, OSError):
                self.peak_mb = max(self.peak_mb, self._daemon.look().rss_mb)

    def _probe(self) -> None:
        while not self._over.wait(0.25):
            begin = time.monotonic()
            try:
                status, _ = self._daemon.ask("/healthz")
                if status != 200:
                    self.failures.append(str(status))
            except (Broken, OSError) as broken:
                self.failures.append(str(broken))
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin)


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


def _spoken() -> list[bytes]:
    data = spoken_bytes()
    return [data[first : first + 3200] for first in range(0, len(data), 3200)]


def _sentence() -> str:
    return str(json.loads(SAMPLE.with_suffix(".json").read_text(encoding="utf-8"))[2]["text"])


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]+", " ", text.lower())


def any_certificate() -> ssl.SSLContext:
    """Return a client's side of TLS that accepts any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
