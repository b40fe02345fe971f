"""Waiting for what must come: bounded, so that a test fails if it does not."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

WAIT_S = 180.0  # reached only if a test fails, also on a machine that is busy with something else


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until other threads or processes make a condition true."""
    pauses_s = _pauses()
    while not condition():
        time.sleep(next(pauses_s))


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until other tasks or threads make a condition true."""
    async with asyncio.timeout(WAIT_S):
        for pause_s in _pauses():
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(pause_s)


def _pauses() -> Iterator[float]:
    """Return the pauses between looks, in seconds. They get longer: looking takes time from what is waited for."""
    pause_s, deadline_s = 0.005, time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        yield pause_s
        pause_s = min(1.2 * pause_s, 0.1)
    raise AssertionError("it did not happen")
