"""The access log: ASGI middleware around the whole application."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamer.outside import escaped

# `streamer.log` knows this name: `log.access` decides whether its lines are written.
logger = logging.getLogger("streamer.access")

# Of a path in the log; queries never stand there, as they may hold a token.
MAX_PATH_CHARS = 200

# The beginning of a session's name in a path, and the rest, which is a secret while the stream is open.
_SESSION = re.compile(r"(/v1/sessions/[^/.]{8})[^/.]+")


@dataclass(frozen=True, slots=True)
class AccessLog:
    """Counts bytes, and logs one line for each request or WebSocket when it is over."""

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
        moved = {"bytes_in": 0, "bytes_out": 0}
        ended: dict[str, Any] = {}

        async def receiving() -> Message:
            message = await receive()
            n_bytes = _size(message)
            moved["bytes_in"] += n_bytes
            self.on_received(n_bytes)
            if message["type"] == "websocket.disconnect":
                ended.setdefault("close_code", message.get("code"))
            return message

        async def sending(message: Message) -> None:
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    ended["status"] = message["status"]
                case "websocket.accept":
                    ended["status"] = 101
                case "websocket.close" if ended.get("status") == 101:
                    ended["close_code"] = message.get("code", 1000)
                case "websocket.close":
                    ended["status"] = 403  # how a server answers a handshake that is not accepted
            await send(message)
            n_bytes = _size(message)
            moved["bytes_out"] += n_bytes
            self.on_sent(n_bytes)

        try:
            await self.app(scope, receiving, sending)
        except Exception:
            ended.setdefault("status", 500)
            raise
        finally:
            if logger.isEnabledFor(logging.INFO):
                _log(scope, {**ended, "duration_s": round(self.clock() - begin_s, 3), **moved})


def _log(scope: Scope, figures: Mapping[str, float]) -> None:
    client, state = scope.get("client"), scope.get("state", {})
    fields = {
        "client": (client and client[0]) or "unix",
        "token": getattr(state.get("caller"), "name", "") or "-",
        "method": scope.get("method", "GET"),
        "path": _path(scope),
        **figures,
    }
    line = " ".join(f"{key}={value}" for key, value in fields.items())
    logger.info(line, extra={"fields": fields, "session": state.get("session", "")})


def _path(scope: Scope) -> str:
    """Return the path as it was requested, without spaces or the query."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else scope["path"].replace(" ", "%20")
    return escaped(_SESSION.sub(r"\1...", path)[:MAX_PATH_CHARS])


def _size(message: Message) -> int:
    data = message.get("body") or message.get("bytes") or b""
    text = message.get("text") or ""
    return len(data) + (len(text) if text.isascii() else len(text.encode("utf-8", "replace")))
