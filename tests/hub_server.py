"""A local hub: serves a directory as the Hugging Face Hub serves its repositories, with faults on demand.

    root/OWNER/REPO/FILE...

Its protocol is what `huggingface_hub` speaks: `/api/models/REPO/revision/main` lists the files, and
`/REPO/resolve/REVISION/FILE` gives one (large ones by a redirect to another host with a signed address).
"""

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace, TracebackType
from urllib.parse import unquote, urlsplit

import platformdirs
import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http

from streamer.whisper.hub import fetch

# What the real hub keeps with Git LFS, and so names by SHA-256.
LFS = (".safetensors", ".bin", ".pt", ".npz")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    method: str
    path: str

    # Names in lower case.
    headers: Mapping[str, str]

    # Whether it came to the host of the large files.
    cdn: bool

    # How much of a file was sent.
    n_sent: int = 0


@dataclass
class Hub:
    """A hub on loopback. Faults are set by the name of a file, or `api` for the list of files."""

    root: Path
    commit: str = COMMIT

    # Every request so far.
    requests: list[Request] = field(default_factory=list)

    # After how many bytes each next answer breaks off.
    cuts: dict[str, list[int]] = field(default_factory=dict)

    # Content that is sent in place of the right one.
    wrong: dict[str, bytes] = field(default_factory=dict)

    # Status and X-Error-Code of the answer.
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)

    # No answer at all.
    hangs: set[str] = field(default_factory=set)

    # Redirected to itself for ever.
    loops: set[str] = field(default_factory=set)

    # Seconds between the blocks of a file, so that a test can step in.
    pause_s: float = 0

    # The list of files, where it is not to be the true one.
    listing: object = None

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._servers = [self._serve(cdn=False), self._serve(cdn=True)]
        self.url, self.cdn_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repository: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            path = self.root / repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def fetched(self, name: str) -> list[Request]:
        """Return the requests that were answered with content of a file."""
        return [r for r in self.requests if r.method == "GET" and Path(r.path).name == name and r.n_sent]

    def _serve(self, *, cdn: bool) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_HEAD(self) -> None:
                self._answer()

            def log_message(self, format: str, *args: object) -> None:
                pass

            def _answer(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, unquote(urlsplit(self.path).path), headers, cdn)
                hub.requests.append(request)
                try:
                    hub._answer(self, request)
                except ConnectionError:
                    self.close_connection = True

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def _answer(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        parts = request.path.strip("/").split("/")
        name = "api" if parts[0] == "api" else parts[-1]
        if name in self.hangs:
            self._closing.wait()
            handler.close_connection = True
        elif name in self.refused:
            status, code = self.refused[name]
            self._reply(handler, status, b'{"error":"no"}', {"X-Error-Code": code} if code else {})
        elif name in self.loops:
            self._reply(handler, 302, b"", {"Location": handler.path})
        elif parts[:2] == ["api", "models"]:
            self._list(handler, "/".join(parts[2:4]))
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve(handler, request, "/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._reply(handler, 404, b"{}", {})

    def _list(self, handler: BaseHTTPRequestHandler, repository: str) -> None:
        folder = self.root / repository
        if not folder.is_dir():
            # The real one says so to whoever shows no token, to give nothing away.
            self._reply(handler, 401, b'{"error":"Invalid username or password."}', {"X-Error-Code": "RepoNotFound"})
            return
        siblings = []
        for path in sorted(file for file in folder.rglob("*") if file.is_file()):
            content = path.read_bytes()
            sibling: dict[str, object] = {
                "rfilename": path.relative_to(folder).as_posix(),
                "size": len(content),
                "blobId": git_digest(content),
            }
            if path.suffix in LFS:
                sibling["lfs"] = {"sha256": lfs_digest(content), "size": len(content), "pointerSize": 134}
            siblings.append(sibling)
        listing = {"id": repository, "modelId": repository, "sha": self.commit, "private": False, "siblings": siblings}
        self._reply(handler, 200, json.dumps(self.listing or listing).encode(), {"Content-Type": "application/json"})

    def _resolve(self, handler: BaseHTTPRequestHandler, request: Request, repository: str, name: str) -> None:
        path = self.root / repository / name
        if not path.is_file():
            self._reply(handler, 404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        digest = lfs_digest(content) if path.suffix in LFS else git_digest(content)
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if path.suffix in LFS and not request.cdn:
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            self._reply(handler, 302, b"", {**headers, "Location": f"{self.cdn_url}{handler.path}?Signature=x"})
            return
        self._send(handler, request, self.wrong.get(path.name, content), headers)

    def _send(
        self, handler: BaseHTTPRequestHandler, request: Request, content: bytes, headers: Mapping[str, str]
    ) -> None:
        begin = 0
        asked = request.headers.get("range", "")
        if asked:
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            headers = {**headers, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
        handler.send_response(206 if begin else 200)
        for key, value in {**headers, "Content-Length": str(len(content) - begin)}.items():
            handler.send_header(key, value)
        handler.end_headers()
        if request.method == "HEAD":
            return
        cuts = self.cuts.get(Path(request.path).name)
        end = begin + cuts.pop(0) if cuts else len(content)
        for at in range(begin, end, 4096):
            block = content[at : min(at + 4096, end)]
            handler.wfile.write(block)
            request.n_sent += len(block)
            if self.pause_s:
                time.sleep(self.pause_s)
        if end < len(content):
            handler.close_connection = True

    def _reply(self, handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        handler.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def lfs_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def take_for_the_real_one(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process take a hub for the real one, with the cache in `folder`, and for the only source.

    `huggingface_hub` reads its settings once.
    """
    monkeypatch.setattr(fetch, "PACKAGED", {})
    ask(hub.url, monkeypatch)
    monkeypatch.setattr(constants, "HF_HOME", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda program: folder)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    # The library tries again for half a minute.
    for module in (file_download, _http):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda s: None, time=time.time))
    monkeypatch.setattr(file_download, "_ETAG_RETRY_TIMEOUT", 0.2)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def ask(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library ask a hub at this address."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
