"""What each request was, and how much it moved: ASGI middleware around the whole application."""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamer.outside import escaped

# Named in `streamer.log`, which lets its lines through where `log.access` asks for them.
logger = logging.getLogger("streamer.access")

# Of a path in the log; queries never stand there, as they may hold a token.
MAX_PATH_CHARS = 200

# The beginning of a session's name in a path, and the rest of it, which is a secret while a stream lives.
_SESSION = re.compile(r"(/v1/sessions/[^/.]{8})[^/.]+")


@dataclass(frozen=True, slots=True)
class AccessLog:
    """Counts bytes as they pass, and logs one line for each request or WebSocket when it is over."""

    app: ASGIApp

    # Given numbers of bytes of bodies and messages, without framing.
    on_received: Callable[[int], object]
    on_sent: Callable[[int], object]
    clock: Callable[[], float] = time.monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request (ASGI 3)."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        begin_s = self.clock()
        n_received = n_sent = 0
        status = close_code = None

        async def receiving() -> Message:
            nonlocal n_received, close_code
            message = await receive()
            n_bytes = _size(message)
            n_received += n_bytes
            self.on_received(n_bytes)
            if message["type"] == "websocket.disconnect" and close_code is None:
                close_code = message.get("code")
            return message

        async def sending(message: Message) -> None:
            nonlocal n_sent, status, close_code
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    status = message["status"]
                case "websocket.accept":
                    status = 101
                case "websocket.close" if status == 101:
                    close_code = message.get("code", 1000)
                case "websocket.close":
                    status = 403  # what a server answers to a handshake that is not accepted
            await send(message)
            n_bytes = _size(message)
            n_sent += n_bytes
            self.on_sent(n_bytes)

        try:
            await self.app(scope, receiving, sending)
        except Exception:
            status = status or 500
            raise
        finally:
            if logger.isEnabledFor(logging.INFO):
                _log(scope, status, close_code, self.clock() - begin_s, n_received, n_sent)


def _log(
    scope: Scope, status: int | None, close_code: int | None, duration_s: float, n_received: int, n_sent: int
) -> None:
    client, state = scope.get("client"), scope.get("state", {})
    fields = {
        "client": (client and client[0]) or "unix",
        "token": getattr(state.get("caller"), "name", "") or "-",
        "method": scope.get("method", "GET"),
        "path": _path(scope),
        "status": status,
        "close_code": close_code,
        "duration_s": round(duration_s, 3),
        "bytes_in": n_received,
        "bytes_out": n_sent,
    }
    shown = {key: value for key, value in fields.items() if value is not None}
    logger.info(
        " ".join(f"{key}={value}" for key, value in shown.items()),
        extra={"fields": shown, "session": state.get("session", "")},
    )


def _path(scope: Scope) -> str:
    """Return the path as it was asked for, without spaces or the query."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else scope["path"].replace(" ", "%20")
    return escaped(_SESSION.sub(r"\1...", path)[:MAX_PATH_CHARS])


def _size(message: Message) -> int:
    data = message.get("body") or message.get("bytes") or b""
    text = message.get("text") or ""
    return len(data) + (len(text) if text.isascii() else len(text.encode("utf-8", "replace")))
