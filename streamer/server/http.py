"""The HTTP half of the port: the captions page, its health and its numbers."""

import importlib.resources
import logging
import operator
import re
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import get_args
from urllib.parse import parse_qs, urlsplit

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from streamer.server.access import Access
from streamer.server.interfaces import Input
from streamer.server.messages import Command

logger = logging.getLogger(__name__)

# The daemon's own input: how it is (GET), and what it is to do (POST).
INPUT_PATH = "/v1/input"
COMMANDS: dict[str, Callable[[Input], None]] = {
    f"{INPUT_PATH}/{command}": operator.methodcaller(command) for command in get_args(Command)
}

# Files of the captions page. All but the page itself are served without a token: they hold nothing but the program.
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/captions.css": ("captions.css", "text/css; charset=utf-8"),
    "/captions.js": ("captions.js", "text/javascript; charset=utf-8"),
    "/transcript.js": ("transcript.js", "text/javascript; charset=utf-8"),
    "/microphone.js": ("microphone.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

# A Host header that can be written into a policy as it is.
_PLAIN_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


class HttpFront:
    """Answers what is not a WebSocket."""

    def __init__(
        self,
        access: Access,
        health: Callable[[], Mapping[str, object]],
        registry: CollectorRegistry,
        input_now: Callable[[], Input | None] | None,
        socket_paths: Collection[str],
    ) -> None:
        """Answer with what is given; `input_now` is None where the daemon has no input (see `Server`).

        Requests for `socket_paths` are checked, and go on as WebSockets.
        """
        self._access = access
        self._socket_paths = socket_paths
        self._input_now = input_now
        self._health = health
        self._registry = registry
        static = importlib.resources.files("streamer.server") / "static"
        # The page's files, read once: path -> content type and bytes.
        self._files = {
            path: (content_type, (static / name).read_bytes()) for path, (name, content_type) in PAGE_FILES.items()
        }

    def answer(self, request: Request) -> Response | None:
        """Return the response to a request; None where it may go on as a WebSocket."""
        url = urlsplit(request.path)
        refused = self._refuse(request, url.path, url.query)
        if refused is not None:
            return refused
        if url.path in self._files:
            content_type, body = self._files[url.path]
            headers = {"Content-Security-Policy": _policy(_header(request, "Host") or "")}
            return respond(HTTPStatus.OK, body, content_type, headers)
        if url.path == "/healthz":
            return self._answer_health()
        if url.path == "/metrics":
            return respond(HTTPStatus.OK, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        if url.path == INPUT_PATH or url.path in COMMANDS:
            return self._answer_input(COMMANDS.get(url.path))
        return None

    def _refuse(self, request: Request, path: str, query: str) -> Response | None:
        refusal = self._access.check_peer(_header(request, "Host"), _header(request, "Origin"))
        if refusal is not None:
            return respond_error(HTTPStatus(refusal.status), refusal.message)
        paths = ("/healthz", "/metrics", *self._socket_paths, INPUT_PATH, *COMMANDS)
        if path not in self._files and path not in paths:
            return respond_error(
                HTTPStatus.NOT_FOUND, f"path {path!r:.100} does not exist: there are /, {', '.join(paths)}"
            )
        # What changes something must not happen because somebody looks at an address.
        expected = "POST" if path in COMMANDS else "GET"
        if request.method != expected:
            return respond_error(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"method is {request.method!r:.20}: expected {expected}",
                {"Allow": expected},
            )
        if path in ("/", *paths) and path != "/healthz":
            refusal = self._access.check_token(_header(request, "Authorization"), query_value(query, "token"))
            if refusal is not None:
                return respond_error(HTTPStatus(refusal.status), refusal.message, {"WWW-Authenticate": "Bearer"})
        return None

    def _answer_input(self, command: Callable[[Input], None] | None) -> Response:
        if self._input_now is None:
            return respond_error(
                HTTPStatus.NOT_FOUND,
                "the daemon runs without an input of its own: a stream is commanded by messages in it,"
                " or start the daemon with --input mic or a file",
            )
        own = self._input_now()
        if command is not None:
            if own is None:
                return respond_error(
                    HTTPStatus.SERVICE_UNAVAILABLE, "the input has not begun, the model is being loaded: try again"
                )
            command(own)
        return respond(HTTPStatus.OK, _json({"paused": own is not None and own.paused}), "application/json")

    def _answer_health(self) -> Response:
        try:
            health = dict(self._health())
        except Exception:  # the question must be answered exactly when something is broken
            logger.exception("the daemon cannot say how it is")
            health = {"status": "failed"}
        status = HTTPStatus.OK if health.get("status") == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        return respond(status, _json(health), "application/json")


def check_upgrade(request: Request) -> Response | None:
    """Return the response to a plain HTTP request for a WebSocket's address, None where it is none."""
    if "websocket" in (_header(request, "Upgrade") or "").lower():
        return None
    return respond_error(
        HTTPStatus.UPGRADE_REQUIRED,
        f"{urlsplit(request.path).path} speaks WebSocket: connect with ws:// (the page that uses it is /)",
        {"Upgrade": "websocket", "Connection": "Upgrade, close"},
    )


def respond(
    status: HTTPStatus, body: bytes, content_type: str, more_headers: Mapping[str, str] | None = None
) -> Response:
    """Build a response that no cache keeps and no browser guesses about."""
    headers = {
        "Connection": "close",
        **(more_headers or {}),
        "Content-Type": content_type,
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",  # the address may hold the token
    }
    return Response(status.value, status.phrase, Headers(headers), body)


def respond_error(status: HTTPStatus, message: str, more_headers: Mapping[str, str] | None = None) -> Response:
    """Build the response to a request that cannot be met: one line of JSON."""
    return respond(status, _json({"error": message}), "application/json", more_headers)


def query_value(query: str, key: str) -> str | None:
    """Return the last value of `key` in a query string, None where it is not there."""
    values = parse_qs(query, keep_blank_values=True, max_num_fields=None).get(key)
    return values[-1] if values else None


def _header(request: Request, name: str) -> str | None:
    values = request.headers.get_all(name)
    return values[0] if len(values) == 1 else ", ".join(values) or None  # two of them match nothing


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str) + b"\n"


def _policy(host: str) -> str:
    # 'self' covers WebSockets only in newer browsers, so the address is named too.
    sockets = f" ws://{host} wss://{host}" if _PLAIN_HOST.fullmatch(host) else ""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        f" connect-src 'self'{sockets}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
