"""Signals by which a daemon, gateway or worker is stopped, and a daemon paused and made to read its settings again."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger(__name__)

# Captions hide a terminal's cursor, and a process that is ended at once cannot show it again.
SHOW_CURSOR = b"\x1b[?25h"


@contextlib.contextmanager
def handled(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    pause: Callable[[], None] | None = None,
    reload: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM call `stop`; a second one ends the process at once.

    SIGUSR1 calls `pause` and SIGHUP `reload`, if they are given (not on Windows). If SIGHUP says that the daemon's
    terminal is gone, it calls `stop`: no user would know of a microphone that is still open.
    """
    named = {"SIGINT": stop, "SIGTERM": stop, "SIGBREAK": stop, "SIGUSR1": pause, "SIGHUP": reload}
    calls = {getattr(signal, name): call for name, call in named.items() if call is not None and hasattr(signal, name)}
    stopping = [number for number, call in calls.items() if call is stop]
    previous = {number: signal.getsignal(number) for number in calls}
    terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
    stopped = False

    def on_stop(number: int) -> None:
        nonlocal stopped
        stopped = True
        for each in stopping:  # by the system, whatever is waited for then
            signal.signal(each, signal.SIG_DFL)
        logger.info("stopping (%s); once more to stop at once", signal.Signals(number).name)
        loop.call_soon_threadsafe(stop)
        if os.name == "posix" and sys.stdout.isatty():
            os.write(sys.stdout.fileno(), SHOW_CURSOR)

    def on_signal(number: int, _frame: object) -> None:
        if number in stopping or (signal.Signals(number).name == "SIGHUP" and has_hung_up(terminals)):
            on_stop(number)
        else:
            loop.call_soon_threadsafe(calls[number])

    for number in calls:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if not (stopped and number in stopping):  # a second one still ends at once
                signal.signal(number, handler)


def has_hung_up(terminals: Sequence[int]) -> bool:
    """Return whether one of these descriptors of terminals no longer has a terminal."""
    return not all(os.isatty(descriptor) for descriptor in terminals)
