"""The ASGI application: its addresses, and the scope of tokens that each requires."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.frames import CloseCode

from streamer import entry_points
from streamer.errors import StreamerError, UsageError
from streamer.protocols import deepgram, openai_realtime
from streamer.protocols.adapter import Adapter, Query
from streamer.protocols.root import Root
from streamer.protocols.stream import Captions, Stream
from streamer.protocols.vosk import Vosk
from streamer.server import runtime, tokens
from streamer.server.access import chosen_subprotocol
from streamer.server.accesslog import AccessLog
from streamer.server.context import Context, OpenSocket
from streamer.server.guard import Cors, Guard, RequireToken, respond_refusal
from streamer.server.limits import Refusal
from streamer.server.pages import COMMANDS, PAGE_FILES, Pages
from streamer.server.responses import respond_error, respond_failure
from streamer.server.rest import Rest
from streamer.server.transcripts import Transcripts
from streamer.server.uploads import Uploads
from streamer.server.ws import Close, Connection

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024  # of a request that is no upload; the body of none of these is read

CAPTIONS = "/v1/captions"

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Socket:
    """A protocol over WebSockets. Those of plug-ins (entry points `streamer.protocols`) name their `path`."""

    # Makes the adapter of a connection from its query and its headers (names in lower case). A UsageError is answered
    # with HTTP 400.
    make: Callable[[Query, Mapping[str, str]], Adapter]
    needs: tokens.Scope = "stream"

    # Most bytes of a message; 1 MiB: 5.5 s of stereo float audio at 24 kHz, more than a live client sends at a time.
    max_message_bytes: int = 2**20

    path: str = ""


# Address -> protocol of its WebSockets.
SOCKETS: dict[str, Socket] = {
    CAPTIONS: Socket(lambda query, headers: Captions(query), "read"),
    "/v1/stream": Socket(lambda query, headers: Stream()),
    "/v1/listen": Socket(deepgram.make_live),
    "/v1/realtime": Socket(openai_realtime.make, max_message_bytes=16 * 2**20),  # 15 MiB of base64, and JSON around it
    "/": Socket(lambda query, headers: Root()),
    "/vosk": Socket(lambda query, headers: Vosk()),
}


def all_sockets() -> dict[str, Socket]:
    """Return the protocols of all addresses, those of plug-ins too; none of these takes an address of ours."""
    added = entry_points.load_all("streamer.protocols", lambda found: isinstance(found, Socket) and bool(found.path))
    return {**{socket.path: socket for socket in added.values()}, **SOCKETS}


def make_app(context: Context) -> ASGIApp:
    """Build the application."""
    sockets = all_sockets()
    routes = list(_routes(context, sockets))

    async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
        paths = ", ".join(dict.fromkeys(route.path for route in routes if route.path not in PAGE_FILES))
        message = f"path {scope['path']!r:.100} was not found: expected one of /, /overlay, /settings, {paths}"
        await respond_error(HTTPStatus.NOT_FOUND, message, path=scope["path"])(scope, receive, send)

    def max_body_bytes(scope: Scope) -> tuple[int, str]:
        if _brings_recording(scope, sockets):
            return round(context.settings.max_upload_mb * 1e6), " (server.max_upload_mb)"
        return MAX_BODY_BYTES, ""

    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, context=context, max_body_bytes=max_body_bytes),
            Middleware(Cors),
        ],
        exception_handlers={
            HTTPException: _answer_error,
            StreamerError: _answer_failure,
            ClientDisconnect: lambda request, error: Response(status_code=HTTPStatus.BAD_REQUEST),  # it is gone
            Exception: _answer_bug,
        },
    )
    app.router.default = not_found
    app.router.redirect_slashes = False
    return AccessLog(app, on_received=context.metrics.received_bytes.inc, on_sent=context.metrics.sent_bytes.inc)


def _routes(context: Context, sockets: Mapping[str, Socket]) -> Iterator[Route | WebSocketRoute]:
    pages, transcripts, recordings = Pages(context), Transcripts(context.services.history), context.services.recordings

    def asking(scope: tokens.Scope, *, required: bool = True) -> list[Middleware]:
        return [Middleware(RequireToken, scope, context=context, required=required)]

    def http(method: str, path: str, needs: tokens.Scope | None, handler: Handler) -> Route:
        return Route(path, handler, methods=[method], middleware=asking(needs) if needs is not None else [])

    # Pages need no token: they contain no data, and a page that is reloaded has no token in its address.
    yield from (http("GET", path, None, pages.file) for path in PAGE_FILES)
    yield http("GET", "/room/{name}", None, pages.room)
    yield http("POST", "/v1/qr", "read", pages.code)
    yield Route("/healthz", pages.health, methods=["GET"], middleware=asking("read", required=False))
    yield http("GET", "/livez", None, pages.live)
    yield http("GET", "/metrics", "read", pages.metrics)
    for path, socket in sockets.items():
        yield WebSocketRoute(path, partial(_open_socket, context, socket), middleware=asking(socket.needs))
        yield http("GET", path, socket.needs, partial(_explain, context))
    yield http("GET", "/v1/input", "read", pages.input)
    # No GET may change anything: a browser may open any address.
    yield from (http("POST", f"/v1/input/{command}", "control", pages.input) for command in COMMANDS)
    yield http("GET", "/v1/sessions", "read", transcripts.sessions)
    yield http("GET", "/v1/sessions/{name}", "read", transcripts.show)
    yield http("GET", "/v1/sessions/{name}/{line}", "read", transcripts.sound)
    yield http("DELETE", "/v1/sessions/{name}", "control", transcripts.delete)
    if recordings is not None:
        rest = Rest(recordings, Uploads(lambda: context.settings))
        transcribe, translate = partial(rest.openai, task="transcribe"), partial(rest.openai, task="translate")
        yield http("POST", "/v1/audio/transcriptions", "stream", transcribe)
        yield http("POST", "/v1/audio/translations", "stream", translate)
        yield http("GET", "/v1/models", "stream", rest.models)
        yield http("GET", "/v1/models/{model:path}", "stream", rest.model)
        yield http("GET", "/whisper/{model:path}", "stream", rest.model)
        yield http("POST", "/whisper/{model:path}", "stream", rest.whisper)
        yield http("POST", "/v1/listen", "stream", rest.listen)
    # A client that posts a recording to a WebSocket's address gets an explanation.
    yield from (http("POST", path, socket.needs, partial(_explain, context)) for path, socket in sockets.items())


def _brings_recording(scope: Scope, sockets: Collection[str]) -> bool:
    """Return whether a request may have a large body. Errors are sent before it is read; uvicorn reads the rest."""
    path: str = scope["path"]
    return scope.get("method") == "POST" and (path in sockets or path.startswith(("/v1/audio/", "/whisper/")))


def _refusal(context: Context, opening: HTTPConnection) -> Refusal | None:
    """Return why a request for a WebSocket's address is refused; None if it is not."""
    if opening.url.path == CAPTIONS and context.services.input is None and not opening.query_params.get("room"):
        text = (
            "this daemon has no input of its own, and so no captions: send audio to /v1/stream, name a room"
            " (?room=NAME), or start the daemon with --input mic or a file"
        )
        return Refusal(HTTPStatus.NOT_FOUND, text, "path")
    if context.draining.is_set():
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the daemon is stopping: try again in a moment", "stopping")
    if opening.scope["type"] == "http":
        text = f"{opening.url.path} is a WebSocket: connect with ws://, or send recordings to /v1/audio/transcriptions"
        return Refusal(HTTPStatus.UPGRADE_REQUIRED, text, "upgrade")
    return None


