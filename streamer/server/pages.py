"""The HTTP half of the port: the captions page, health, numbers, and commands for the daemon's own input."""

import asyncio
import importlib.resources
import io
import logging
import re
from http import HTTPStatus
from typing import cast, get_args

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from streamer.protocols.native import ROOM_NAME, Command, is_room
from streamer.server.context import Context
from streamer.server.responses import HEADERS, respond, respond_error, respond_json
from streamer.server.tokens import AccessToken

logger = logging.getLogger(__name__)

_STATIC = importlib.resources.files("streamer.server") / "static"
_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

# Address -> file and content type of the pages. They are served without a token: they hold nothing but the program.
PAGE_FILES = {
    "/" + name.removesuffix(".html").removesuffix("index"): (name, _CONTENT_TYPES[name.rpartition(".")[2]])
    for name in sorted(file.name for file in _STATIC.iterdir() if file.name.rpartition(".")[2] in _CONTENT_TYPES)
}

# Exceptions of pages in their Content Security Policy. OBS adds its user's own styles to a page as a <style>, which may
# contain fonts and pictures; the settings show the overlay in a frame; the captions page reads a dropped file's length
# and shows a QR code.
_MORE = {
    "/": {"media-src": "blob:", "img-src": "'self' blob:"},
    "/overlay": {
        "style-src": "'self' 'unsafe-inline'",
        "font-src": "data:",
        "img-src": "'self' data:",
        "frame-ancestors": "'self'",
    },
    "/settings": {"frame-src": "'self'"},
}

MAX_ADDRESS_BYTES = 300  # of a QR code

COMMANDS: tuple[str, ...] = get_args(Command)

# A Host header that can be written into a policy as it is.
_PLAIN_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


class Pages:
    """Answers what is not a WebSocket."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._services = context.services
        # Read once: path -> content type and bytes.
        self._files = {path: (kind, (_STATIC / name).read_bytes()) for path, (name, kind) in PAGE_FILES.items()}

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
        except Exception:  # it must be answered, especially when something is broken
            logger.exception("the health check failed")
            health = {"status": "failed"}
        status = HTTPStatus.OK if health.get("status") == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        caller: AccessToken | None = request.scope["state"].get("caller")
        if caller is None:
            return respond_json(status, {"status": health["status"]})
        return respond_json(status, {**health, "scopes": caller.scopes, "history": self._services.history is not None})

    async def room(self, request: Request) -> Response:
        """Lead to the captions page, which shows what is said in a room."""
        name = request.path_params["name"]
        if not is_room(name):
            return respond_error(HTTPStatus.NOT_FOUND, f"{name!r:.80} is not the name of a room: expected {ROOM_NAME}")
        return Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers={"Location": f"../?room={name}", **HEADERS})

    async def code(self, request: Request) -> Response:
        """Draw the QR code of an address, which is the body (ISO/IEC 18004, level M)."""
        address = b""
        async for piece in request.stream():
            address += piece
            if len(address) > MAX_ADDRESS_BYTES:
                text = f"the address is too long: expected at most {MAX_ADDRESS_BYTES} bytes"
                return respond_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        if not address:
            return respond_error(HTTPStatus.BAD_REQUEST, "the body is empty: expected the address to be drawn")
        svg = await asyncio.to_thread(draw_code, address)
        return respond(HTTPStatus.OK, svg, "image/svg+xml")

    async def live(self, request: Request) -> Response:
        """Say whether the daemon makes progress; if not, only a restart helps."""
        if self._services.is_live():
            return respond_json(HTTPStatus.OK, {"status": "ok"})
        return respond_json(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "stuck"})

    async def input(self, request: Request) -> Response:
        """Return the state of the daemon's own input, after a command for it if the path ends with one."""
        if self._services.input is None:
            text = (
                "this daemon has no input of its own: send commands as messages of a stream, or start the daemon with"
                " --input mic or a file"
            )
            return respond_error(HTTPStatus.NOT_FOUND, text)
        own = self._services.input.session
        command = request.url.path.rpartition("/")[2]
        if command in COMMANDS:
            if own is None:
                text = "the model is still being loaded: try again in a moment"
                return respond_error(HTTPStatus.SERVICE_UNAVAILABLE, text)
            own.do(cast(Command, command))
        history = self._services.history
        kept = {"kept": history is not None, "audio": history is not None and history.audio is not None}
        state = {"paused": own is not None and own.paused, **kept}
        return respond_json(HTTPStatus.OK, state)


def draw_code(address: bytes) -> bytes:
    """Return an SVG."""
    import segno  # late, as few need it

    drawn = io.BytesIO()
    segno.make_qr(address, error="m").save(drawn, kind="svg", omitsize=True, encoding="utf-8")
    return drawn.getvalue()


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
