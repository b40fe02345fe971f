"""A daemon's events for `for` and `async for`."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import wait

from streamer.events import Event


class Events:
    """A daemon's events: `for event in events`, or `async for`. Each loop has a connection of its own."""

    def __init__(self, begin: Callable[[], AsyncGenerator[Event, None]]) -> None:
        """Iterate over `begin()` in each loop."""
        self._begin = begin

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        return self._begin()

    def __iter__(self) -> Generator[Event, None, None]:
        return _in_thread(self._begin())


def _in_thread(events: AsyncGenerator[Event, None]) -> Generator[Event, None, None]:
    """Yield the items of an asynchronous generator, which a thread runs, so that this works within a running loop."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    lock = asyncio.Lock()  # a generator must not be closed while it runs

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(stop.wait())

    async def locked(step: Callable[[], Awaitable[Event | None]]) -> Event | None:
        async with lock:
            return await step()

    def result(step: Callable[[], Awaitable[Event | None]]) -> Event | None:
        future = asyncio.run_coroutine_threadsafe(locked(step), loop)
        try:
            while not future.done():
                wait([future], timeout=0.2)  # in steps, so that Ctrl-C gets through on every system
            return future.result()
        finally:
            future.cancel()

    thread = threading.Thread(target=work, name="streamer-client", daemon=True)
    thread.start()
    try:
        while (event := result(lambda: anext(events, None))) is not None:
            yield event
    finally:
        if not sys.is_finalizing():  # otherwise the thread no longer runs, and the wait for it would not end
            try:
                result(events.aclose)
            finally:
                loop.call_soon_threadsafe(stop.set)
                thread.join()
