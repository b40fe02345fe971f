"""A proxy whose connections break."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Cutter:
    """Passes on what comes to its port, until it cuts the connection."""

    def __init__(self, target: int, budgets: tuple[int, ...]) -> None:
        """Pass on to the port `target`; cut the nth connection after so many bytes from the client."""
        self.port = 0
        self._target = target
        self._budgets = list(budgets)
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        budget = self._budgets.pop(0) if self._budgets else 1 << 40
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, there}
        self._open |= ends

        async def back() -> None:
            with contextlib.suppress(OSError):
                while data := await there_reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        backward = asyncio.create_task(back())
        with contextlib.suppress(OSError):
            while budget > 0 and (data := await reader.read(min(budget, 4096))):
                budget -= len(data)
                there.write(data)
                await there.drain()
                await asyncio.sleep(0.001)  # so that something comes back
        self._open -= ends
        for end in ends:
            end.transport.abort()
        await asyncio.gather(backward, return_exceptions=True)


@contextlib.asynccontextmanager
async def cutting(target: int, *budgets: int) -> AsyncIterator[Cutter]:
    """Run a proxy to a port."""
    cutter = Cutter(target, budgets)
    async with await asyncio.start_server(cutter.serve, "127.0.0.1", 0) as server:
        cutter.port = server.sockets[0].getsockname()[1]
        yield cutter
        cutter.cut()
