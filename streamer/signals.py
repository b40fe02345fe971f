"""Signals by which the daemon is stopped, paused, and made to read its settings again."""

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
    pause: Callable[[], None],
    reload: Callable[[], None],
) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM call `stop`; a second one ends the process at once.

    SIGUSR1 calls `pause` and SIGHUP `reload` (not on Windows). If SIGHUP says that the daemon's terminal is gone, it
    calls `stop`: no user would know of a microphone that is still open.
    """
    stopping = [name for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    others = [name for name in ("SIGUSR1", "SIGHUP") if hasattr(signal, name)]
    previous = {name: signal.getsignal(getattr(signal, name)) for name in (*stopping, *others)}
    terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
    stopped = False

    def on_stop(number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        for name in stopping:  # by the system, whatever the daemon waits for then
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        logger.info("stopping (%s); once more to stop at once", signal.Signals(number).name)
        loop.call_soon_threadsafe(stop)
        if os.name == "posix" and sys.stdout.isatty():
            os.write(sys.stdout.fileno(), SHOW_CURSOR)

    def on_pause(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(pause)

    def on_hangup(number: int, frame: object) -> None:
        if has_hung_up(terminals):
            on_stop(number, frame)
        else:
            loop.call_soon_threadsafe(reload)

    handlers = {**dict.fromkeys(stopping, on_stop), "SIGUSR1": on_pause, "SIGHUP": on_hangup}
    for name in previous:
        signal.signal(getattr(signal, name), handlers[name])
    try:
        yield
    finally:
        for name, handler in previous.items():
            if not (stopped and name in stopping):  # a second one still ends at once
                signal.signal(getattr(signal, name), handler)


def has_hung_up(terminals: Sequence[int]) -> bool:
    """Return whether one of these descriptors of terminals no longer has a terminal."""
    return not all(os.isatty(descriptor) for descriptor in terminals)
