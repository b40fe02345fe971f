"""A package index on loopback with small wheels, which pip takes for the real one; faults on demand."""

import contextlib
import hashlib
import os
import socket
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote

import pytest

from streamer.wheels import PackedFile, Wheel
from tests.hub_server import Hub, ask, take_for_the_real_one


@dataclass
class Index:
    """A package index. Faults are set by the name of a wheel's file."""

    root: Path

    # Paths of all requests so far.
    requests: list[str] = field(default_factory=list)

    # Content that is sent in place of the right one.
    wrong: dict[str, bytes] = field(default_factory=dict)

    # Set: wheels are sent up to half, and the rest never comes.
    hangs: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.requests.append(self.path)
                index._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/simple"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, package: str, files: Mapping[str, bytes]) -> Wheel:
        """Add version 1.0 of a package whose wheel holds some files, and code that must not be run."""
        stem = f"{package.replace('-', '_')}-1.0"
        path = self.root / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
            archive.writestr(f"{package}/__init__.py", "raise SystemExit('it was run')")
            archive.writestr(
                f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            archive.writestr(f"{stem}.dist-info/RECORD", "")
        content = path.read_bytes()
        return Wheel(f"{package}==1.0", path.name, len(content), hashlib.sha256(content).hexdigest())

    def fetched(self, wheel: Wheel) -> int:
        """Return how often a wheel was asked for."""
        return sum(path.endswith(wheel.file) for path in self.requests)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        name = unquote(handler.path).strip("/").rpartition("/")[2]
        path = self.root / name
        if not name.endswith(".whl"):
            stem = name.replace("-", "_")
            links = "".join(f'<a href="/{wheel.name}">{wheel.name}</a>' for wheel in self.root.glob(f"{stem}-*.whl"))
            content = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        else:
            content = self.wrong.get(name, path.read_bytes())
        handler.send_response(200)
        handler.send_header("Content-Type", "application/octet-stream" if name.endswith(".whl") else "text/html")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if name.endswith(".whl") and self.hangs.is_set():
            handler.wfile.write(content[: len(content) // 2])
            handler.wfile.flush()
            self._closing.wait()
            return
        handler.wfile.write(content)


def packed(name: str, content: bytes, *parts: tuple[Wheel, str]) -> PackedFile:
    """Return a file with this content that lies in wheels."""
    return PackedFile(name, parts, hashlib.sha256(content).hexdigest())


def pip_environment(index_url: str) -> dict[str, str | None]:
    """Return the environment in which pip knows this index alone; None: without this variable."""
    cleared = dict.fromkeys(name for name in os.environ if name.startswith("PIP_"))
    return {**cleared, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index_url, "NO_PROXY": "127.0.0.1"}


def let_pip_ask(index_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip, started by this process, ask this index alone."""
    for name, value in pip_environment(index_url).items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)


@contextlib.contextmanager
def index_without_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that pip asks, and a Hub that does not listen; nothing is on this machine."""
    with Index(tmp_path / "index") as index, Hub(tmp_path / "hub") as hub, socket.socket() as listener:
        take_for_the_real_one(hub, tmp_path, monkeypatch)
        listener.bind(("127.0.0.1", 0))
        ask(f"http://127.0.0.1:{listener.getsockname()[1]}", monkeypatch)
        let_pip_ask(index.url, monkeypatch)
        yield index
