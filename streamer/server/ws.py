"""An accepted WebSocket, as the runtime of all protocols uses it."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import CloseCode

# Key in a WebSocket's ASGI `extensions` of an event that is set once the connection is gone, even if messages of it are
# still to be received.
GONE_EVENT = "streamer.gone"

MAX_REASON_BYTES = 123  # of a close frame (RFC 6455, 5.5)


@dataclass(frozen=True, slots=True)
class Close:
    """How a connection ends."""

    code: int
    reason: str = ""


GONE = Close(CloseCode.ABNORMAL_CLOSURE)  # the client closed it already


class ClientGoneError(Exception):
    """The client is gone; its close code is the connection's `close_code`."""


class Line(Protocol):
    """The transport of a connection: `Connection`, or TCP in `streamer.server.wyoming`."""

    gone: asyncio.Event
    close_code: int | None

    def note_session(self, name: str) -> None: ...

    async def receive(self) -> str | bytes: ...

    async def send_text(self, text: str) -> None: ...

    async def close(self, close: Close) -> None: ...


class Connection:
    """An accepted WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        # Set when the connection is gone; earlier messages can still be received.
        self.gone: asyncio.Event = websocket.scope["extensions"].get(GONE_EVENT, asyncio.Event())
        # How the client closed it: 1005 without a code, 1006 if it did not; None while it is open.
        self.close_code: int | None = None

    def note_session(self, name: str) -> None:
        """Add the session's name to the line of the access log."""
        self._websocket.scope.setdefault("state", {})["session"] = name

    async def send_text(self, text: str) -> None:
        """Send a text frame, waiting while the client does not read. Raises ClientGoneError."""
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: the client's close frame has been received
            raise ClientGoneError from None

    async def receive(self) -> str | bytes:
        """Return the client's next message. Raises ClientGoneError after the last."""
        if self.close_code is None:
            message = await self._websocket.receive()
            if message["type"] == "websocket.receive":
                text: str | None = message.get("text")
                return text if text is not None else bytes(message["bytes"])
            self.close_code = message.get("code") or CloseCode.ABNORMAL_CLOSURE
        raise ClientGoneError

    async def close(self, close: Close) -> None:
        """Close with a code, unless the client did already, and receive its answer; uvicorn limits the time."""
        await self.shut(close)
        with contextlib.suppress(ClientGoneError):
            while True:
                await self.receive()

    async def shut(self, close: Close) -> None:
        """Close with a code, unless it is closed; the task that receives gets the client's answer."""
        reason = close.reason.encode("utf-8")[:MAX_REASON_BYTES].decode("utf-8", "ignore")
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            if close is not GONE and self.close_code is None:
                await self._websocket.close(close.code, reason)
