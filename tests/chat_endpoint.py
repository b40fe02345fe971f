"""A small real HTTP server that speaks the chat-completions streaming format, by script."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """What goes over the wire for one request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def start(self, status: int = 200, content_type: str = "text/event-stream; charset=utf-8") -> None:
        self.writer.write(
            f"HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        await self.writer.drain()

    async def send(self, data: str | bytes) -> None:
        """Send bytes at once, whatever they are in the middle of."""
        data = data.encode() if isinstance(data, str) else data
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def say(self, words: str) -> None:
        await self.send(message(words))

    async def end(self, tail: str = "data: [DONE]\n\n") -> None:
        await self.send(tail)
        await self.finish()

    async def finish(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def hang(self) -> None:
        """Send nothing more until the client has gone."""
        with contextlib.suppress(ConnectionError):  # one that goes with bytes unread
            await self.reader.read()

    async def cut(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Reply], Awaitable[None]]


def message(words: str | None, finish_reason: str | None = None, end: str = "\n\n") -> str:
    delta = {} if words is None else {"content": words}
    chunk = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }
    return f"data: {json.dumps(chunk)}{end}"


def saying(*pieces: str) -> Script:
    """A well-behaved reply."""

    async def script(reply: Reply) -> None:
        await reply.start()
        for piece in pieces:
            await reply.say(piece)
        await reply.send(message(None, "stop"))
        await reply.end()

    return script


def answering(body: str, status: int = 200, content_type: str = "application/json") -> Script:
    """An answer in one piece: JSON, a refusal, or the bytes of a stream."""

    async def script(reply: Reply) -> None:
        await reply.start(status, content_type)
        with contextlib.suppress(ConnectionError):  # one that hangs up with bytes unread
            await reply.end(body or " ")

    return script


def streaming(*pieces: str, then: str | None) -> Script:
    """A reply of these pieces, behind which come these bytes, or the connection is cut."""

    async def script(reply: Reply) -> None:
        await reply.start()
        for piece in pieces:
            await reply.say(piece)
        await (reply.cut() if then is None else reply.end(then))

    return script


def hanging(*pieces: str, hung_up: asyncio.Event | None = None) -> Script:
    """A reply of these pieces, behind which nothing comes; `hung_up` is set when the client goes."""

    async def script(reply: Reply) -> None:
        await reply.start()
        try:  # the client may hang up while this still talks
            for piece in pieces:
                await reply.say(piece)
            await reply.hang()
        finally:
            if hung_up is not None:
                hung_up.set()

    return script


def endless(piece: Callable[[int], str]) -> Script:
    """A reply whose nth piece is made by a function, until the client hangs up."""

    async def script(reply: Reply) -> None:
        await reply.start()
        with contextlib.suppress(ConnectionError):
            for n in range(100_000):
                await reply.say(piece(n))

    return script


@dataclass
class Endpoint:
    url: str

    # Headers (names in lower case) and bodies of the requests so far.
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    @property
    def questions(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]


@contextlib.asynccontextmanager
async def chat_endpoint(*scripts: Script) -> AsyncIterator[Endpoint]:
    """Run a server whose nth request is answered by the nth script."""
    waiting = list(scripts)
    endpoint = Endpoint("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                assert first == "POST /v1/chat/completions HTTP/1.1"
                endpoint.headers.append(headers)
                endpoint.bodies.append(json.loads(body))
                await waiting.pop(0)(Reply(reader, writer))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield endpoint