async def _explain(context: Context, request: Request) -> Response:
    refusal = _refusal(context, request)
    assert refusal is not None
    return respond_refusal(refusal, request.url.path)


async def _open_socket(context: Context, socket: Socket, websocket: WebSocket) -> None:
    """Serve a WebSocket, from before it is accepted to its end."""
    path, refusal = websocket.url.path, _refusal(context, websocket)
    try:
        adapter = socket.make(websocket.query_params, websocket.headers)
    except UsageError as error:
        refusal = refusal or Refusal(HTTPStatus.BAD_REQUEST, str(error), "query")
    if refusal is not None:
        context.metrics.refused(refusal.reason)
        await respond_refusal(refusal, path)(websocket.scope, websocket.receive, websocket.send)
        return
    await websocket.accept(subprotocol=chosen_subprotocol(websocket.scope["subprotocols"]))
    caller: tokens.AccessToken = websocket.state.caller
    connection, most = Connection(websocket), context.settings.max_subscribers
    if path == CAPTIONS and sum(other.path == path for other in context.sockets.values()) >= most:
        context.metrics.refused("subscribers")
        reason = f"no room: {most} clients read captions (server.max_subscribers), try again later"
        await connection.close(Close(CloseCode.TRY_AGAIN_LATER, reason))
        return
    task = asyncio.current_task()
    assert task is not None
    context.sockets[task] = OpenSocket(path, caller, connection)
    logger.debug("%s connects to %s", websocket.client, path)
    try:
        await runtime.serve(connection, adapter, context, tenant=caller.name)
    except asyncio.CancelledError:
        logger.debug("%s on %s is cut off", websocket.client, path)  # `Server.stop` cuts the connection next
    except Exception:
        logger.exception("serving a client on %s failed", path)
        await connection.close(runtime.FAILED)
    finally:
        del context.sockets[task]
        logger.debug("%s left %s", websocket.client, path)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, headers = error.detail, error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and headers is not None:
        headers = {"Allow": ", ".join(sorted(headers["Allow"].split(", ")))}
        message = f"method {request.method:.20} is not allowed here: expected {headers['Allow'].replace(', ', ' or ')}"
    return respond_error(error.status_code, message, headers, path=request.url.path)


async def _answer_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, StreamerError)
    return respond_failure(error, request.url.path)


async def _answer_bug(request: Request, error: Exception) -> Response:
    message = "the daemon failed: see its log, and report it as a bug"
    return respond_error(HTTPStatus.INTERNAL_SERVER_ERROR, message, path=request.url.path)
