"""Servers for a client: each connection does what a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from ssl import SSLContext

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from streamer.events import End, Event
from tests.builders import final, ready

Handler = Callable[[ServerConnection], Awaitable[None]]


def session() -> list[Event]:
    """Return the events of a short session."""
    return [event.stamped(seq, "s") for seq, event in enumerate((ready(), final("text"), End()), 1)]


@contextlib.asynccontextmanager
async def daemon(
    *handlers: Handler, ssl: SSLContext | None = None, n_refused: int = 0
) -> AsyncIterator[tuple[str, list[str]]]:
    """Run a server whose nth connection is served by the nth handler; give its HOST:PORT and the paths asked for.

    n_refused : connections after the first that are answered with 503
    """
    paths: list[str] = []
    waiting = list(handlers)
    refused = [503] * n_refused

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(refused.pop(), "later\n") if paths and refused else None

    async def serve_next(connection: ServerConnection) -> None:
        assert connection.request is not None
        paths.append(connection.request.path)
        await waiting.pop(0)(connection)

    async with serve(serve_next, "127.0.0.1", 0, ssl=ssl, process_request=answer) as server:
        yield f"127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", paths


def sending(*messages: Event | str | bytes, close: int | None = 1000) -> Handler:
    """Send messages, and close the connection; None: cut it, 0: leave it open."""

    async def handler(connection: ServerConnection) -> None:
        for message in messages:
            await connection.send(message.to_json() if isinstance(message, Event) else message)
        if close is None:
            connection.transport.abort()
        elif close:
            await connection.close(close)
        else:
            await connection.wait_closed()

    return handler


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Run a server that gives each request the same answer; give its HOST:PORT."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
