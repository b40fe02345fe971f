"""Signals that stop a gateway or worker."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let Ctrl-C and a request to terminate set `stop`; a second one ends the process at once."""
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    loop, previous = asyncio.get_running_loop(), {number: signal.getsignal(number) for number in numbers}

    def on_signal(number: int, _frame: object) -> None:
        for each in numbers:  # by the system, whatever is waited for then
            signal.signal(each, signal.SIG_DFL)
        logger.info("stopping (%s); once more to stop at once", signal.Signals(number).name)
        loop.call_soon_threadsafe(stop.set)

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        if not stop.is_set():
            for number, handler in previous.items():
                signal.signal(number, handler)
