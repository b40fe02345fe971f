"""Waiting for what must come: bounded, so that a test fails if it does not."""

import asyncio
import time
from collections.abc import Awaitable, Callable

WAIT_S = 90.0  # reached only if a test fails


def wait_until(condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Wait until other threads or processes make a condition true."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.005)


async def until(condition: Callable[[], bool | Awaitable[bool]], wait_s: float = WAIT_S) -> None:
    """Wait until other tasks or threads make a condition true."""
    async with asyncio.timeout(wait_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.005)
