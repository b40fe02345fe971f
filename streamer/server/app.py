"""The ASGI application: what there is at which address, and who may ask for it."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from streamer.errors import UsageError
from streamer.server import tokens
from streamer.server.access import Access, Refusal, client_address, shown_token
from streamer.server.accesslog import AccessLog
from streamer.server.http import COMMANDS, PAGE_FILES, Pages
from streamer.server.limits import Limits
from streamer.server.metrics import ServerMetrics
from streamer.server.transcripts import Transcripts
from streamer.server.uploads import ReadBodies
from streamer.server.wires import respond_error_at
from streamer.server.ws import Connection

MAX_HEAD_BYTES = 16 * 1024  # of a request's target and headers
MAX_BODY_BYTES = 64 * 1024  # of a request that is no upload; the body of none of these is read

INPUT_PATH = "/v1/input"
SESSIONS_PATH = "/v1/sessions"

# What a browser asked a proxy for, by the X-Forwarded-Proto of proxies.
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}

# Reasons of refusals that pages must not read: those of another site, or under another host's name.
_FOREIGN = ("host", "origin")

# Serves an accepted WebSocket to its end.
Serve = Callable[[Connection], Awaitable[None]]

# Says how a WebSocket is to be served, before it is accepted. Raises UsageError where what it asks for cannot be.
Prepare = Callable[[WebSocket], Serve]


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """What is answered at an address, beside what the server has of its own."""

    method: str
    path: str  # as Starlette's routes have it
    needs: tokens.Scope
    answer: Callable[[Request], Awaitable[Response]]

    # Whether its requests bring recordings: their bodies are large (see `ReadBodies`).
    uploads: bool = False


def make_app(
    access: Callable[[], Access],
    pages: Pages,
    sockets: Mapping[str, tuple[tokens.Scope, Prepare]],
    refusal: Callable[[HTTPConnection], Refusal | None],
    serve: Callable[[WebSocket, Serve], Awaitable[None]],
    metrics: ServerMetrics,
    limits: Limits,
    transcripts: Transcripts,
    endpoints: Sequence[Endpoint] = (),
    max_upload_bytes: Callable[[], int] = lambda: MAX_BODY_BYTES,
) -> ASGIApp:
    """Build the application.

    `access` returns the rules that hold now. `sockets` maps the paths of WebSockets to the scope they need and what
    says how one is served. `refusal` says why a request for one of these paths cannot be met, and `serve` accepts it.
    `endpoints` are what else there is over HTTP; uploads have no more than `max_upload_bytes`.
    """

    def socket(path: str, needs: tokens.Scope, prepare: Prepare) -> WebSocketRoute:
        async def open_socket(websocket: WebSocket) -> None:
            refused = refusal(websocket)
            try:
                endpoint = prepare(websocket) if refused is None else None
            except UsageError as error:
                refused = Refusal(HTTPStatus.BAD_REQUEST, str(error), "query")
            if refused is not None:
                await refuse(refused, metrics, websocket.scope, websocket.receive, websocket.send)
            elif endpoint is not None:
                await serve(websocket, endpoint)

        return WebSocketRoute(path, open_socket, middleware=needing(needs))

    async def explain(request: Request) -> Response:
        refused = refusal(request)
        assert refused is not None
        return respond_refusal(refused, request.url.path)

    def asking(scope: tokens.Scope, *, required: bool = True) -> Middleware:
        return Middleware(RequireToken, scope, access=access, metrics=metrics, required=required)

    def needing(scope: tokens.Scope | None) -> list[Middleware]:
        return [asking(scope)] if scope is not None else []

    def get(path: str, needs: tokens.Scope | None, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, endpoint, methods=["GET"], middleware=needing(needs))

    async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
        paths = ", ".join(dict.fromkeys(route.path for route in routes if route.path not in PAGE_FILES))
        message = f"path {scope['path']!r:.100} does not exist: there are /, /overlay, /settings, {paths}"
        await respond_error_at(scope["path"], HTTPStatus.NOT_FOUND, message)(scope, receive, send)

    routes: list[Route | WebSocketRoute] = [
        # They hold nothing but the program, and a page that is loaded again has no token in its address.
        *(get(path, None, pages.file) for path in PAGE_FILES),
        Route("/healthz", pages.health, methods=["GET"], middleware=[asking("read", required=False)]),
        get("/livez", None, pages.live),
        get("/metrics", "read", pages.metrics),
        *(socket(path, needs, endpoint) for path, (needs, endpoint) in sockets.items()),
        *(get(path, needs, explain) for path, (needs, _) in sockets.items()),
        get(INPUT_PATH, "read", pages.input),
        # What changes something must not happen because somebody looks at an address.
        *(
            Route(f"{INPUT_PATH}/{command}", pages.input, methods=["POST"], middleware=needing("control"))
            for command in COMMANDS
        ),
        get(SESSIONS_PATH, "read", transcripts.sessions),
        get(f"{SESSIONS_PATH}/{{name}}", "read", transcripts.show),
        Route(f"{SESSIONS_PATH}/{{name}}", transcripts.delete, methods=["DELETE"], middleware=needing("control")),
        *(
            Route(endpoint.path, endpoint.answer, methods=[endpoint.method], middleware=needing(endpoint.needs))
            for endpoint in endpoints
        ),
    ]
    uploads = [Route(endpoint.path, endpoint.answer, methods=["POST"]) for endpoint in endpoints if endpoint.uploads]
    # A client that posts a recording to a WebSocket's address gets an explanation, even if it reads only at the end.
    posts = [Route(path, explain, methods=["POST"], middleware=needing(needs)) for path, (needs, _) in sockets.items()]
    routes += posts
    uploads += posts

    def brings_recording(scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in uploads)

    def max_body_bytes(scope: Scope) -> int:
        return max_upload_bytes() if brings_recording(scope) else MAX_BODY_BYTES

    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(ReadBodies, brings_recording),
            Middleware(Guard, access=access, metrics=metrics, limits=limits, max_body_bytes=max_body_bytes),
            Middleware(Cors),
        ],
        exception_handlers={HTTPException: _answer_error, Exception: _answer_failure},
    )
    app.router.default = not_found
    app.router.redirect_slashes = False
    return AccessLog(app, on_received=metrics.received_bytes.inc, on_sent=metrics.sent_bytes.inc)


@dataclasses.dataclass(frozen=True, slots=True)
class Guard:
    """Turns away what has no business here, whatever it asks for; behind a proxy it finds out who that is."""

    app: ASGIApp
    access: Callable[[], Access]
    metrics: ServerMetrics
    limits: Limits
    max_body_bytes: Callable[[Scope], int]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on, with its client's address in `scope`."""
        headers = Headers(scope=scope)
        proxies = self.access().proxies
        peer = scope["client"][0] if scope.get("client") else ""
        proxied = proxies.trust(peer)
        address = client_address(peer, _only(headers, "x-forwarded-for"), proxies)
        scope["client"] = (address, scope["client"][1] if not proxied and scope.get("client") else 0)
        refusal = self._refusal(scope, headers, proxied=proxied)
        if refusal is None and proxied:
            refusal = self.limits.enter_address(address)
        if refusal is not None:
            self.metrics.refused(refusal.reason)
            answer: ASGIApp = respond_refusal(refusal, scope["path"])
            await (answer if refusal.reason in _FOREIGN else Cors(answer))(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            if proxied:
                self.limits.leave_address(address)

    def _refusal(self, scope: Scope, headers: Headers, *, proxied: bool) -> Refusal | None:
        n_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        n_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        if n_bytes > MAX_HEAD_BYTES:
            text = f"the head of the request has {n_bytes} bytes: expected no more than {MAX_HEAD_BYTES}"
            return Refusal(431, text, "head")
        # Of several proxies the last is the one that we trust.
        forwarded = (_only(headers, "x-forwarded-host") or "").rpartition(",")[2].strip() if proxied else ""
        scheme = (_only(headers, "x-forwarded-proto") or "").rpartition(",")[2].strip() if proxied else ""
        access = self.access()
        if scope["server"] is not None and scope["server"][1] is None:  # a Unix socket is as near as loopback
            access = dataclasses.replace(access, host="localhost")
        refusal = access.check_peer(
            _only(headers, "host"),
            _only(headers, "origin"),
            forwarded_host=forwarded or None,
            scheme=_SCHEMES.get(scheme.lower()) or ("https" if scope["scheme"] in ("https", "wss") else None),
        )
        if refusal is not None:
            return refusal
        if "content-length" in headers and "transfer-encoding" in headers:
            # Who stands between may have read the other one, and so another request (RFC 9112, 6.3).
            text = "the request has a Content-Length and a Transfer-Encoding: expected one of them"
            return Refusal(400, text, "http", {"Connection": "close"})
        length = headers.get("content-length", "0")
        most = self.max_body_bytes(scope)
        if len(length) > 15 or int(length) > most:
            return Refusal(413, f"the body has {length:.20} bytes: expected no more than {most}", "body")
        return None


class Cors(CORSMiddleware):
    """Lets pages of other origins read answers. It stands behind `Guard`, which admits those of `server.origins` only.

    No cookies are involved: a page shows its token in a header, which the answer to its preflight request allows.
    """

    def __init__(self, app: ASGIApp) -> None:
        methods = ("GET", "HEAD", "POST", "DELETE")
        expose = ("Retry-After", "WWW-Authenticate")
        super().__init__(app, (), methods, ("*",), allow_private_network=True, expose_headers=expose)

    def is_allowed_origin(self, origin: str) -> bool:
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class RequireToken:
    """Turns away who shows no token with a scope, where one is asked for, or only finds out whether it does."""

    app: ASGIApp
    needs: tokens.Scope
    access: Callable[[], Access]
    metrics: ServerMetrics
    required: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on, with its token, if any, as `caller` in its state."""
        connection = HTTPConnection(scope)
        shown = shown_token(
            connection.headers.getlist("authorization"),
            scope.get("subprotocols", ()),
            connection.query_params.getlist("token"),
        )
        access, headers = self.access(), connection.headers
        caller = access.check_site(headers.get("origin"), headers.get("sec-fetch-site")) or access.check_token(
            shown, self.needs, scope["client"][0], time.time()
        )
        if not isinstance(caller, Refusal):
            scope.setdefault("state", {})["caller"] = caller
        else:
            await asyncio.sleep(caller.delay_s)
            if self.required:
                await refuse(caller, self.metrics, scope, receive, send)
                return
        await self.app(scope, receive, send)


async def refuse(refusal: Refusal, metrics: ServerMetrics, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or a WebSocket's opening, with an error."""
    metrics.refused(refusal.reason)
    await respond_refusal(refusal, scope["path"])(scope, receive, send)


def respond_refusal(refusal: Refusal, path: str) -> Response:
    """Build the response that says why a request is turned away."""
    headers = refusal.headers
    if refusal.status == HTTPStatus.UPGRADE_REQUIRED:
        headers = {"Upgrade": "websocket", "Connection": "Upgrade, close"}
    return respond_error_at(path, HTTPStatus(refusal.status), refusal.message, headers)


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    return ", ".join(values) if values else None  # two of them match nothing


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED or error.headers is None:
        return respond_error_at(request.url.path, HTTPStatus(error.status_code), error.detail, error.headers)
    allowed = ", ".join(sorted(error.headers["Allow"].split(", ")))
    message = f"method is {request.method!r:.20}: expected {allowed}"
    return respond_error_at(request.url.path, HTTPStatus.METHOD_NOT_ALLOWED, message, {"Allow": allowed})


async def _answer_failure(request: Request, error: Exception) -> Response:
    message = "the daemon failed: see its log, and report it as a bug"
    return respond_error_at(request.url.path, HTTPStatus.INTERNAL_SERVER_ERROR, message)
