"""The HTTP half of the port: the captions page, health, numbers, and commands for the daemon's own input."""

import importlib.resources
import logging
import re
from http import HTTPStatus
from typing import get_args

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from streamer.protocols.native import Command
from streamer.server.interfaces import Context
from streamer.server.responses import respond, respond_error, respond_json

logger = logging.getLogger(__name__)

# Files of the pages. They are served without a token: they hold nothing but the program.
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/captions.css": ("captions.css", "text/css; charset=utf-8"),
    "/captions.js": ("captions.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/overlay": ("overlay.html", "text/html; charset=utf-8"),
    "/overlay.css": ("overlay.css", "text/css; charset=utf-8"),
    "/settings": ("settings.html", "text/html; charset=utf-8"),
    "/settings.css": ("settings.css", "text/css; charset=utf-8"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in (
            *("client", "transcript", "formats", "view", "sessions", "recordings", "microphone"),
            *("overlay", "rolling", "address", "settings", "clipboard"),
        )
    },
}

# What pages may do besides (Content Security Policy). OBS puts its user's own styles into a page as a <style>, which
# may bring fonts and pictures along; the settings show the overlay in a frame; the captions page looks how long a
# dropped file is.
_MORE = {
    "/": {"media-src": "blob:"},
    "/overlay": {
        "style-src": "'self' 'unsafe-inline'",
        "font-src": "data:",
        "img-src": "'self' data:",
        "frame-ancestors": "'self'",
    },
    "/settings": {"frame-src": "'self'"},
}

COMMANDS: tuple[str, ...] = get_args(Command)

# A Host header that can be written into a policy as it is.
_PLAIN_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


class Pages:
    """Answers what is not a WebSocket."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._services = context.services
        static = importlib.resources.files("streamer.server") / "static"
        # The page's files, read once: path -> content type and bytes.
        self._files = {
            path: (content_type, (static / name).read_bytes()) for path, (name, content_type) in PAGE_FILES.items()
        }

    async def file(self, request: Request) -> Response:
        content_type, body = self._files[request.url.path]
        headers = {"Content-Security-Policy": _policy(request.headers.get("host", ""), request.url.path)}
        return respond(HTTPStatus.OK, body, content_type, headers)

    async def metrics(self, request: Request) -> Response:
        return respond(HTTPStatus.OK, generate_latest(self._context.registry), CONTENT_TYPE_LATEST)

    async def health(self, request: Request) -> Response:
        """Health check. Unauthenticated callers see only `status`."""
        try:
            health = dict(self._services.health())
        except Exception:  # the question must be answered exactly when something is broken
            logger.exception("the daemon cannot say how it is")
            health = {"status": "failed"}
        status = HTTPStatus.OK if health.get("status") == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        known = "caller" in request.scope["state"]
        return respond_json(status, health if known else {"status": health["status"]})

    async def live(self, request: Request) -> Response:
        """Whether the daemon makes progress; if not, only a restart helps."""
        if self._services.is_live():
            return respond_json(HTTPStatus.OK, {"status": "ok"})
        return respond_json(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "stuck"})

    async def input(self, request: Request) -> Response:
        """The state of the daemon's own input, after a command for it if the path ends with one."""
        if self._services.feed is None:
            return respond_error(
                HTTPStatus.NOT_FOUND,
                "the daemon runs without an input of its own: a stream is commanded by messages in it,"
                " or start the daemon with --input mic or a file",
            )
        own = self._services.input_now()
        command = request.url.path.rpartition("/")[2]
        if command in COMMANDS:
            if own is None:
                return respond_error(
                    HTTPStatus.SERVICE_UNAVAILABLE, "the input has not begun, the model is being loaded: try again"
                )
            getattr(own, command)()
        return respond_json(
            HTTPStatus.OK, {"paused": own is not None and own.paused, "kept": self._services.history is not None}
        )


def _policy(host: str, path: str) -> str:
    # 'self' covers WebSockets only in newer browsers, so the address is named too.
    sockets = f" ws://{host} wss://{host}" if _PLAIN_HOST.fullmatch(host) else ""
    allowed = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": f"'self'{sockets}",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        **_MORE.get(path, {}),
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())
