"""The HTTP half of the port: the captions page, its health and its numbers."""

import importlib.resources
import json
import logging
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from streamer.server.access import Access

logger = logging.getLogger(__name__)

CAPTIONS_PATH = "/v1/captions"
STREAM_PATH = "/v1/stream"
SOCKET_PATHS = (CAPTIONS_PATH, STREAM_PATH)

# Files of the captions page. All but the page itself are served without a token: they hold nothing but the program.
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/captions.css": ("captions.css", "text/css; charset=utf-8"),
    "/captions.js": ("captions.js", "text/javascript; charset=utf-8"),
    "/transcript.js": ("transcript.js", "text/javascript; charset=utf-8"),
    "/microphone.js": ("microphone.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
GUARDED_PATHS = ("/", "/metrics", *SOCKET_PATHS)

# A Host header that can be written into a policy as it is.
_PLAIN_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


class HttpFront:
    """Answers what is not a WebSocket."""

    def __init__(self, access: Access, health: Callable[[], Mapping[str, object]], registry: CollectorRegistry) -> None:
        self._access = access
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
        return None

    def _refuse(self, request: Request, path: str, query: str) -> Response | None:
        refusal = self._access.check_peer(_header(request, "Host"), _header(request, "Origin"))
        if refusal is not None:
            return respond_error(HTTPStatus(refusal.status), refusal.message)
        method = getattr(request, "method", "GET")  # websockets before 17 refuses the others itself
        if method != "GET":
            return respond_error(
                HTTPStatus.METHOD_NOT_ALLOWED, f"method is {method:.20}: expected GET", {"Allow": "GET"}
            )
        if path not in self._files and path not in ("/healthz", "/metrics", *SOCKET_PATHS):
            return respond_error(
                HTTPStatus.NOT_FOUND,
                f"path {path!r:.100} does not exist: there are /, /healthz, /metrics, {', '.join(SOCKET_PATHS)}",
            )
        if path in GUARDED_PATHS:
            refusal = self._access.check_token(_header(request, "Authorization"), query_value(query, "token"))
            if refusal is not None:
                return respond_error(HTTPStatus(refusal.status), refusal.message, {"WWW-Authenticate": "Bearer"})
        return None

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
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8") + b"\n"


def _policy(host: str) -> str:
    # 'self' covers WebSockets only in newer browsers, so the address is named too.
    sockets = f" ws://{host} wss://{host}" if _PLAIN_HOST.fullmatch(host) else ""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        f" connect-src 'self'{sockets}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
